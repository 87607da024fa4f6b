"""A recording on a disk that fills up or turns read-only: the training goes on, and what is lost is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import laptime
from laptime.runs.health import find_losses
from laptime.views.run_document import content
from tests.recorder.loops import Net, batches, sgd, train_step

STEPS = 600


def record(out, at, act, *, flush_s=0.3):
    """A recording of STEPS steps; before step `at`, `act` happens to its disk."""
    from laptime.recorder.recorder import Recorder

    network = Net()
    optimizer = sgd(network)
    with Recorder(network, optimizer, out=out, every_step=True, flush_s=flush_s) as recording:
        for number, batch in enumerate(recording.steps(batches(STEPS))):
            train_step(network, optimizer, batch)
            for place, one in zip(at, act, strict=True):
                if number == place:
                    recording.flush()
                    one()
    return recording


def test_a_full_disk_is_warned_about_when_it_fails_and_at_the_end(small_disk):
    disk = small_disk()
    with pytest.warns(UserWarning, match="laptime:") as warned:
        recording = record(disk.path / "run", [200], [disk.fill])
    run = recording.run
    assert run.status == "finished"
    kept = len(run.steps)
    assert kept < STEPS
    lost = f"{STEPS - kept:,} of {STEPS:,} steps were lost: the disk was full"
    assert lost in str(warned[-1].message)
    assert len(warned) <= 2
    assert content(run)["health"]["told"] == [f"{lost}."]
    assert (find_losses(run).lost["steps"], find_losses(run).taken["steps"]) == (STEPS - kept, STEPS)


def test_space_that_comes_back_saves_every_row(small_disk):
    disk = small_disk(4 * 2**20)
    with pytest.warns(UserWarning, match="is tried again"):
        recording = record(disk.path / "run", [200, 300, 400], [disk.fill, lambda: None, disk.free])
    assert [step.step for step in recording.run.steps] == list(range(STEPS))
    assert content(recording.run)["health"]["told"] == []


def test_a_disk_that_is_read_only_to_the_end_leaves_what_it_took(small_disk):
    disk = small_disk(4 * 2**20)
    with pytest.warns(UserWarning, match="laptime:") as warned:
        recording = record(disk.path / "run", [200], [disk.read_only])
    kept = len(recording.run.steps)
    assert 200 <= kept < STEPS
    lost = f"{STEPS - kept:,} of {STEPS:,} steps were lost: the file system was read-only"
    assert lost in str(warned[-1].message)


def test_a_disk_that_is_read_only_for_a_while_loses_nothing(small_disk):
    disk = small_disk(4 * 2**20)
    with pytest.warns(UserWarning, match="Read-only file system"):
        recording = record(disk.path / "run", [200, 300, 400], [disk.read_only, lambda: None, disk.writable])
    assert [step.step for step in recording.run.steps] == list(range(STEPS))
    assert recording.run.status == "finished"


def test_laptime_run_and_every_view_after_it_say_what_a_full_disk_cost(small_disk, tmp_path):
    disk = small_disk()
    script = tmp_path / "fills.py"
    script.write_text(SCRIPT)
    out = disk.path / "run"
    command = [sys.executable, "-m", "laptime"]
    done = subprocess.run(
        [*command, "run", "--every-step", "--out", out, script, disk.path / "ballast"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "trained 2000 steps" in done.stdout
    kept = len(laptime.load(out).steps)
    lost = f"{2000 - kept:,} of 2,000 steps were lost: the disk was full."
    assert kept < 2000
    assert lost in done.stderr
    shown = subprocess.run([*command, "show", out], capture_output=True, text=True, check=True)
    assert lost in shown.stdout
    as_json = subprocess.run([*command, "show", "--json", out], capture_output=True, text=True, check=True)
    health = json.loads(as_json.stdout)["runs"][0]["health"]
    assert health["told"] == [lost]
    assert health["lost_rows"]["steps"] == 2000 - kept
    page = tmp_path / "page.html"
    subprocess.run([*command, "report", out, "--out", page], capture_output=True, check=True)
    assert f'<p class="warning" role="alert">{lost}</p>' in Path(page).read_text()


SCRIPT = """
import sys

import torch
from torch import nn

torch.set_num_threads(1)
network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for step in range(2000):
    optimizer.zero_grad()
    network(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if step == 500:
        with open(sys.argv[1], "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
print("trained 2000 steps")
"""
