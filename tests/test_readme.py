"""What the README says works as it stands there."""

import re
from pathlib import Path

import torch
from torch import nn

import laptime

README = Path(__file__).parents[1] / "README.md"


def test_the_loop_in_the_readme_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (loop,) = [
        block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "record(" in block
    ]
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(),
        "loader": [(torch.randn(4, 1, 4, 4), torch.randint(0, 3, (4,))) for _ in range(6)],
    }
    exec(loop, names)
    printed = capsys.readouterr().out
    assert "forward" in printed
    assert "wall" in printed
    assert len(laptime.load("runs/mine").steps) == 6


def test_every_command_of_the_readme_exists():
    from typer.testing import CliRunner

    from laptime.cli import app

    known = CliRunner().invoke(app, ["--help"]).output
    for command in re.findall(r"`laptime (\w+)", README.read_text()):
        assert command in known, command


def test_the_public_names_are_there():
    for name in laptime.__all__:
        assert getattr(laptime, name) is not None
