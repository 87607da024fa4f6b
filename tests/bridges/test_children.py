"""`laptime run` and processes beside the first one: ranks, children that train, and helpers that do not."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.recorder.two_ranks import free_port, has_gloo
from tests.runs.samples import a_step

import laptime
from laptime.bridges import ranks
from laptime.bridges.ranks import Launched, Seat, current_rank, launched
from laptime.bridges.scripts.run import SharedRun
from laptime.errors import NotJoined, RunExists
from laptime.runs import RunWriter, schema

SCRIPT = Path(__file__).parent / "scripts" / "ranks.py"
PACKAGES = Path(laptime.__file__).resolve().parents[1]
STARTUP = PACKAGES / "laptime" / "bridges" / "scripts" / "startup"
PYTHON = [sys.executable]
LAPTIME = [*PYTHON, "-m", "laptime", "run"]

gloo = pytest.mark.skipif(not has_gloo(), reason="this build of torch has no gloo to connect ranks with")


def torchrun(*words):
    options = ["--nproc-per-node", "2", "--master-port", str(free_port())]
    return ["-m", "torch.distributed.run", *options, *map(str, words)]


def called(words, folder, status=0, **variables):
    given = {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(PACKAGES),  # the laptime under test, wherever the process runs
    }
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env=os.environ | given | variables,
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done


def unrecorded(folder):
    """The script without laptime. Where gloo aborts at the end of a process (a busy machine), once more."""
    for _ in range(3):
        with suppress(AssertionError):
            return called([*PYTHON, *torchrun(SCRIPT)], folder)
    return called([*PYTHON, *torchrun(SCRIPT)], folder)


def steps(run):
    return Counter(step.rank for step in run.steps)


def waited_s(run, rank):
    return sum(step.communication_s for step in run.steps if step.rank == rank and step.step > 0)


@gloo
def test_ranks_that_each_run_under_laptime_share_one_run(tmp_path):
    done = called([*PYTHON, *torchrun("--no-python", *LAPTIME, SCRIPT)], tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    run = laptime.load(path)
    assert steps(run) == {0: 5, 1: 5}
    assert waited_s(run, 0) > 0.3 > waited_s(run, 1)
    assert done.stderr.count("laptime: the run is in") == 1
    assert "of 2 ranks" in done.stderr
    assert len((path / "csv" / "iterations.csv").read_text().splitlines()) == 11


@gloo
def test_ranks_of_a_launcher_under_laptime_are_one_run(tmp_path):
    called([*LAPTIME, "--out", "run", *torchrun(SCRIPT)], tmp_path)
    run = laptime.load(tmp_path / "run")
    assert steps(run) == {0: 5, 1: 5}
    assert run.status == "finished"
    assert waited_s(run, 0) > 0.3 > waited_s(run, 1)


@gloo
@pytest.mark.slow
@pytest.mark.parametrize("outer", ["laptime", "accelerate"])
def test_ranks_that_accelerate_launches_are_one_run(outer, tmp_path):
    pytest.importorskip("accelerate")
    # Its other launchers start one process on a machine without GPUs; the script asks for the CPU.
    options = ["--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--mixed_precision", "no"]
    options += ["--dynamo_backend", "no", "--main_process_port", free_port()]
    launch, script = ["-m", "accelerate.commands.launch", *options], SCRIPT.with_name("accelerated.py")
    if outer == "laptime":
        called([*LAPTIME, "--out", "run", *launch, script], tmp_path)
    else:
        called([*PYTHON, *launch, "--no_python", *LAPTIME, "--out", "run", script], tmp_path)
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert steps(run) == {0: 6, 1: 6}


@gloo
@pytest.mark.slow
def test_workers_of_ray_train_are_one_run(tmp_path):
    pytest.importorskip("ray.train.torch", exc_type=ImportError, reason="ray[train] is not installed")
    # A cluster of its own, whatever else runs here; Ray Train keeps its results in the home directory.
    variables = {"RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    called([*LAPTIME, "--out", "run", SCRIPT.with_name("ray_train.py")], tmp_path, **variables)
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert steps(run) == {0: 5, 1: 5}


@gloo
@pytest.mark.slow
def test_ranks_that_a_script_spawns_are_one_run_and_learn_what_they_learn_unrecorded(tmp_path):
    done = called([*LAPTIME, "--out", "run", SCRIPT, "spawn"], tmp_path)
    run = laptime.load(tmp_path / "run")
    assert steps(run) == {0: 5, 1: 5}
    assert waited_s(run, 0) > 0.3 > waited_s(run, 1)
    assert sorted(done.stdout.splitlines()) == sorted(unrecorded(tmp_path).stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "forkserver"])
def test_children_that_train_on_their_own_are_recorded_and_a_failure_is_kept(kind, tmp_path):
    done = called([*LAPTIME, "--out", "run", SCRIPT, kind, "fails"], tmp_path, status=1)
    assert steps(laptime.load(tmp_path / "run")) == {0: 3, 1: 3}
    assert "RuntimeError: planted" in done.stderr


def test_a_process_that_makes_no_optimizer_is_left_alone_and_finds_its_own_sitecustomize(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = True")
    says = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__, 'laptime' in sys.modules)"
    search = os.pathsep.join([str(STARTUP), str(tmp_path)])
    done = called([*PYTHON, "-c", says], tmp_path, PYTHONPATH=search, LAPTIME_RUN="{}")
    assert done.stdout.split() == ["True", str(tmp_path / "sitecustomize.py"), "False"]
    assert done.stderr == ""


def test_a_child_that_cannot_be_recorded_trains_on(tmp_path):
    says = "import torch; torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1); print('trained')"
    search = os.pathsep.join([str(STARTUP), str(PACKAGES)])
    done = called([*PYTHON, "-c", says], tmp_path, PYTHONPATH=search, LAPTIME_RUN="{no json")
    assert done.stdout == "trained\n"
    assert done.stderr.startswith("laptime: process ")
    assert done.stderr.count("\n") == 1


def test_a_rank_has_one_seat_and_a_process_without_a_rank_the_first_that_is_free(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    first, second = (Seat(tmp_path) for _ in range(2))
    assert (first.take(), second.take()) == (0, 1)
    assert first.take() == 0  # it has it already
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(NotJoined, match="another process is rank 1"):
        Seat(tmp_path).take()
    Seat(tmp_path).wait(0.01)  # others still write: not for ever
    first.leave()
    second.leave()
    Seat(tmp_path).wait(100)


def test_the_first_rank_to_come_chooses_the_directory_of_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "attempt_0"
    folder.mkdir()
    both = [Launched(rank=rank, folder=folder) for rank in range(2)]
    places = [one.place(None, "script") for one in both]
    assert places[0] == places[1]
    places[0].mkdir(parents=True)
    assert both[1].place(None, "script") == places[0]
    assert both[0].place(tmp_path / "given", "script") == tmp_path / "given"
    with pytest.raises(NotJoined, match="give --out"):
        Launched(rank=2, folder=folder, far=True).place(None, "script")


def test_launchers_tell_their_processes_apart(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert (launched(), current_rank()) == (None, None)
    told = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(rank=3, job="slurm-17-2")
    assert current_rank() == 3


def test_a_rank_that_joins_late_still_gets_its_rows_in(tmp_path):
    first = RunWriter.create(tmp_path / "run", config={}, environment={})
    first.close()
    with pytest.raises(RunExists):
        RunWriter.create(tmp_path / "run", config={}, environment={}, rank=1)
    late = RunWriter.create(tmp_path / "run", config={}, environment={}, rank=1, joins=True)
    late.append("steps", schema.steps.table([a_step(0, rank=1)]))
    late.close()
    assert steps(laptime.load(tmp_path / "run")) == {1: 1}
    assert len((tmp_path / "run" / "csv" / "iterations.csv").read_text().splitlines()) == 2


@pytest.fixture
def as_rank(monkeypatch):
    """This process as one rank of two after the other, with a store that both see."""
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    store = dist.HashStore()

    def become(rank):
        if dist.is_initialized():
            dist.destroy_process_group()
        monkeypatch.setattr(ranks, "_recordings", count())
        dist.init_process_group("fake", store=store, rank=rank, world_size=2)

    yield become
    dist.destroy_process_group()


def test_ranks_write_where_rank_0_does_unless_they_were_given_a_place_of_their_own(as_rank, tmp_path):
    as_rank(0)
    assert ranks.join_first(tmp_path / "run", tmp_path / "default") == (tmp_path / "run", 0)
    as_rank(1)
    assert ranks.follow_first(tmp_path / "default") == (tmp_path / "run", 1)
    as_rank(1)
    assert ranks.join_first(tmp_path / "run", tmp_path / "default") == (tmp_path / "run", 1)
    as_rank(1)
    assert ranks.join_first(tmp_path / "mine", tmp_path / "default") == (tmp_path / "mine", 0)


def test_a_rank_does_not_wait_for_ever_for_the_first(as_rank, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "LIMIT_S", 0.05)
    as_rank(1)
    with pytest.raises(NotJoined, match="rank 1 is not recorded"):
        ranks.follow_first(tmp_path / "run")


def test_rows_of_other_ranks_are_a_run_though_the_first_never_trained(tmp_path):
    writer = RunWriter.create(tmp_path / "run", config={}, environment={}, rank=1)
    writer.append("steps", schema.steps.table([a_step(0, rank=1)]))
    writer.close()
    shared = SharedRun(out=tmp_path / "run", folder=tmp_path, options={"config": {"script": "x.py"}})
    shared.complete("finished")
    run = laptime.load(tmp_path / "run")
    assert (steps(run), run.status, run.config) == ({1: 1}, "finished", {"script": "x.py"})


def test_processes_that_could_not_be_recorded_are_counted_by_reason(tmp_path):
    for number, reason in enumerate(["this", "this", "that"]):
        (tmp_path / f"laptime-unrecorded-{number}").write_text(reason)
    assert SharedRun(out=tmp_path, folder=tmp_path, options={}).unrecorded() == [
        "2 child processes trained and were not recorded: this",
        "1 child process trained and was not recorded: that",
    ]
