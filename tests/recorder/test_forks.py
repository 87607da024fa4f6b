"""A fork of a process that records leaves the run alone: only the process that opened it writes to it."""

import math
import multiprocessing
import os
import sys

import pytest

import laptime
from laptime.recorder.recorder import Recorder
from laptime.runs import load
from tests.recorder.loops import Net, batches, hooks, sgd, train_step

# torch's own threads make Python 3.12 and later warn of any fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

STEPS = 300


def _forked(work):
    """The exit status of a child that does `work`, and never comes back into pytest."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            work()
            status = 98
        except SystemExit as stop:
            status = stop.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _written(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_child_that_exits_inside_the_recording_does_not_end_it(tmp_path):
    network = Net()
    optimizer = sgd(network)
    statuses = []

    def leave():
        recording.__exit__(SystemExit, SystemExit(3), None)  # as `with` does
        assert hooks(network) == 0
        sys.exit(3)

    # Only the child could write meanwhile: the parent does so when it is told to.
    with Recorder(network, optimizer, out=tmp_path / "run", every_step=True, flush_s=math.inf) as recording:
        for number, batch in enumerate(recording.steps(batches(STEPS))):
            train_step(network, optimizer, batch)
            if number in (10, 150, 290):
                recording.flush()
                before = _written(tmp_path / "run")
                statuses.append(_forked(leave))
                assert {file: _written(tmp_path / "run").get(file) for file in before} == before
    assert statuses == [3, 3, 3]
    run = recording.run
    assert run.status == "finished"
    assert [step.step for step in run.steps] == list(range(STEPS))


def test_a_fork_through_the_with_statement_leaves_the_run_to_its_parent(tmp_path):
    """The whole script once in a child of the test, where `os.fork` and `sys.exit` do as in a user's."""

    def script():
        network = Net()
        optimizer = sgd(network)
        parent = os.getpid()
        try:
            with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
                for number, batch in enumerate(recording.steps(batches(STEPS))):
                    train_step(network, optimizer, batch)
                    if number == 100 and os.fork() == 0:
                        sys.exit(3)
        finally:
            if os.getpid() != parent:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
        sys.exit(0)

    assert _forked(script) == 0
    run = load(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("finished", STEPS)


def test_a_child_goes_on_training_without_recording(tmp_path):
    network = Net()
    optimizer = sgd(network)

    def train_on():
        for batch in recording.steps(batches(20)):
            train_step(network, optimizer, batch)
        recording.flush()
        assert load(tmp_path / "run").status == "running"
        recording.stop()
        recording.stop()
        sys.exit(7)

    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(5)):
            train_step(network, optimizer, batch)
        assert _forked(train_on) == 7
        for batch in recording.steps(batches(5)):
            train_step(network, optimizer, batch)
    assert [step.step for step in recording.run.steps] == list(range(10))


def test_a_child_of_multiprocessing_that_exits_leaves_the_run_alone(tmp_path):
    network = Net()
    optimizer = sgd(network)

    def leave():
        with recording:
            sys.exit(5)

    def leave_by_stop():
        recording.stop()
        sys.exit(6)

    context = multiprocessing.get_context("fork")
    codes = []
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for number, batch in enumerate(recording.steps(batches(50))):
            train_step(network, optimizer, batch)
            if number == 20:
                for work in (leave_by_stop, leave):
                    child = context.Process(target=work)
                    child.start()
                    child.join()
                    codes.append(child.exitcode)
    assert codes[0] == 6
    assert recording.run.status == "finished"
    assert [step.step for step in recording.run.steps] == list(range(50))


def test_every_call_of_a_writer_does_nothing_in_a_fork(tmp_path):
    from tests.runs.samples import a_network, add_steps, start

    writer = start(tmp_path / "run")
    add_steps(writer, range(3))

    def meddle():
        writer._memory.acquire()  # as if another thread had held it when the process forked
        writer._disk.acquire()
        add_steps(writer, range(3, 5))
        writer.network(a_network(["conv"]))
        writer.update(summary={"a": 1})
        writer.checkpoint_failed("no")
        writer.flush()
        writer.close("failed")
        sys.exit(0)

    assert _forked(meddle) == 0
    writer.close("finished")
    run = load(tmp_path / "run")
    assert (run.status, len(run.steps), run.summary, run.network) == ("finished", 3, {}, ())
