"""Parameter servers: what asynchronous and mixed training learn, and what they survive.

One Ray cluster for all tests; workers are processes that join it.
"""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.training.launch.processes import left_of, start, wait_until
from tests.training.ranks_here import losses

import laptime
from laptime.training import parameter_server
from laptime.training.config.reading import read_config
from laptime.training.launch.groups import Groups, launch_groups, server_name
from laptime.training.parameter_server import ParameterServer, ServerPlan, shares
from laptime.training.session import train
from laptime.training.stop_signals import ORPHAN_S

pytest.importorskip("ray", reason="laptime[ray] is not installed")
import ray

from laptime.training.launch.ray_cluster import connected

BATCH, STEPS = 16, 20

pytestmark = pytest.mark.timeout(300)  # Ray starts a dozen processes, each of which imports torch


@pytest.fixture(scope="module")
def cluster():
    with connected() as address:
        yield address


def configuration(batch, *, steps=STEPS, every=1):
    return f"""
network = "zener4"
data = {{kind = "zener", samples = 320, validation_samples = 30}}
train = {{batch = {batch}, epochs = 500, steps = {steps}, threads = 1, device = "cpu"}}
optimizer = {{name = "momentum", lr = 0.02}}
validation = {{every = {every}}}
checkpoint = {{every = 1}}
record = {{profile = false}}
"""


def launched(folder, text, *settings, groups=2, size=1, servers=1, said=None):
    """Train in groups of processes; the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.toml").write_text(text)
    options = [f"parallel.servers={servers}", *settings]
    arguments = ["train", str(folder / "a.toml"), "--out", str(folder / "run"), "--workers", str(size)]
    arguments += [word for setting in options for word in ("--set", setting)]
    plan = Groups(groups=groups, size=size, servers=servers, out=folder / "run")
    launch_groups(arguments, plan, say=(said if said is not None else []).append)
    return laptime.load(folder / "run")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same training by one process."""
    folder, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    (folder / "a.toml").write_text(configuration(BATCH))
    run = train(read_config(folder / "a.toml").config, out=folder / "run")
    torch.set_num_threads(threads)
    return run


# -- what is learned -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "groups", "size", "settings"),
    [
        pytest.param("asynchronous", 1, 1, [], id="asynchronous-1"),
        pytest.param(
            *("asynchronous", 2, 1, ["parallel.staleness=0"]), id="asynchronous-2", marks=pytest.mark.slow
        ),
        pytest.param(
            *("mixed", 2, 2, ["parallel.staleness=0", "parallel.groups=2"]),
            id="mixed-2x2",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_workers_that_wait_for_each_other_learn_what_one_process_learns(
    strategy, groups, size, settings, cluster, alone, tmp_path
):
    text = configuration(BATCH // (groups * size))
    chosen = [f"parallel.strategy={strategy}", *settings]
    run = launched(tmp_path, text, *chosen, groups=groups, size=size, servers=2)
    expected = losses(alone)
    assert len(expected) == STEPS
    assert mean_losses(run) == pytest.approx(expected, rel=1e-4)
    assert run.status == "finished"
    judged = [losses(each, "validation")[-1] for each in (run, alone)]
    assert judged[0] == pytest.approx(judged[1], rel=1e-3)
    assert {step.staleness for step in run.steps} <= {0, None}  # known to the first rank of a group


def mean_losses(run):
    """By place among a rank's training steps: the first group validates, so its steps have other numbers."""
    by_rank = [
        [step.loss for step in run.steps if step.stage == "train" and step.rank == rank]
        for rank in range(run.config["ranks"])
    ]
    return [sum(values) / len(values) for values in zip(*by_rank, strict=True)]


@pytest.mark.slow
def test_workers_that_do_not_wait_have_stale_gradients_and_one_validates(cluster, tmp_path):
    text = configuration(BATCH, steps=60)
    run = launched(tmp_path, text, "parallel.strategy=asynchronous")
    trained = [step for step in run.steps if step.stage == "train"]
    assert Counter(step.rank for step in trained) == {0: 60, 1: 60}
    assert any(step.staleness > 0 for step in trained)
    assert [step.optimizer_step for step in trained if step.rank == 1] == list(range(1, 61))
    assert run.summary["notes"] == []
    assert {step.rank for step in run.steps if step.stage == "validation"} == {0}
    assert not list((run.path / "checkpoint").glob("server-*"))


def test_servers_share_the_parameters_evenly():
    assert shares([100, 60, 50, 10], 2) == [[0, 3], [1, 2]]
    assert shares([5], 3) == [[0]]


def test_a_server_that_died_knows_who_still_trains(tmp_path, monkeypatch):
    context = SimpleNamespace(was_current_actor_reconstructed=False)
    ray = SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setattr(parameter_server, "ray_module", lambda: ray)
    plan = ServerPlan(
        optimizer={"name": "sgd", "lr": 1.0},
        schedule={},
        groups=3,
        updates=10,
        updates_per_epoch=10,
        staleness=None,
        shapes=((2,),),
    )
    zeros, ones = np.zeros(2, np.float32), np.ones(2, np.float32)

    async def one_life():
        server = ParameterServer(str(tmp_path / "server.pt"))
        await asyncio.gather(*(server.join(worker, plan, zeros) for worker in range(3)))
        await server.exchange(1, 0, ones)
        await server.leave(0)
        await server.leave(2, returns=True)

    async def another_life():
        server = ParameterServer(str(tmp_path / "server.pt"))
        assert await server.workers() is None
        assert await server.exchange(1, 1, ones) is None
        answer = await server.join(0, plan, zeros)
        assert answer.restored
        assert answer.parameters.tolist() == [-1.0, -1.0]
        await server.leave(0)
        return await server.workers()

    asyncio.run(one_life())
    context.was_current_actor_reconstructed = True
    assert asyncio.run(another_life()) == [1, 2]  # one trains, one is started again


@pytest.mark.slow
def test_all_groups_end_when_the_first_reaches_the_target(cluster, tmp_path):
    text = configuration(BATCH, steps=4000)
    run = launched(tmp_path, text, "parallel.strategy=asynchronous", "train.until.loss=1.5")
    assert run.summary["target"]["reached"]
    assert run.status == "finished"
    trained = Counter(step.rank for step in run.steps if step.stage == "train")
    assert set(trained) == {0, 1}
    assert max(trained.values()) < 4000


# -- faults --------------------------------------------------------------------------------------------------


def process_of(group):
    """The process of a group of this test's launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == os.getpid() and f"LAPTIME_GROUP={group}".encode() in words:
            return int(folder.name)
    return None


@contextmanager
def once_steps_are_on_disk(out, rank, do):
    """Do something as soon as a rank has rows on disk."""

    def wait():
        until = time.monotonic() + 60
        while not list(out.glob(f"steps/part-r{rank}-*")) and time.monotonic() < until:
            time.sleep(0.05)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


def no_step_twice(run):
    """Every rank has every step, each once."""
    rows = Counter((step.rank, step.step) for step in run.steps)
    assert set(rows.values()) == {1}
    trained = Counter(step.rank for step in run.steps if step.stage == "train")
    assert len(set(trained.values())) == 1, trained
    return trained


LONG = 400  # steps, some of which are left when a worker is back


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [None, 0])
@pytest.mark.parametrize("group", [0, 1])
def test_a_killed_worker_is_started_again_and_goes_on(group, staleness, cluster, tmp_path):
    said = []

    def kill():
        os.kill(process_of(group), signal.SIGKILL)

    settings = ["parallel.strategy=asynchronous"]
    settings += [] if staleness is None else [f"parallel.staleness={staleness}"]
    with once_steps_are_on_disk(tmp_path / "run", group, kill):
        run = launched(tmp_path, configuration(BATCH, steps=LONG), *settings, said=said)
    assert run.status == "finished"
    assert no_step_twice(run) == {0: LONG, 1: LONG}
    assert {step.attempt for step in run.steps if step.rank == group} == {0, 1}
    assert any(f"worker {group} was lost (signal 9)" in note for note in run.summary["notes"])
    assert any(f"worker {group} was lost" in line for line in said)


@pytest.mark.slow
def test_a_stopped_worker_goes_on_when_it_may(cluster, tmp_path):
    def pause():
        process = process_of(1)
        os.kill(process, signal.SIGSTOP)
        time.sleep(20)
        os.kill(process, signal.SIGCONT)

    with once_steps_are_on_disk(tmp_path / "run", 1, pause):
        run = launched(tmp_path, configuration(BATCH, steps=LONG), "parallel.strategy=asynchronous")
    assert run.status == "finished"
    assert no_step_twice(run) == {0: LONG, 1: LONG}


@pytest.mark.slow
def test_a_killed_server_begins_again_from_its_snapshot(cluster, tmp_path):
    def kill():
        ray.kill(ray.get_actor(server_name(tmp_path / "run", 0)), no_restart=False)

    with once_steps_are_on_disk(tmp_path / "run", 0, kill):
        run = launched(tmp_path, configuration(BATCH, steps=LONG), "parallel.strategy=asynchronous")
    assert run.status == "finished"
    assert no_step_twice(run) == {0: LONG, 1: LONG}
    assert any("a parameter server died" in note for note in run.summary["notes"])
    assert mean_losses(run)[-1] < mean_losses(run)[0]


@pytest.mark.slow
def test_a_killed_rank_of_a_group_brings_its_group_back(cluster, tmp_path):
    def kill():
        launcher = process_of(1)
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)

    settings = ["parallel.strategy=mixed", "parallel.groups=2"]
    with once_steps_are_on_disk(tmp_path / "run", 2, kill):
        run = launched(tmp_path, configuration(BATCH // 2, steps=LONG), *settings, size=2)
    assert run.status == "finished"
    assert no_step_twice(run) == dict.fromkeys(range(4), LONG)
    assert any("group 1 (ranks 2 to 3) was lost" in note for note in run.summary["notes"])


# -- the launcher --------------------------------------------------------------------------------------------


def started(folder, *options, steps=100_000):
    words = ["--workers", "2", "--parallel", "asynchronous", *options]
    return start(folder, configuration(BATCH, steps=steps), *words)


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_process_behind(tmp_path):
    with started(tmp_path) as command:
        assert wait_until(lambda: list(tmp_path.glob("run/steps/part-r1-*")), 120)
        assert len(left_of(tmp_path)) > 3
        command.kill()
    assert wait_until(lambda: not left_of(tmp_path), ORPHAN_S + 5), left_of(tmp_path)
    assert laptime.load(tmp_path / "run").steps


@pytest.mark.slow
def test_ctrl_c_stops_all_after_a_checkpoint_and_resuming_says_that_it_is_not_exact(tmp_path):
    command = started(tmp_path)
    assert wait_until(lambda: list(tmp_path.glob("run/steps/part-r1-*")), 120)
    command.send_signal(signal.SIGINT)
    said = command.communicate(timeout=60)[1]
    assert command.returncode == 130, said
    assert wait_until(lambda: not left_of(tmp_path), 20)
    run = laptime.load(tmp_path / "run")
    before = Counter(step.rank for step in run.steps if step.stage == "train")
    assert run.status == "interrupted"
    assert (run.path / "checkpoint" / "last.pt").exists()
    steps = max(before.values()) + 50
    again = started(tmp_path, "--resume", steps=steps)
    said = again.communicate(timeout=120)[1]
    assert again.returncode == 0, said
    assert said.count("resuming is not exact with strategy asynchronous") == 1
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert set(Counter((step.rank, step.step) for step in run.steps).values()) == {1}
