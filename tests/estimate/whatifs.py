"""Questions of the prediction page in text, as a URL asks them, and the rows of their answers."""

import gzip
import json
from functools import cache
from pathlib import Path

from laptime.estimate.whatif import Question, ask
from laptime.model import Workload

KEPT = Path(__file__).parents[2] / "benchmarks" / "workloads" / "h200_measured.jsonl.gz"
TRAINING = {"samples": 1_281_167, "epochs": 90}


def leave_home(monkeypatch, tmp_path):
    """No calibrations, devices and prices of whoever runs the tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)


@cache
def kept(label="alexnet-64-fp32"):
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        lines = (json.loads(line) for line in file)
        return Workload.of(next(one["workload"] for one in lines if one["label"] == label))


def answer(workload=None, *, run=None, **query):
    """Asked in text, as a URL does; what comes back is strict JSON."""
    question = Question.of({name: str(value) for name, value in query.items()})
    made = ask(workload or kept(), question, run=run)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    return made


def row(document, name="h200"):
    return next(one for one in document["rows"] if one["device"] == name)
