"""A training killed at any write loads, goes on with the losses of an unbroken one, and has no row twice."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training.test_loop import losses

import laptime

ROOT = Path(__file__).parents[2]
KEY = ("attempt", "stage", "step", "rank")


@pytest.fixture
def folder():
    """In memory, where that is possible: a loaded disk takes its time to sync, and no kill depends on it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def killed(folder: Path, points: int) -> list[dict]:
    command = [sys.executable, "-m", "tests.training.killed_writes", str(folder), str(points)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: dict, whole: laptime.Run) -> str:
    """What became of one killed training."""
    out = Path(found["out"])
    assert found["statuses"][0] == -9, f"not killed at {found['at']}"
    if found["tried"] is None:
        assert laptime.load(out).status == "interrupted"
        return "no checkpoint"
    assert found["tried"] == 0, found["at"]
    run = laptime.load(out)
    assert run.status == "finished", found["at"]
    assert losses(run) == losses(whole), found["at"]
    assert losses(run, "validation") == losses(whole, "validation")
    stored = replace(run.stored("steps"), every_attempt=True).read(list(KEY))
    rows = Counter(zip(*(stored[name].to_pylist() for name in KEY), strict=True))
    assert max(rows.values()) == 1, found["at"]
    assert [(step.stage, step.step) for step in run.steps] == [(one.stage, one.step) for one in whole.steps]
    assert len(run.steps) == len(whole.steps)
    assert run.layers(skip=0).steps == whole.layers(skip=0).steps
    if not found["complete"]:  # else nobody has opened it again
        assert not [file.name for file in out.rglob(".*")], found["at"]
    return "gone on with"


def check_all(found: list[dict], folder: Path) -> None:
    whole = laptime.load(folder / "whole")
    ends = Counter(check(one, whole) for one in found)
    assert ends["gone on with"] > 0.7 * len(found)
    about = " ".join(one["at"] for one in found)
    assert all(call in about for call in ("fsync", "replace", "unlink", "last", "part-r0", "run.json"))


def test_a_training_killed_at_a_dozen_writes_goes_on(folder):
    found = killed(folder, 12)
    assert len(found) == 12
    check_all(found, folder)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_training_killed_at_any_write_goes_on(folder):
    found = killed(folder, 0)
    check_all(found, folder)
    assert len(found) > 120
    assert sum(one["statuses"].count(-9) for one in found) > 150  # those killed again on their way included
