"""Two ranks on this machine: what they exchange, what they record, and what happens when one dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import laptime
from laptime.runs.exchanges import read_exchanges
from laptime.training import checkpoint
from laptime.training.config.reading import read_config
from laptime.training.device_setup import DeviceSetup
from laptime.training.ranks import Ranks
from laptime.training.session import train
from laptime.views.run_document import content

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


def called(words):
    return subprocess.run(words, capture_output=True, text=True, timeout=100)


def weights(run):
    state = checkpoint.load(run.path / "checkpoint" / "last.pt")
    return state["network"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A training of two ranks: what its process said, and its run."""
    folder = tmp_path_factory.mktemp("two")
    done = called(command(folder, folder / "two", "--workers", "2"))
    assert done.returncode == 0, done.stderr[-2000:]
    return done, laptime.load(folder / "two")


@pytest.fixture(scope="module")
def two(finished):
    return finished[1]


def test_every_rank_records_its_steps_and_layers(two):
    assert {(step.rank, step.stage, step.samples) for step in two.steps if step.stage == "train"} == {
        (0, "train", 8),
        (1, "train", 8),
    }
    rows = two.layer_table.to_pylist()
    assert {(row["rank"], row["layer"]) for row in rows} >= {(r, f"conv{k}") for r in (0, 1) for k in (1, 2)}
    assert two.status == "finished"


def test_two_ranks_learn_what_one_learns_from_batches_twice_the_size(two, tmp_path):
    command(tmp_path, tmp_path / "one", batch=16)
    config = read_config(tmp_path / "one.toml").config
    one = train(config, out=tmp_path / "one")
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=1e-4, atol=1e-6)


def test_communication_is_split_into_exposed_and_overlapped(two):
    found = read_exchanges(two)
    assert set(found) == {0, 1}
    for rank, one in found.items():
        (averaged,) = [each for each in one.collectives if each.kind == "all_reduce"]
        assert averaged.bytes == 126_177 * 4 * 8
        assert averaged.seconds > 0
        mine = [step for step in two.steps if step.rank == rank and step.stage == "train"]
        charged = sum(step.communication_s for step in mine)
        assert sum(each.exposed_s for each in one.collectives) == pytest.approx(charged)


def test_a_healthy_training_says_nothing_but_where_it_runs(finished):
    done, _ = finished
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert json.loads(done.stdout)["run"]["status"] == "finished"


@pytest.mark.slow
def test_what_is_wrong_on_every_rank_is_told_once_and_not_tried_again(tmp_path):
    done = called(command(tmp_path, tmp_path / "run", "--workers", "2", "--set", "train.device=cuda:7"))
    assert done.returncode == 1
    assert done.stderr == "laptime: there is no device 'cuda:7'; this machine has cpu\n"


@pytest.mark.slow
def test_an_interrupt_ends_all_ranks_after_the_same_step_and_resuming_goes_on(tmp_path):
    out = tmp_path / "run"
    words = command(tmp_path, out, "--workers", "2", samples=320, epochs=50)
    launcher = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _await(out / "checkpoint" / "last.pt", launcher)
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
    _, said = launcher.communicate(timeout=100)
    assert launcher.returncode == 130, said[-2000:]
    assert said.splitlines()[1:] == [
        "stopping after this step; press Ctrl-C again to stop at once",
        f"laptime: interrupted; the run so far is in {out}; --resume --out {out} goes on",
    ]
    run = laptime.load(out)
    assert run.status == "interrupted"
    state = checkpoint.load(out / "checkpoint" / "last.pt")
    taken = [[s for s in run.steps if s.rank == rank and s.stage == "train"] for rank in (0, 1)]
    assert [len(one) for one in taken] == [state["counts"]["step"]] * 2
    end = state["counts"]["step"] + 3
    done = called([*words, "--resume", "--set", f"train.steps={end}"])
    assert done.returncode == 0, done.stderr[-2000:]
    last = laptime.load(out)
    assert {(s.rank, s.attempt) for s in last.steps} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert max(s.optimizer_step for s in last.steps) == end


def test_ranks_share_the_cores_of_a_machine(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(8)
        place = DeviceSetup.of("cpu", Ranks(ranks=4, locals=4))
        assert (torch.get_num_threads(), place.why) == (
            2,
            "as asked; 2 threads a rank, 8 cores shared by 4 ranks",
        )
        assert DeviceSetup.of("cpu", Ranks(ranks=4, locals=4), threads=3).why == "as asked"
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_training_goes_on_from_the_last_checkpoint(tmp_path):
    out = tmp_path / "run"
    launcher = subprocess.Popen(
        command(tmp_path, out, "--workers", "2", samples=1600, epochs=3),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _await(out / "checkpoint" / "last.pt", launcher)
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


def _await(file, process):
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)


def _children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found]


def test_layer_time_is_told_per_device(two):
    rows = content(two)["train"]["layers_by_device"]
    assert {(row["layer"], row["phase"]) for row in rows} >= {("conv1", "forward"), ("fc1", "backward")}
    assert all(set(row["seconds"]) == {"cpu rank 0", "cpu rank 1"} for row in rows)
    assert all(value > 0 for row in rows if row["phase"] == "forward" for value in row["seconds"].values())


def test_the_exchange_of_each_rank_is_told(two):
    traffic = content(two)["ranks"]["traffic"]
    assert [each["rank"] for each in traffic] == [0, 1]
    assert all(each["bytes"] > 0 and each["overlapped_s"] >= 0 for each in traffic)
