"""Faults of a rank, its network and its disk: training goes on or ends in time, the run is readable, and
something says what happened. Kills of ranks, hosts and servers are in the files beside this one.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import tools.testbed as testbed
from tests.training.launch.processes import left_of, processes_of, ranks_of, start, wait_until
from tests.training.ranks_here import Training, train_on_ranks

import laptime
from laptime.model import Stage
from laptime.runs.health import find_losses
from laptime.views.ranks import ranks_view

CONFIG = """
network = "zener4"
data = {{kind = "zener", samples = 320, validation_samples = 40}}
train = {{batch = 8, epochs = 500, steps = {steps}, threads = 1, device = "cpu"}}
optimizer = {{name = "sgd", lr = 0.02}}
loader = {{drop_last = true}}
checkpoint = {{every_steps = 5}}
record = {{profile = false}}
"""
STARTED_S, ENDED_S = 150, 300  # on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path):
    yield
    for process in processes_of(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def begun(folder, *options, steps):
    """A training that has saved a checkpoint, and whose last rank has rows on disk."""
    training = start(folder, CONFIG.format(steps=steps), *options)
    there = ("run/checkpoint/last.pt", "run/steps/part-r1-*")
    assert wait_until(lambda: all(list(folder.glob(name)) for name in there), STARTED_S), training.poll()
    return training


def ended(training, folder, status=0):
    """Its output, and its run, which can be shown; nothing is left."""
    said = training.communicate(timeout=ENDED_S)[1]
    assert training.returncode == status, said[-3000:]
    assert wait_until(lambda: not left_of(folder), 30), left_of(folder)
    shown = subprocess.run(
        [sys.executable, "-m", "laptime", "show", str(folder / "run")], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    return said, laptime.load(folder / "run")


def trained(run):
    return Counter(
        step.rank for step in {(s.rank, s.step): s for s in run.steps if s.stage == "train"}.values()
    )


@contextmanager
def slowed(process):
    """A process that runs for a third of the time, in turns that are shorter than a step."""
    done = threading.Event()

    def slow():
        while not done.is_set():
            for number, seconds in ((signal.SIGSTOP, 0.01), (signal.SIGCONT, 0.005)):
                try:
                    os.kill(process, number)
                except ProcessLookupError:
                    return
                time.sleep(seconds)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# -- a rank that stands still, or is slow --------------------------------------------------------------------


def test_synchronous_training_waits_for_a_rank_that_stops_for_20_s(tmp_path):
    training = begun(tmp_path, "--workers", "2", steps=150)
    process = ranks_of(tmp_path)[1]
    os.kill(process, signal.SIGSTOP)
    time.sleep(20)
    os.kill(process, signal.SIGCONT)
    _, run = ended(training, tmp_path)
    assert (run.status, run.last_attempt, trained(run)) == ("finished", 0, {0: 150, 1: 150})


@pytest.mark.parametrize("plan", ["data", "local,average_every=2", "hybrid,stages=2"])
def test_a_rank_that_does_not_answer_in_time_is_named_and_all_start_again(plan, tmp_path):
    options = ("--workers", "2", "--parallel", plan, "--set", "parallel.timeout=10")
    training = begun(tmp_path, *options, steps=100)
    os.kill(ranks_of(tmp_path)[1], signal.SIGSTOP)
    said, run = ended(training, tmp_path)
    line = "rank 1 did not answer; rank 0 waited 10 s (parallel.timeout) for another rank"
    assert line in said
    assert any(line in note and "started again" in note for note in run.summary["notes"])
    assert (run.status, run.last_attempt, set(trained(run).values())) == ("finished", 1, {100})


def test_without_restarts_the_first_loss_ends_the_training(tmp_path):
    training = begun(tmp_path, "--workers", "2", "--set", "parallel.restarts=0", steps=100_000)
    os.kill(ranks_of(tmp_path)[1], signal.SIGKILL)
    said, run = ended(training, tmp_path, 1)
    assert "laptime: rank 1 was ended by signal 9" in said
    assert run.status in ("failed", "interrupted")
    assert any("rank 1 was ended by signal 9" in note for note in run.summary["notes"])


def test_synchronous_training_follows_a_slow_rank_which_is_called_the_straggler(tmp_path):
    training = begun(tmp_path, "--workers", "2", "--set", "train.batch=64", steps=300)
    with slowed(ranks_of(tmp_path)[1]):
        _, run = ended(training, tmp_path)
    assert trained(run) == {0: 300, 1: 300}
    straggler = ranks_view(run, Stage.TRAIN).waiting.straggler
    assert straggler is not None
    assert straggler.rank == 1


def test_asynchronous_training_leaves_a_slow_rank_behind(tmp_path):
    pytest.importorskip("ray", reason="laptime[ray] is not installed")
    training = begun(tmp_path, "--workers", "2", "--parallel", "asynchronous", steps=400)
    with slowed(ranks_of(tmp_path)[1]):
        _, run = ended(training, tmp_path)
    assert trained(run) == {0: 400, 1: 400}
    last = {
        rank: max(s.start_s for s in run.steps if s.rank == rank and s.stage == "train") for rank in (0, 1)
    }
    behind = sum(s.rank == 1 and s.stage == "train" and s.start_s < last[0] for s in run.steps)
    assert behind < 300


# -- the disk of one rank ------------------------------------------------------------------------------------


def _in_a_folder_of_its_own(name, rank):
    if rank:
        os.chdir(os.environ["DISK_OF_RANK_1"])


def test_a_full_disk_of_one_rank_costs_its_rows_and_not_the_training(tmp_path, small_disk, monkeypatch):
    disk = small_disk(2**20)
    monkeypatch.setenv("DISK_OF_RANK_1", str(disk.path))
    monkeypatch.chdir(tmp_path)
    disk.fill(leave=48 * 1024)
    text = CONFIG.format(steps=300) + 'parallel = {strategy = "data"}\n'
    training = Training(text, Path("run"))
    run = train_on_ranks([training], 2, before=_in_a_folder_of_its_own)["run"]
    assert (run.status, trained(run)[0]) == ("finished", 300)
    disk.free()
    other = laptime.load(disk.path / "run")
    assert sum(find_losses(other).lost.values()) > 0 or len(other.steps) < 300


# -- the network ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts():
    if reason := testbed.missing():
        pytest.skip(reason)
    with testbed.a_testbed(2) as built:
        yield built


@pytest.fixture
def over_ssh(tmp_path, hosts):
    """The options of a training on both hosts."""
    python = tmp_path / "python"
    path = os.pathsep.join(sys.path[1:])
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH={path}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ssh = f"ssh -F {testbed.ssh_config()} -o ConnectTimeout=5 -o ServerAliveInterval=15"
    names = ",".join(host.name for host in hosts)
    return ["--hosts", names, "--ssh", ssh, "--python", str(python)]


def saved_there(folder):
    """Whether the hosts, which share this machine's disk, have a checkpoint."""
    from tests.training.launch.test_hosts import saved

    return saved(folder / "run")


@pytest.mark.parametrize(("timeout", "goes_on"), [(60, True), (5, False)])
def test_a_network_that_is_cut_for_10_s_is_waited_for_as_configured(
    timeout, goes_on, tmp_path, hosts, over_ssh
):
    settings = ["--set", f"parallel.timeout={timeout}", "--set", "parallel.restarts=0"]
    training = start(tmp_path, CONFIG.format(steps=600), *over_ssh, *settings)
    assert wait_until(lambda: saved_there(tmp_path), STARTED_S)
    testbed.cut(hosts[1])
    try:
        time.sleep(10)
    finally:
        testbed.join(hosts[1])
    said, run = ended(training, tmp_path, 0 if goes_on else 1)
    assert set(trained(run)) == {0, 1}
    if goes_on:
        assert (run.status, trained(run)) == ("finished", {0: 600, 1: 600})
    else:
        assert "waited 5 s (parallel.timeout) for another rank" in said
        assert any("waited 5 s" in note for note in run.summary["notes"])
