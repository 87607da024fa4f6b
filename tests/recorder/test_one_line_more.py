"""An account and a column of `steps` are one line more: tried on a copy of the code with that line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOOP = """
import torch
from torch import nn
import laptime
from laptime.recorder.backends import FakeClock

clock, network = FakeClock(), nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
with laptime.record(network, optimizer, out="run", every_step=True, clock=clock) as recording:
    for x in recording.steps([torch.ones(3, 4)] * 6):
        with torch.enable_grad():
            loss = network(x).sum()
        loss.backward()
        clock.advance(0.25)
        optimizer.step()
        ...
"""


@pytest.fixture
def changed(tmp_path):
    """Copies the code with a line more, and runs Python with the copy."""

    def change(file, after, line):
        for folder in ("src", "tools"):
            shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
        path = tmp_path / "src/laptime" / file
        text = path.read_text()
        assert text.count(after) == 1
        path.write_text(text.replace(after, f"{after}\n{line}"))

        def python(*arguments):
            environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path}", "COLUMNS": "200"}
            done = subprocess.run(
                [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return python

    return change


def test_an_account_more_is_in_rows_tables_page_and_json(changed, tmp_path):
    python = changed(
        "model/accounts.py",
        'UNEXPLAINED = "unexplained", "what is left of the wall time"',
        '    CHECKPOINT = "checkpoint", "the network is written to disk"',
    )
    charged = "with recording.account('checkpoint'):\n            clock.advance(0.75)"
    python("-c", LOOP.replace("...", charged))
    columns = "['wall_s', 'checkpoint_s', 'backward_s', 'host_s', 'unexplained_s']"
    read = f"print(json.dumps(laptime.load('run').steps.table.select({columns}).to_pydict()))"
    rows = json.loads(python("-c", f"import json, laptime\n{read}"))
    assert rows["checkpoint_s"] == pytest.approx([0.75] * 6)
    assert rows["wall_s"] == pytest.approx([1.0] * 6)
    assert rows["backward_s"] == pytest.approx([0.0] * 6)
    assert rows["unexplained_s"] == pytest.approx([0.0] * 6)
    assert "checkpoint" in python("-m", "laptime", "show", "run")
    shown = json.loads(python("-m", "laptime", "show", "run", "--json"))
    assert "checkpoint" in json.dumps(shown["runs"][0]["train"])
    python("-m", "laptime", "report", "run", "--out", "page.html")
    assert "checkpoint" in (tmp_path / "page.html").read_text()
    assert "`checkpoint_s`" in python("-c", "from tools.reference import files; print(files.run_directory())")


def test_a_column_more_is_logged_stored_exported_and_documented(changed, tmp_path):
    python = changed(
        "model/step.py",
        '    loss: Annotated[Logged, "as logged"] = None',
        '    grad_norm: Annotated[Logged, "norm of the gradient, as logged"] = None',
    )
    python("-c", LOOP.replace("...", "recording.log(grad_norm=0.5)"))
    told = python(
        "-c", "import laptime\nprint([step.grad_norm for step in laptime.load('run').steps], end='')"
    )
    assert told == str([0.5] * 6)
    header = (tmp_path / "run/csv/iterations.csv").read_text().splitlines()[0]
    assert '"grad_norm"' in header
    assert "norm of the gradient" in python(
        "-c", "from tools.reference import files; print(files.run_directory())"
    )
    answer = python(
        "-m", "laptime", "query", "SELECT sum(grad_norm) AS s FROM steps", "--runs", ".", "--json"
    )
    assert "3.0" in answer
    old = shutil.copytree(ROOT / "tests/runs/data/run-v1", tmp_path / "old")
    told = python("-c", f"import laptime\nprint({{s.grad_norm for s in laptime.load({str(old)!r}).steps}})")
    assert told == "{None}\n"
