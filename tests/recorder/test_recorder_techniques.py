"""The recorder on what networks and trainings do besides the ordinary: each moment goes where it belongs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import laptime
from laptime.recorder.backends import FakeClock
from tests.recorder.cases import Twice, tokens
from tests.recorder.loops import Net, Tick, batches, rows, sgd, train_step


def test_a_network_without_parameters_is_one_layer(tmp_path):
    network = nn.Sequential(nn.ReLU(), nn.Softmax(dim=-1))
    with laptime.record(network, out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(3)):
            network(x)
    assert [layer.name for layer in recording.run.network] == ["(Sequential)"]
    assert rows(recording.run, layer="(Sequential)", phase="forward")


def test_frozen_layers_get_no_backward_and_no_update(tmp_path):
    network = Net()
    network.first.requires_grad_(False)
    network.norm.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)
    assert {row["phase"] for row in rows(recording.run, layer="first")} == {"forward"}
    assert {row["phase"] for row in rows(recording.run, layer="last")} == {"forward", "backward", "update"}
    assert [layer.trainable for layer in recording.run.network] == [False, True]


def test_a_module_used_twice_has_two_calls_and_its_tied_weight_one_owner(tmp_path):
    network = Twice()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for _ in recording.steps(range(3)):
            F.cross_entropy(network(tokens()), torch.zeros(2, dtype=torch.long)).backward()
            optimizer.step()
    layers = {layer.name: layer for layer in recording.run.network}
    assert {row["calls"] for row in rows(recording.run, layer="shared", phase="forward")} == {2}
    assert layers["out"].parameters == 0
    assert layers["embed"].parameters == 80
    assert sum(layer.parameters for layer in layers.values()) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_charges_recomputation_to_the_backward_of_its_layer(reentrant, tmp_path):
    clock = FakeClock()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(8, 8)
            self.inner = nn.Sequential(
                nn.Linear(8, 8), Tick(clock, 1.0), nn.Linear(8, 8), Tick(clock, 2.0), nn.Tanh()
            )
            self.after = nn.Linear(8, 5)

        def forward(self, x):
            return self.after(checkpoint(self.inner, self.before(x), use_reentrant=reentrant))

    network = Checkpointed()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, clock=clock) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)
    for layer, seconds in (("inner.0", 1.0), ("inner.2", 2.0)):
        for phase in ("forward", "backward"):
            found = rows(recording.run, layer=layer, phase=phase)
            assert [row["seconds"] for row in found] == pytest.approx([seconds] * 3), (layer, phase)
    for layer in ("before", "after"):
        assert sum(row["seconds"] for row in rows(recording.run, layer=layer)) == pytest.approx(0)


def test_autocast_with_a_gradient_scaler(tmp_path):
    network = Net()
    optimizer = sgd(network)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, y in recording.steps(batches(3)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(network(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert all(step.update_s > 0 and step.backward_s > 0 for step in recording.run.steps)
    assert recording.run.summary["named_share"] > 0.98


def test_a_closure_is_not_charged_to_the_update(tmp_path):
    clock = FakeClock()
    network = nn.Sequential(nn.Linear(8, 5), Tick(clock, 1.0))
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=3)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, clock=clock) as recording:
        for x, y in recording.steps(batches(2)):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                clock.advance(0.5)
                loss = F.cross_entropy(network(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    for step in recording.run.steps:
        assert step.update_s == 0
        assert step.forward_s == pytest.approx(2 * step.host_s)
        assert step.host_s >= 0.5


def test_a_gradient_penalty_inside_the_loss_is_backward_then_loss_again(tmp_path):
    network = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(3)):
            x.requires_grad_()
            score = network(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            (score.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    for step in recording.run.steps:
        assert step.loss_s > 0
        assert step.backward_s > 0


def test_a_forward_pass_that_raises_and_is_skipped_leaves_the_rest_to_the_host(tmp_path):
    clock = FakeClock()

    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x):
            x = self.first(x)
            if x.shape[0] == 3:
                raise ValueError("out of memory")
            return self.last(x)

    network = Fragile()
    optimizer = sgd(network)
    sizes = [6, 3, 6, 3, 6]
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, clock=clock) as recording:
        for x in recording.steps([torch.randn(size, 8) for size in sizes]):
            try:
                train_step(network, optimizer, (x, torch.zeros(len(x), dtype=torch.long)))
            except ValueError:
                clock.advance(1.0)
    assert [step.host_s for step in recording.run.steps] == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_many_forward_passes_in_one_step_cost_the_same_each(tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run") as recording, recording.step():
        for _ in range(300):
            network(torch.randn(4, 8))
        assert len(recording.hooks.networks[0].division.calls) == 4  # the root and its three modules
    assert len(recording.run.steps) == 1
