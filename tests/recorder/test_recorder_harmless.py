"""A recording changes nothing of the training, whatever happens to either of them."""

import copy
import gc
import pickle
import shutil
import threading

import pytest
import torch
import torch.nn.functional as F

import laptime
from laptime.recorder.breakdown import Breakdown
from tests.recorder.loops import Net, batches, hooks, rows, sgd, torch_is_untouched, train_step


def test_the_network_computes_the_same_with_and_without_the_recorder(tmp_path):
    def losses(record):
        torch.manual_seed(3)
        network = Net()
        optimizer = sgd(network)
        data = batches(5)
        if not record:
            return [train_step(network, optimizer, batch).item() for batch in data]
        with laptime.record(
            network, optimizer, out=tmp_path / "run", every_step=True, kernels=[2]
        ) as recording:
            return [train_step(network, optimizer, batch).item() for batch in recording.steps(data)]

    assert losses(record=False) == losses(record=True)


def test_the_recorder_keeps_no_graph_and_no_batch_alive(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            recording.log(loss=train_step(network, optimizer, batch))
        del batch
        gc.collect()
        alive = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.grad_fn is not None]
        assert alive == []


def test_copies_and_pickles_made_during_a_recording_carry_nothing_of_it(tmp_path):
    network = Net()
    with laptime.record(network, sgd(network), out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, sgd(network), batch)
            copies = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
            assert [hooks(one) for one in copies] == [0, 0]


def test_a_retained_graph_can_run_after_the_recording(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, y in recording.steps(batches(1)):
            loss = F.cross_entropy(network(x), y)
            loss.backward(retain_graph=True)
    marks = len(recording.timeline.owners)
    loss.backward()
    assert len(recording.timeline.owners) == marks


def test_other_threads_do_not_disturb_the_books(tmp_path):
    network, other = Net(), Net()
    optimizer = sgd(network)
    stop = threading.Event()

    def elsewhere():
        while not stop.is_set():
            F.cross_entropy(other(torch.randn(4, 8).to("cpu")), torch.zeros(4, dtype=torch.long)).backward()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
            for batch in recording.steps(batches(20)):
                train_step(network, optimizer, batch)
    finally:
        stop.set()
        thread.join()
    for step in recording.run.steps:
        assert step.copy_s == 0
        assert len(rows(recording.run, step=step.step, layer="first")) == 3


def test_the_thread_that_runs_the_loop_is_the_one_recorded(tmp_path):
    network = Net()
    optimizer = sgd(network)
    recording = laptime.record(network, optimizer, out=tmp_path / "run", every_step=True).start()

    def loop():
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    recording.stop()
    assert all(step.backward_s > 0 and step.loss_s > 0 for step in recording.run.steps)


def test_a_fault_of_the_recorder_does_not_end_the_training(tmp_path, monkeypatch):
    def broken(books, raws):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Breakdown, "close", broken)
    network = Net()
    optimizer = sgd(network)
    recording = laptime.record(network, optimizer, out=tmp_path / "run").start()
    losses = [train_step(network, optimizer, batch) for batch in recording.steps(batches(3))]
    with pytest.warns(UserWarning, match="could not be recorded"):
        recording.stop()
    assert len(losses) == 3
    assert any("please report" in note for note in recording.run.summary["notes"])
    assert hooks(network) == 0


def test_a_run_directory_that_vanishes_does_not_end_the_training(tmp_path):
    network = Net()
    optimizer = sgd(network)
    recording = laptime.record(network, optimizer, out=tmp_path / "run").start()
    for batch in recording.steps(batches(3)):
        train_step(network, optimizer, batch)
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(UserWarning, match="laptime:") as warned:
        recording.stop()
    told = [str(one.message) for one in warned]
    assert any("no summary could be made" in line for line in told)
    assert told[-1].endswith("3 of 3 steps were lost: the run directory was gone")
    assert hooks(network) == 0
    assert torch_is_untouched()
