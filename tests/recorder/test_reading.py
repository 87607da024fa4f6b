"""The workload of a recorded loop: what is read of its first training step, and that nothing else changes."""

import json
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import laptime
from laptime.model import Phase, Workload
from laptime.recorder import live_workload


def a_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


def cross_entropy(network, batch):
    return functional.cross_entropy(network(batch[0]), batch[1])


def images(count=4, size=6):
    torch.manual_seed(1)
    return [(torch.randn(size, 3, 8, 8), torch.randint(10, (size,))) for _ in range(count)]


def recorded(out, network, batches, loss=cross_entropy, make=None, **options):
    """The run of a plain training loop."""
    optimizer = (make or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))(network.parameters())
    with laptime.record(network, optimizer, out=out, **options) as recording:
        for batch in recording.steps(batches):
            assert not _get_current_dispatch_mode_stack()
            loss(network, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recording.run


def workload(run):
    return Workload.load(run.path / "workload.json")


def test_a_run_keeps_the_operations_that_tracing_its_network_gives(tmp_path):
    network, batches = a_network(), images()
    read = workload(recorded(tmp_path / "run", network, batches))
    traced = laptime.workload(network, example=batches[0], loss=cross_entropy)

    def told(found):
        kept = (one for one in found.operations if one.name != "aten.ones_like")  # the gradient of the loss
        return Counter((one.name, one.phase, one.layer, str(dict(one.sizes)), one.moved) for one in kept)

    assert told(read) == told(traced)
    assert (read.layers, read.batch, read.mode) == (traced.layers, 6, "training")
    assert read.memory.activations == traced.memory.activations
    assert read.memory.peak == pytest.approx(traced.memory.peak, rel=0.01)


def test_recording_leaves_the_weights_what_they_would_be(tmp_path):
    plain, watched = a_network(), a_network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in images():
        cross_entropy(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    recorded(tmp_path / "run", watched, images())
    pairs = zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_only_the_first_training_step_is_read(tmp_path, monkeypatch):
    seen = []
    look = live_workload.StepReader._see
    monkeypatch.setattr(
        live_workload.StepReader, "_see", lambda self, *args: (seen.append(args[0]), look(self, *args))
    )
    recorded(tmp_path / "one", a_network(), images(1))
    once = len(seen)
    recorded(tmp_path / "many", a_network(), images(5), every_step=True)
    assert once
    assert len(seen) == 2 * once


def test_the_optimizer_is_the_loops_own(tmp_path):
    run = recorded(tmp_path / "run", a_network(), images(), make=lambda p: torch.optim.AdamW(p))
    updates = workload(run).phase(Phase.UPDATE)
    assert {one.name for one in updates} == {"optimizer.adamw"}
    assert {one.layer for one in updates} == {"0", "4"}


def test_a_loop_whose_optimizer_is_not_known_has_no_update_and_says_so(tmp_path):
    network = a_network()
    with laptime.record(network, out=tmp_path / "run") as recording:
        for batch in recording.steps(images()):
            cross_entropy(network, batch).backward()
    read = workload(recording.run)
    assert not read.phase(Phase.UPDATE)
    assert "no optimizer" in read.notes[0]


def test_attention_and_recurrent_layers_are_one_operation_on_the_cpu_too(tmp_path):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(16, 16, batch_first=True)
            self.out = nn.Linear(16, 4)

        def forward(self, x):
            x, _ = self.recurrent(x)
            heads = x.view(len(x), -1, 2, 8).transpose(1, 2)
            attended = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return self.out(attended.transpose(1, 2).flatten(2).mean(1))

    batches = [(torch.randn(3, 5, 16), torch.randint(4, (3,))) for _ in range(2)]
    read = workload(recorded(tmp_path / "run", Reader(), batches))
    found = {one.kind: one.sizes for one in read.operations}
    assert found["attention"] == {"b": 3, "h": 2, "s": 5, "t": 5, "d": 8, "causal": 1}
    assert found["attention_backward"] == found["attention"]
    assert {"b": 3, "s": 5, "i": 16, "h": 16, "gates": 4}.items() <= found["recurrent"].items()
    assert found["recurrent_backward"] == found["recurrent"]
    assert not read.uncovered


def test_autocast_is_told_by_what_most_products_are_computed_in(tmp_path):
    def low(network, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(network, batch)

    assert workload(recorded(tmp_path / "run", a_network(), images(), low)).precision == "bf16"


def test_forward_passes_alone_make_a_workload_of_inference(tmp_path):
    network = a_network().eval()
    with laptime.record(network, out=tmp_path / "run") as recording, torch.no_grad():
        for batch, _ in recording.steps(images(), stage="validation"):
            network(batch)
    read = workload(recording.run)
    assert read.mode == "inference"
    assert {one.phase for one in read.operations} == {Phase.FORWARD}


def test_training_is_read_after_a_validation_that_comes_first(tmp_path):
    network, batches = a_network(), images()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with laptime.record(network, optimizer, out=tmp_path / "run") as recording:
        network.eval()
        with torch.no_grad():
            for batch, _ in recording.steps(batches[:2], stage="validation"):
                network(batch)
        network.train()
        for batch in recording.steps(batches):
            cross_entropy(network, batch).backward()
            optimizer.step()
    assert workload(recording.run).mode == "training"


@pytest.mark.parametrize(
    ("hindrance", "reason"),
    [
        ("mode", "another dispatch mode or transform of torch is on"),
        ("fault", "cannot be read (RuntimeError)"),
        ("many", "cannot be read (OverflowError)"),
        ("compiled", "torch.compile is in use"),
    ],
)
def test_what_cannot_be_read_leaves_a_reason_and_a_whole_run(tmp_path, monkeypatch, hindrance, reason):
    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def broken(*_):
        raise RuntimeError("ours")

    if hindrance == "fault":
        monkeypatch.setattr(live_workload, "translated", broken)
    if hindrance == "many":
        monkeypatch.setattr(live_workload, "MOST", 3)
    if hindrance == "compiled":
        monkeypatch.setattr(live_workload, "compiles", lambda: True)

    def loss(network, batch):
        with Other() if hindrance == "mode" else nullcontext():
            return cross_entropy(network, batch)

    run = recorded(tmp_path / "run", a_network(), images(), loss)
    assert run.status == "finished"
    assert len(run.steps) == 4
    assert not (run.path / "workload.json").exists()
    assert reason in json.loads((run.path / "run.json").read_text())["summary"]["workload"]["reason"]


def test_a_forward_pass_that_raises_and_is_caught_takes_the_mode_off(tmp_path):
    network = a_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with laptime.record(network, optimizer, out=tmp_path / "run") as recording:
        for batch in recording.steps(images()):
            with pytest.raises(RuntimeError):
                network(batch[0][:, :2])
            assert not _get_current_dispatch_mode_stack()
            cross_entropy(network, batch).backward()
            optimizer.step()
    assert recording.run.summary["workload"] == {"read": False, "reason": "its forward pass raised"}


def test_recomputed_layers_are_read_twice(tmp_path):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
            self.last = nn.Linear(8, 4)

        def forward(self, x):
            return self.last(checkpoint(self.inner, x, use_reentrant=False))

    batches = [(torch.randn(4, 8, requires_grad=True), torch.randint(4, (4,))) for _ in range(2)]
    read = workload(recorded(tmp_path / "run", Saving(), batches))
    assert sum(one.name == "aten.addmm" for one in read.operations) == 3
