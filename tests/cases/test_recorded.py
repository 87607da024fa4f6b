"""`laptime.record` around networks and transforms that hide storages, shapes or gradients."""

import copy

import pytest
import torch
from torch import nn

import laptime

STEPS = 4


def plain(network, optimizer):
    network(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def by_functional_gradients(network, optimizer):
    def total(weights, inputs):
        return torch.func.functional_call(network, weights, (inputs,)).sum()

    torch.func.grad(total)(dict(network.named_parameters()), torch.randn(2, 4))


def by_vmap(network, optimizer):
    torch.func.vmap(network)(torch.randn(3, 2, 4)).sum().backward()
    optimizer.step()


def after_a_forward_mode_derivative(network, optimizer):
    torch.func.jvp(network, (torch.randn(2, 4),), (torch.randn(2, 4),))
    plain(network, optimizer)


def after_a_hessian(network, optimizer):
    torch.autograd.functional.hessian(lambda inputs: network(inputs).sum(), torch.randn(1, 4))
    plain(network, optimizer)


def with_sparse_gradients(network, optimizer):
    optimizer.zero_grad()
    for _ in range(2):
        network(torch.randint(0, 9, (3,))).sum().backward()
    optimizer.step()


class WithSparseBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.register_buffer("graph", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.head(torch.sparse.mm(self.graph, x.t()).t())


def two_layers():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def lazy():
    return nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))


def embedded():
    return nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, for forward mode
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (two_layers, plain),
        (two_layers, by_functional_gradients),
        (two_layers, by_vmap),
        (two_layers, after_a_forward_mode_derivative),
        (two_layers, after_a_hessian),
        (embedded, with_sparse_gradients),
        (lazy, plain),
        (WithSparseBuffer, plain),
    ],
)
def test_a_recorded_training_gives_the_same_weights(make, step, tmp_path):
    torch.manual_seed(0)
    bare = make()
    recorded = copy.deepcopy(bare)
    _train(bare, step, range(STEPS))
    optimizer = torch.optim.SGD(recorded.parameters(), 0.1)
    torch.manual_seed(1)
    with laptime.record(recorded, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for _ in recording.steps(range(STEPS)):
            step(recorded, optimizer)
    assert len(recording.run.steps) == STEPS
    for ours, theirs in zip(recorded.parameters(), bare.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def _train(network, step, batches):
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    torch.manual_seed(1)
    for _ in batches:
        step(network, optimizer)
