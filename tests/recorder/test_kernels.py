"""The kernel tier on the CPU: what traced steps say of layers, busy and idle time, memory, and the detach."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laptime
from laptime.recorder.kernel_trace import KernelTracer
from tests.recorder.loops import hooks, rows, torch_is_untouched


@pytest.fixture(autouse=True)
def _no_profiler_is_left_running():
    yield
    assert not torch.autograd._profiler_enabled()
    assert torch_is_untouched()


class Net(nn.Module):
    """A convolution with its norm, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 14 * 14, 5)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def train(tmp_path, steps=12, raises_at=None, **options):
    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    with laptime.record(network, optimizer, out=tmp_path / "run", **options) as recording:
        for number in recording.steps(range(steps)):
            x = torch.randn(4, 3, 16, 16)
            F.cross_entropy(network(x), torch.zeros(4, dtype=torch.long)).backward()
            if number == raises_at:
                raise ValueError("boom")
            optimizer.step()
            optimizer.zero_grad()
    assert hooks(network) == 0
    return recording.run


def kernels(run, **wanted):
    return [
        row for row in run.kernel_table.to_pylist() if all(row[key] == value for key, value in wanted.items())
    ]


def test_operators_are_charged_to_the_layers_that_ran_them(tmp_path):
    run = train(tmp_path, kernels=[3, 4], every_step=True)
    names = {
        (layer, phase): {row["name"] for row in kernels(run, layer=layer, phase=phase)}
        for layer in ("conv", "head", "(loss)")
        for phase in ("forward", "backward")
    }
    assert {"aten::convolution", "aten::native_batch_norm", "aten::relu"} <= names["conv", "forward"]
    assert "aten::convolution_backward" in names["conv", "backward"]
    assert "aten::addmm" in names["head", "forward"]
    assert "aten::mm" in names["head", "backward"]
    assert "aten::_log_softmax" in names["(loss)", "forward"]
    assert "aten::_log_softmax_backward_data" in names["(loss)", "backward"]
    everywhere = [row for row in kernels(run) if "convolution" in row["name"]]
    assert {row["layer"] for row in everywhere} == {"conv"}
    assert {row["kind"] for row in kernels(run)} == {"operator"}
    assert {row["step"] for row in kernels(run)} == {3, 4}
    assert "aten::add_" in {row["name"] for row in kernels(run, phase="update")}


def test_traced_steps_balance_and_split_busy_from_idle(tmp_path):
    run = train(tmp_path, kernels=[3, 4], every_step=True)
    for step in run.steps:
        seconds = [value for value in step.accounts().values() if value is not None]
        assert sum(seconds) == pytest.approx(step.wall_s, abs=1e-7)
        assert (step.idle_s is not None) == (step.step in (3, 4))
        if step.idle_s is not None:
            assert 0 < step.idle_s < step.wall_s
    for row in rows(run):
        traced = row["step"] in (3, 4)
        assert (row["busy_s"] is not None) == (row["idle_s"] is not None) == traced
        if traced:
            assert 0 <= row["busy_s"] <= row["seconds"] + 1e-12
            assert row["busy_s"] + row["idle_s"] == pytest.approx(row["seconds"])
    idle = {step.step: step.idle_s for step in run.steps}
    for number in (3, 4):
        assert sum(row["idle_s"] for row in rows(run, step=number)) == pytest.approx(idle[number], rel=1e-6)


def test_traced_steps_tell_memory(tmp_path):
    run = train(tmp_path, kernels=[3], every_step=True)
    assert all(row["memory_bytes"] > 0 for row in rows(run, step=3, layer="conv"))
    assert all(row["memory_bytes"] is None for row in rows(run, step=5))
    layers = {layer.name: layer for layer in run.network}
    assert layers["conv"].activation_bytes > 4 * 8 * 14 * 14 * 4  # its output, and what its norm keeps
    assert layers["conv"].peak_bytes >= layers["conv"].activation_bytes


@pytest.mark.parametrize("every_step", [True, False])
def test_the_summary_verifies_the_detach_and_reconciles_the_tiers(every_step, tmp_path):
    run = train(tmp_path, steps=250, kernels=[120, 121], every_step=every_step)
    found = run.summary["kernels"]
    assert found["steps"] == [120, 121]
    assert found["dropped"] == 0
    assert found["detach"]["steps"] in (["marked"] if every_step else ["bare", "marked"])
    assert 0 < found["detach"]["low"] <= found["detach"]["ratio"] <= found["detach"]["high"]
    assert found["reconciliation"]["busy_share"] > 0
    assert found["reconciliation"]["spans_apart"] >= 0


def test_without_a_trace_the_summary_says_nothing_of_kernels(tmp_path):
    run = train(tmp_path)
    assert run.summary["kernels"] is None
    assert run.kernel_table.num_rows == 0


def test_the_first_step_can_be_traced(tmp_path):
    """Its layers are only being found: marks of norms and activations must go to the layers before them."""
    run = train(tmp_path, kernels=[0, 1], every_step=True)
    assert {row["layer"] for row in kernels(run)} == {"conv", "head", "(loss)", "(other)"}
    assert "aten::native_batch_norm" in {row["name"] for row in kernels(run, step=0, layer="conv")}
    assert [step.step for step in run.steps if step.idle_s is not None] == [0, 1]


def test_steps_between_two_traced_ones_are_not_charged_to_the_first(tmp_path):
    run = train(tmp_path, kernels=[3, 5], every_step=True)
    assert {row["step"] for row in kernels(run)} == {3, 5}
    assert {row["step"] for row in rows(run) if row["busy_s"] is not None} == {3, 5}
    for number in (3, 5):
        convolutions = kernels(run, step=number, name="aten::convolution")
        assert [row["layer"] for row in convolutions] == ["conv"]


def test_groups_of_traced_steps_far_apart_are_sessions_of_their_own(tmp_path):
    run = train(tmp_path, steps=20, kernels=[2, 9, 10, 17])
    assert [step.step for step in run.steps if step.idle_s is not None] == [2, 9, 10, 17]
    assert {row["step"] for row in kernels(run)} == {2, 9, 10, 17}


@pytest.mark.parametrize(("wanted", "traced"), [([12], []), ([11, 12, 13], [11]), ([99], [])])
def test_steps_past_the_end_of_the_loop_are_not_traced(wanted, traced, tmp_path):
    run = train(tmp_path, steps=12, kernels=wanted)
    assert len(run.steps) == 12
    assert [step.step for step in run.steps if step.idle_s is not None] == traced


@pytest.mark.parametrize("raises_at", [2, 3, 4])
def test_an_exception_while_tracing_leaves_no_profiler_running(raises_at, tmp_path):
    with pytest.raises(ValueError, match="boom"):
        train(tmp_path, kernels=[3, 4], raises_at=raises_at)
    assert not torch.autograd._profiler_enabled()
    run = laptime.load(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("failed", raises_at)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as ours:
        torch.ones(3).sum()
    assert any(event.key == "aten::sum" for event in ours.key_averages())


def test_a_trace_prints_nothing(tmp_path):
    code = """
import sys, torch, laptime
network = torch.nn.Linear(4, 4)
with laptime.record(network, out=sys.argv[1], kernels=[1, 4]) as recording:
    for _ in recording.steps(range(8)):
        network(torch.ones(2, 4)).sum().backward()
import os
assert "KINETO_LOG_LEVEL" not in os.environ
"""
    plain = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    found = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_a_script_that_profiles_itself_keeps_its_own_session(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as theirs:
        run = train(tmp_path, kernels=[3])
    assert len(run.steps) == 12
    assert run.kernel_table.num_rows == 0
    assert any("no kernels were traced" in note for note in run.summary["notes"])
    assert theirs.events()


def test_a_trace_that_cannot_be_written_is_noted_and_the_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    run = train(tmp_path, kernels=[3])
    assert len(run.steps) == 12
    assert any("a kernel trace was lost" in note for note in run.summary["notes"])


def test_steps_whose_trace_has_gaps_are_traced_again_after_the_last_of_them(tmp_path, monkeypatch):
    stop, sessions = KernelTracer._stop, []

    def stopped(tracer):
        events = stop(tracer)
        sessions.append(len(events))
        return [] if len(sessions) == 1 else events

    monkeypatch.setattr(KernelTracer, "_stop", stopped)
    run = train(tmp_path, steps=14, kernels=[3, 4, 5, 6])
    assert len(sessions) == 2
    assert run.summary["kernels"]["steps"] == [9]
