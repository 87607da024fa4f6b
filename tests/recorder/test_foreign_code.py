"""What scripts and libraries do to torch, and with what laptime leaves there: all of it stays as it is."""

import copy
import gc
import weakref

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laptime
from laptime.bridges.scripts.discovery import ScriptRecorder
from tests.recorder.loops import Net, batches, sgd, torch_is_untouched, train_step


@pytest.fixture
def recorded(tmp_path):
    """Runs a loop bare and recorded, both as `record` and as `laptime run` do; returns the three results."""

    def both(loop):
        def in_a_script():
            with ScriptRecorder(tmp_path / "script", every_step=True).watching():
                return loop(lambda network, optimizer, steps: range(steps))

        def in_a_recording():
            recordings = []

            def steps(network, optimizer, number):
                recording = laptime.record(network, optimizer, out=tmp_path / "run", every_step=True).start()
                recordings.append(recording)
                return recording.steps(range(number))

            try:
                return loop(steps)
            finally:
                recordings[0].stop()

        found = loop(lambda network, optimizer, number: range(number)), in_a_recording(), in_a_script()
        assert torch_is_untouched()
        return found

    return both


def weights(network):
    return [parameter.detach().clone() for parameter in network.parameters()]


def equal(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def by_hand(network, x):
    return (network(x) - 1).pow(2).mean()


def loop_with(patch=None, optimizer_class=torch.optim.SGD, step=lambda optimizer, network, closure: None):
    def loop(steps):
        torch.manual_seed(0)
        network = Net()
        optimizer = optimizer_class(network.parameters(), lr=0.1)
        undo = patch() if patch is not None else lambda: None
        try:
            for _ in steps(network, optimizer, 4):
                loss = by_hand(network, torch.randn(4, 8))
                optimizer.zero_grad()
                loss.backward()
                step(optimizer, network, lambda *args, **kwargs: None)
                optimizer.step()
        finally:
            undo()
        return weights(network)

    return loop


def patched(owner, name, make):
    def patch():
        original = getattr(owner, name)
        mine = make(original)
        setattr(owner, name, mine)

        def undo():
            if name in vars(owner):
                setattr(owner, name, original)

        return undo

    return patch


@pytest.mark.parametrize(
    ("owner", "name", "make"),
    [
        (torch.Tensor, "backward", lambda original: lambda self, *args: original(self * 0.5, *args)),
        (torch.Tensor, "mean", lambda original: lambda self, *args: original(self, *args) * 2),
        (torch.Tensor, "pow", lambda original: lambda self, power: original(self, power) * 1.5),
        (F, "mse_loss", lambda original: lambda *args: original(*args) * 3),
    ],
    ids=["backward", "mean", "pow", "mse_loss"],
)
def test_a_scripts_own_patch_of_torch_is_called_once(owner, name, make, recorded):
    bare, recording, script = recorded(loop_with(patched(owner, name, make)))
    assert equal(bare, recording)
    assert equal(bare, script)


class Stepping(torch.optim.SGD):
    """Takes the network where others take a closure, and calls a closure with arguments of its own."""

    def update(self, model):
        for parameter in model.parameters():
            parameter.data.mul_(0.99)

    def step(self, closure=None):
        if isinstance(closure, nn.Module):
            self.update(closure)
            return None
        if closure is not None:
            closure(backward=True)
        return super().step()


@pytest.mark.parametrize("takes", ["network", "closure with arguments"])
def test_what_an_optimizer_takes_is_handed_on_as_it_is(takes, recorded):
    def step(optimizer, network, closure):
        optimizer.step(network if takes == "network" else closure)

    bare, recording, script = recorded(loop_with(optimizer_class=Stepping, step=step))
    assert equal(bare, recording)
    assert equal(bare, script)


HANDLED = {torch.Tensor.to: lambda tensor, *args: torch.Tensor.add(tensor, 1)}


class Shifted(torch.Tensor):
    """With a table of overrides, as torch's documentation has it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in HANDLED:
            return HANDLED[func](*args)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_class_finds_its_overrides(recorded):
    def loop(steps):
        torch.manual_seed(0)
        network = Net()
        for _ in steps(network, sgd(network), 3):
            shifted = torch.randn(4, 8).as_subclass(Shifted).to("cpu").as_subclass(torch.Tensor)
            optimizer = sgd(network)
            by_hand(network, shifted).backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(network)

    bare, recording, script = recorded(loop)
    assert equal(bare, recording)
    assert equal(bare, script)


def test_classes_of_a_script_can_be_saved_by_their_value(tmp_path):
    """As mlflow, Ray and joblib do: with `__main__`'s classes go their methods, and what these refer to."""
    space = {"__name__": "__main__", "nn": nn, "torch": torch}
    exec(
        "class Mine(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(8, 3)\n"
        "    def forward(self, x): return self.layer(x)\n"
        "class Optimizer(torch.optim.SGD): pass\n",
        space,
    )
    network = space["Mine"]()
    optimizer = space["Optimizer"](network.parameters(), lr=0.1)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(2)):
            network(x).sum().backward()
            optimizer.step()
            saved = [cloudpickle.dumps(one) for one in (network, optimizer, F.cross_entropy)]
    assert all(b"laptime" not in one for one in saved)


def test_a_recording_keeps_no_network_and_no_optimizer_alive(tmp_path):
    watcher = ScriptRecorder(tmp_path / "run", every_step=True)
    gone = []
    with watcher.watching():
        for _ in range(3):
            network = Net()
            optimizer = sgd(network)
            for batch in batches(2):
                train_step(network, optimizer, batch)
            gone += [weakref.ref(network), weakref.ref(optimizer)]
        del network, optimizer
        gc.collect()
        assert [one() for one in gone[:4]] == [None] * 4
    run = laptime.load(tmp_path / "run")
    assert len(run.steps) == 6
    assert {layer.parameters for layer in run.network} != {0}  # described while they were there


def test_a_clone_by_its_dictionary_computes_with_its_own_weights(tmp_path):
    """As meta-learning libraries clone: the clone must not call the original."""
    network = Net()
    with laptime.record(network, sgd(network), out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(2)):
            clone = network.__new__(type(network))
            clone.__dict__ = network.__dict__.copy()
            clone._modules = {name: copy.deepcopy(child) for name, child in network._modules.items()}
            with torch.no_grad():
                for parameter in clone.parameters():
                    parameter.zero_()
            assert clone(x).abs().sum() == 0
            network(x).sum().backward()


def test_validation_within_the_loop_over_training_batches_keeps_both_apart(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)
            for x, _ in recording.steps(batches(2), stage="validation"):
                with torch.no_grad():
                    network(x)
    steps = recording.run.steps
    assert "".join(step.stage[0] for step in steps) == "tvv" * 3
    assert [step.optimizer_step for step in steps if step.stage == "train"] == [1, 2, 3]
    assert len({step.samples for step in steps}) == 1


@pytest.mark.filterwarnings("ignore:laptime")
@pytest.mark.parametrize("value", ["text", [1.0], {}, 1j, 10**400, object(), torch.ones(2), torch.tensor(1j)])
def test_a_value_that_is_no_number_costs_no_step(value, tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(3)):
            network(x).sum().backward()
            recording.log(loss=value, top1=lambda: 1 / 0)
    assert [step.loss for step in recording.run.steps] == [None] * 3


def test_two_loaders_side_by_side_are_the_epochs_of_the_first(tmp_path):
    first = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=8)
    second = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=16)
    network = Net()
    optimizer = sgd(network)
    with ScriptRecorder(tmp_path / "run", every_step=True).watching():
        for _ in range(2):
            for (x,), (z,) in zip(first, second, strict=True):
                (network(x).sum() + network(z).sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
    steps = laptime.load(tmp_path / "run").steps
    assert [step.epoch for step in steps] == [0] * 3 + [1] * 3
    assert [step.samples for step in steps] == [8] * 6
