"""A process killed with SIGKILL leaves a run that loads and misses at most the last five seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import laptime

KILLS = 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_training_loses_at_most_the_last_five_seconds(tmp_path):
    parent = [
        sys.executable,
        str(Path(__file__).with_name("killed_training.py")),
        str(tmp_path),
        str(KILLS),
        "7",
    ]
    answer = subprocess.run(parent, capture_output=True, text=True, check=True)
    deaths = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(deaths) == KILLS
    for death in deaths:
        run = laptime.load(death["run"])
        assert run.status == "interrupted"
        steps = [step.step for step in run.steps]
        assert steps == list(range(len(steps)))  # none missing in between, none twice
        finished = [
            line.split() for line in Path(death["log"]).read_text().splitlines() if line.count(" ") == 1
        ]
        due = [int(step) for step, when in finished if float(when) < death["killed"] - 5.0]
        assert due, "the training was too young for the test to say anything"
        assert len(steps) > max(due)
        assert set(range(max(due))) <= set(run.layer_table["step"].to_pylist())
