"""Boundaries of the backward pass: the quick way to them agrees with the walk, and knows when it cannot."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laptime
from laptime.recorder import autograd_graph
from laptime.recorder.autograd_graph import Boundary, Entries
from tests.recorder.cases import CASES


@pytest.fixture
def compared(monkeypatch):
    """Every answer without a walk is compared with the walk's; returns whether each pass had one."""
    known, answers = Entries.known, []

    def both(self, roots):
        quick = known(self, roots)
        answers.append(quick is not None)
        if quick is not None:
            walked = autograd_graph._by_owner(
                self._of_thread().codes, autograd_graph.highest_nodes(roots, self._of_thread().numbers)
            )
            assert quick == walked
        return quick

    monkeypatch.setattr(Entries, "known", both)
    return answers


def train(network, step, tmp_path, *, steps=5, **options):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, **options) as recording:
        for number in recording.steps(range(steps)):
            optimizer.zero_grad()
            step(number).backward()
            optimizer.step()
    return recording.run


@pytest.mark.parametrize("granularity", ["layer", "module"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_after_two_passes_no_graph_is_walked_any_more(case, granularity, compared, tmp_path):
    torch.manual_seed(0)
    network, batch = case.build(), case.batch()

    def step(_):
        output = case.call(network, batch)
        return F.cross_entropy(output, case.targets(output))

    train(network, step, tmp_path, layers=granularity)
    assert compared[1:] == [True] * 3


class Moody(nn.Module):
    """Two branches whose wiring changes from step to step while every layer makes as many nodes as before."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, crossed):
        left, right = self.a(x), self.b(x)
        return self.c(left) * right if crossed else self.c(right) * left


def test_wiring_that_changes_between_steps_is_noticed(compared, tmp_path):
    network = Moody()
    x = torch.randn(2, 4)
    run = train(network, lambda number: network(x, crossed=number % 3 == 0).sum(), tmp_path, steps=9)
    for phase in ("forward", "backward"):
        counts = {row["layer"]: 0 for row in run.layer_table.to_pylist()}
        for row in run.layer_table.to_pylist():
            counts[row["layer"]] += row["phase"] == phase
        assert {name: counts[name] for name in "abc"} == {"a": 9, "b": 9, "c": 9}


def test_a_boundary_calls_back_before_its_node_runs_and_changes_nothing():
    calls = []
    boundary = Boundary(lambda grad: calls.append(None if grad is None else grad.clone()))
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        x.grad = None
        y = x * 2
        boundary.put_on(y.grad_fn)
        (y * 3).sum().backward()
        assert x.grad.tolist() == [6, 6, 6]
    assert [grad.tolist() for grad in calls] == [[3, 3, 3]] * 2


def test_a_boundary_works_on_custom_functions():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            order.append("node")
            return grad * 2

    order = []
    x = torch.ones(3, requires_grad=True)
    y = Double.apply(x)
    Boundary(lambda _: order.append("boundary")).put_on(y.grad_fn)
    y.sum().backward()
    assert order == ["boundary", "node"]
