"""What the recorder cannot do it refuses, in one line and without a trace."""

import pytest
import torch
from torch import nn

import laptime
from laptime.errors import (
    AlreadyRecording,
    ForeignOptimizer,
    RecordingError,
    RunExists,
    UnknownGranularity,
    UnsupportedDevice,
)
from laptime.recorder.backends import backend_of
from tests.recorder.loops import Net, batches, hooks, sgd, torch_is_untouched, train_step


def test_a_second_recording_at_once_is_refused_and_the_first_goes_on(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "one") as recording:
        for number, batch in enumerate(recording.steps(batches(3))):
            train_step(network, optimizer, batch)
            if number == 0:
                with pytest.raises(AlreadyRecording, match="end it before"):
                    laptime.record(Net(), out=tmp_path / "two").start()
    assert len(recording.run.steps) == 3
    assert not (tmp_path / "two").exists()


def test_an_optimizer_of_another_network_is_refused(tmp_path):
    with pytest.raises(ForeignOptimizer, match="no parameter of the network"):
        laptime.record(Net(), sgd(Net()), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((42,), "takes a module"),
        (({"a": 1},), "not an nn.Module"),
        ((Net(), "adam"), "not a torch optimizer"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments, words, tmp_path):
    with pytest.raises(RecordingError, match=words) as caught:
        laptime.record(*arguments, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_network_inside_another_is_refused(tmp_path):
    network = Net()
    with pytest.raises(RecordingError, match="is part of network 'whole'"):
        laptime.record({"whole": network, "part": network.first}, out=tmp_path / "run").start()
    assert not (tmp_path / "run").exists()
    assert torch_is_untouched()


def test_a_network_that_runs_as_copies_in_threads_is_refused(tmp_path):
    network = nn.DataParallel(Net())
    network.device_ids = [0, 1]
    with pytest.raises(RecordingError, match="DistributedDataParallel"):
        laptime.record(network, out=tmp_path / "run").start()
    assert hooks(network) == 0
    assert torch_is_untouched()


@pytest.mark.parametrize("layers", [{}, {"a": "nowhere"}, "leyer", -1])
def test_a_refused_division_leaves_the_directory_to_the_corrected_call(layers, tmp_path):
    network = Net()
    with pytest.raises(UnknownGranularity), laptime.record(network, out=tmp_path / "run", layers=layers):
        pass
    assert not (tmp_path / "run").exists()
    assert hooks(network) == 0
    assert torch_is_untouched()
    with laptime.record(network, out=tmp_path / "run"):
        pass


def test_an_existing_run_is_never_overwritten(tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run"):
        pass
    with pytest.raises(RunExists), laptime.record(network, out=tmp_path / "run"):
        pass
    assert torch_is_untouched()


def test_mps_gets_one_clear_line():
    with pytest.raises(UnsupportedDevice, match="cannot time 'mps'"):
        backend_of(torch.device("mps"))


@pytest.mark.parametrize("kernels", [[-3], "abc", 5])
def test_steps_to_trace_are_checked(kernels, tmp_path):
    with pytest.raises(RecordingError, match="kernels="):
        laptime.record(Net(), out=tmp_path / "run", kernels=kernels)


@pytest.mark.parametrize(
    ("values", "words"),
    [({"loss": torch.ones(3)}, "takes one number"), ({"accuracy": 1.0}, "loss, top1, topn")],
)
def test_log_leaves_out_what_it_cannot_keep_and_says_so_once(values, words, tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run") as recording:
        with pytest.warns(UserWarning, match=words):
            recording.log(**values)
        recording.log(**values)  # a second warning would raise here
