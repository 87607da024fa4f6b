"""What README and docs/ show in Python works as it stands there, with a small network of the reader's."""

import re
from types import SimpleNamespace

import pytest
import torch
from tools.blocks import blocks
from torch import nn

import laptime
from tests.docs.pages import PAGES, TUTORIAL, name

SHOWING = [
    page for page in PAGES if page != TUTORIAL and any(one.language == "python" for one in blocks(page))
]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """What a reader has: a network, an optimizer, a criterion, a loader; and trainers that take anything."""
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    trainers = SimpleNamespace(Trainer=lambda *_, callbacks: callbacks)
    return {
        "laptime": laptime,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(),
        "loader": [(torch.randn(4, 3, 16, 16), torch.randint(0, 3, (4,))) for _ in range(6)],
        "lightning": trainers,
        "transformers": trainers,
    }


@pytest.mark.parametrize("page", SHOWING, ids=name)
def test_every_python_block_of_a_page_runs(page, reader, capsys):
    for block in blocks(page):
        if block.language == "python" and block.after("not run") is None:
            # Empty lines before it, so that an error names the line of the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), reader)


def test_the_readme_shows_the_loop_that_is_recorded(reader, capsys):
    (loop,) = [one for one in blocks(PAGES[0]) if one.language == "python" and "record(" in one.text]
    exec(loop.text, reader)
    printed = capsys.readouterr().out
    assert "forward" in printed
    assert "wall" in printed
    assert len(laptime.load("runs/mine").steps) == 6


def test_code_in_the_docstrings_of_public_names_runs(reader):
    told = [getattr(laptime, one).__doc__ or "" for one in laptime.__all__ if one != "__version__"]
    code = [one for text in told for one in re.findall(r"`([^`]*laptime\.\w+\([^`]*)`", text)]
    assert code
    for one in code:
        exec(one.replace("…", "..."), reader)


def test_the_public_names_are_there():
    for one in laptime.__all__:
        assert getattr(laptime, one) is not None
