"""Two ranks on this machine: what they exchange, what they record, and what happens when one dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import laptime
from laptime.train import checkpoint

CONFIG = """
network = "zener4"
[data]
kind = "zener"
samples = {samples}
validation_samples = 40
[train]
epochs = {epochs}
batch = {batch}
device = "cpu"
threads = 1
[optimizer]
name = "sgd"
[checkpoint]
every_steps = 2
"""


def command(tmp_path, out, *options, samples=64, epochs=2, batch=8):
    config = tmp_path / f"{out.name}.toml"
    config.write_text(CONFIG.format(samples=samples, epochs=epochs, batch=batch))
    return [sys.executable, "-m", "laptime", "train", str(config), "--out", str(out), "--json", *options]


def trained(tmp_path, name, *options, **numbers):
    out = tmp_path / name
    done = subprocess.run(
        command(tmp_path, out, *options, **numbers), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return laptime.load(out)


def weights(run):
    state = checkpoint.load(run.path / "checkpoint" / "last.pt")
    return state["network"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("two"), "two", "--workers", "2")


def test_every_rank_records_its_steps_and_layers(two):
    assert {(step.rank, step.stage, step.samples) for step in two.steps if step.stage == "train"} == {
        (0, "train", 8),
        (1, "train", 8),
    }
    rows = two.layer_table.to_pylist()
    assert {(row["rank"], row["layer"]) for row in rows} >= {(r, f"conv{k}") for r in (0, 1) for k in (1, 2)}
    assert two.status == "finished"


def test_two_ranks_learn_what_one_learns_from_batches_twice_the_size(two, tmp_path):
    one = trained(tmp_path, "one", batch=16)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=1e-4, atol=1e-6)


def test_communication_is_split_into_exposed_and_overlapped(two):
    found = two.summary["communication"]
    assert set(found) == {"0", "1"}
    for rank, one in found.items():
        assert one["bytes"] == 126_177 * 4 * 8
        assert one["seconds"] == pytest.approx(one["exposed_s"] + one["overlapped_s"])
        charged = sum(step.communication_s for step in two.steps if step.rank == int(rank))
        assert charged > 0
        # The account runs to the end of the backward pass, the exchange to the arrival of its last bucket.
        assert charged > 0.5 * one["exposed_s"]


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_training_goes_on_from_the_last_checkpoint(tmp_path):
    out = tmp_path / "run"
    launcher = subprocess.Popen(
        command(tmp_path, out, "--workers", "2", samples=1600, epochs=3),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    last = out / "checkpoint" / "last.pt"
    deadline = time.monotonic() + 60
    while not last.exists() and time.monotonic() < deadline and launcher.poll() is None:
        time.sleep(0.05)
    victim = _children(launcher.pid)[-1]
    os.kill(victim, signal.SIGKILL)
    _, said = launcher.communicate(timeout=100)
    assert launcher.returncode == 0, said[-2000:]
    run = laptime.load(out)
    assert run.status == "finished"
    assert {step.attempt for step in run.steps} == {0, 1}
    for rank in (0, 1):
        taken = {step.step for step in run.steps if step.rank == rank and step.stage == "train"}
        last_attempt = [s for s in run.steps if s.rank == rank and s.attempt == 1 and s.stage == "train"]
        assert len(taken) == 300
        assert last_attempt[-1].optimizer_step == 300


def _children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found]
