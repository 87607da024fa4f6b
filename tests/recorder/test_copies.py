"""A copy of a network that is made in the middle of a recorded step is a copy, and no more."""

import copy
import gc
import pickle
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.recorder.cases import Case
from tests.recorder.loops import hooks, torch_is_untouched
from tests.recorder.saved_networks import loss_of, rows
from tests.recorder.saving import RECORDINGS, bare, train

CALLED = []


class Counted(nn.Linear):
    """Tells who was called."""

    def forward(self, x):
        CALLED.append(id(self))
        return super().forward(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Counted(8, 16)
        self.middle = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU())
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.last = Counted(16, 5)

    def forward(self, x):
        CALLED.append(id(self))
        return self.last(self.recurrent(self.middle(self.first(x))[:, None])[0][:, 0])


def cloned(module):
    """A clone as learn2learn's `clone_module` makes it: `__dict__` copied, parameters replaced by clones."""
    clone = module.__new__(type(module))
    clone.__dict__ = module.__dict__.copy()
    clone._parameters = {name: one.clone() for name, one in module._parameters.items()}
    clone._buffers = {name: one.clone() for name, one in module._buffers.items()}
    clone._modules = {name: cloned(child) for name, child in module._modules.items()}
    if hasattr(clone, "flatten_parameters"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch looks for gradients of clones
            clone._apply(lambda x: x)
    return clone


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda network: pickle.loads(pickle.dumps(network)),
    "clone": cloned,
    "average": AveragedModel,
}
MOMENTS = ("hook 0", "forward 0", "hook 2", "loss 2", "update 2")


@pytest.fixture(autouse=True)
def _torch_is_left_alone():
    yield
    assert torch_is_untouched()


def training(how, act, out):
    CALLED.clear()
    return train(Case("counting", Counting, rows()), how, Path(out) / "run", act)


def use_copy(make, moment):
    """Train a copy with other weights for a step; returns what it gave before and after, and its weights."""
    network, given = moment.network, []
    before = {name: one.clone() for name, one in network.state_dict().items()}
    gradients = [None if one.grad is None else one.grad.clone() for one in network.parameters()]
    copied = make(network)
    assert hooks(copied) == 0
    with torch.no_grad():
        for one in copied.parameters():
            one.add_(0.1)
    parameters = list(copied.parameters())
    called = len(CALLED)
    output = copied(moment.batch)
    given.append(output.detach().clone())
    for one, gradient in zip(parameters, torch.autograd.grad(loss_of(output), parameters), strict=True):
        one.data.sub_(gradient)
    given.append(copied(moment.batch).detach().clone())
    own = {id(module) for module in network.modules()}
    assert CALLED[called:]
    assert own.isdisjoint(CALLED[called:])
    assert all(torch.equal(one, before[name]) for name, one in network.state_dict().items())
    for one, gradient in zip(network.parameters(), gradients, strict=True):
        assert (one.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(one.grad, gradient)
    return [*given, *(one.detach().clone() for one in copied.state_dict().values())]


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_computes_with_its_own_weights_and_leaves_the_original_alone(kind, recording, tmp_path):
    def results(how, out):
        found = {}

        def act(moment):
            if moment.name in MOMENTS:
                found[moment.name] = use_copy(COPIES[kind], moment)

        weights = training(how, act, tmp_path / out)
        return found, weights

    (found, weights), (expected, bare_weights) = (
        results(RECORDINGS[recording], "recorded"),
        results(bare, "b"),
    )
    assert found.keys() == expected.keys() == set(MOMENTS)
    for moment, tensors in found.items():
        assert all(map(torch.equal, tensors, expected[moment])), moment
    assert all(torch.equal(one, bare_weights[name]) for name, one in weights.items())


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_shallow_copy_with_a_layer_of_its_own_computes_with_it(recording, tmp_path):
    def act(moment):
        copied = copy.copy(moment.network)
        copied._modules = {**copied._modules, "last": Counted(16, 7)}
        called = len(CALLED)
        assert copied(moment.batch).shape == (6, 7)
        assert CALLED[called:] == [id(copied), id(moment.network.first), id(copied.last)]

    training(RECORDINGS[recording], act, tmp_path)


@pytest.mark.parametrize("recording", ["record", "run"])
@pytest.mark.parametrize("kind", COPIES)
def test_copies_that_a_step_makes_and_forgets_are_freed(kind, recording, tmp_path):
    made, alive = [], []

    def act(moment):
        if moment.name.startswith("forward"):
            copied = COPIES[kind](moment.network)
            loss_of(copied(moment.batch)).backward()
            made.append(weakref.ref(copied))
            del copied
            gc.collect()
            alive.append(sum(one() is not None for one in made))

    training(RECORDINGS[recording], act, tmp_path)
    assert max(alive) <= 1, alive  # the running step may still hold its own
