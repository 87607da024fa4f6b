"""Networks that are saved in the middle of a step.

Nothing here imports laptime unless a network of its zoo is built: the process that loads the files has none.
Annotations are not postponed: `torch.fx` wants types, not their names.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from tests.recorder.cases import CASES, Case, Recurrent, images, tokens, zoo


class KeepsFunctions(nn.Module):
    """Functions of torch as attributes, set before the training and again in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 5)
        self.act = torch.relu
        self.loss = F.cross_entropy
        self.smoothed = partial(F.cross_entropy, label_smoothing=0.1)
        self.move = torch.Tensor.to
        self.gradient = torch.autograd.grad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.set_meanwhile = F.cross_entropy
        self.others = [F.mse_loss, torch.Tensor.backward, torch.autograd.backward, nn.CrossEntropyLoss]
        return self.last(self.act(self.move(self.first(x), torch.float32)))


class KeepsMethods(KeepsFunctions):
    """Methods of tensors and calls of modules, bound and not, set in the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.methods = [torch.Tensor.to, torch.Tensor.cuda, self.first.__call__, nn.Linear.__call__]
        return super().forward(x)


class Scriptable(nn.Module):
    """What TorchScript compiles: a loss function called by name, one kept as an attribute, a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 5)
        self.penalty = F.mse_loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(F.relu(self.first(x)).to(torch.float32))
        return y + F.l1_loss(y, torch.zeros_like(y)) + self.penalty(y, torch.zeros_like(y))


class Convolves(nn.Module):
    """A plain network that every way of saving can take."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.last = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.first(x)).flatten(1))


class HoldsCriterion(nn.Module):
    """Criteria as children, one of them called in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 5)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.penalty = nn.MSELoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(torch.relu(self.first(x)))
        return y + self.penalty(y, torch.zeros_like(y))


class OwnState(nn.Module):
    """Says itself what is saved and how it is copied."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(8, width)
        self.last = nn.Linear(width, 5)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(torch.relu(self.first(x)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "calls": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnState":
        copied = type(self)(self.width)
        copied.load_state_dict(self.state_dict())
        return copied.train(self.training)


class OwnReduction(OwnState):
    """Is made anew from its arguments and its weights."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_anew, (self.width, copy.deepcopy(self.state_dict()), self.training)


def _made_anew(width: int, weights: dict[str, torch.Tensor], training: bool) -> OwnReduction:
    made = OwnReduction(width)
    made.load_state_dict(weights)
    return made.train(training)


class Averaged(nn.Module):
    """A network and the average of its weights, which is a deep copy, as a child."""

    def __init__(self) -> None:
        super().__init__()
        self.network = HoldsCriterion()
        self.average = AveragedModel(self.network)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.average.update_parameters(self.network)
        return self.network(x) + self.average(x).detach()


def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 5))


def spectral_normed() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 5))


def vgg(name: str) -> nn.Module:
    """A VGG with narrow linear layers, as `cases.alexnet`."""
    with torch.device("meta"):
        network = zoo(name, num_classes=5)()
    for index, inputs, outputs in ((0, 512 * 7 * 7, 16), (3, 16, 16), (6, 16, 5)):
        network.classifier[index] = nn.Linear(inputs, outputs)
    for layer in network.features:
        if isinstance(layer, nn.Conv2d):
            layer.to_empty(device="cpu").reset_parameters()
    return network


def rows(width: int = 8, count: int = 6) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(count, width)


def trees() -> torch.Tensor:
    return torch.randint(0, 3, (2, 7, 3))


ZOO = [
    Case("autoencoder", zoo("autoencoder"), rows(64)),
    Case("dbn", zoo("dbn"), rows(64)),
    Case("deconv", zoo("deconv"), images(16, 1)),
    Case("fcn5", zoo("fcn5", hidden=32, inputs=8, num_classes=5), rows()),
    Case("fcn8", zoo("fcn8", hidden=32, inputs=8, num_classes=5), rows()),
    Case("feedforward", zoo("feedforward"), rows(64)),
    Case("gan", zoo("gan"), images(8, 1)),
    Case("zoo-lstm", zoo("lstm"), tokens),
    Case("rbm", zoo("rbm"), rows(64)),
    Case("recursive", zoo("recursive"), trees),
    Case("resnet18", zoo("resnet18", num_classes=5), images(32)),
    Case("zoo-rnn", zoo("rnn"), tokens),
    Case("vae", zoo("vae"), rows(64)),
    *(Case(name, partial(vgg, name), images(32)) for name in ("vgg11", "vgg13", "vgg16", "vgg19")),
    Case("zener7", zoo("zener7"), images(32, 1)),
]
OTHERS = [
    Case("gru", lambda: Recurrent(nn.GRU), tokens),
    Case("weight-norm", weight_normed, rows()),
    Case("spectral-norm", spectral_normed, rows()),
    Case("functions", KeepsFunctions, rows()),
    Case("methods", KeepsMethods, rows()),
    Case("convolution", Convolves, images(8, 1)),
    Case("criterion", HoldsCriterion, rows()),
    Case("own-state", OwnState, rows()),
    Case("own-reduction", OwnReduction, rows()),
    Case("averaged", Averaged, rows()),
    Case("scriptable", Scriptable, rows()),
]
NETWORKS = {case.name: case for case in [*CASES, *ZOO, *OTHERS]}
LARGE = {
    "alexnet",
    "googlenet",
    "resnet50",
    "resnet18",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
}  # files of 10 to 90 MB


def numbers(output: Any) -> list[torch.Tensor]:
    """Every differentiable tensor that a network gave."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    inner: Iterable[Any] = output.values() if isinstance(output, Mapping) else output
    return [one for part in inner if not isinstance(part, str) for one in numbers(part)] if inner else []


def loss_of(output: Any) -> torch.Tensor:
    return torch.stack([F.mse_loss(one, torch.zeros_like(one)) for one in numbers(output)]).sum()


def answer(network: nn.Module, batch: Any) -> list[torch.Tensor]:
    """What a network gives for a batch when it is used, not trained."""
    network.eval()
    with torch.no_grad():
        return numbers(network(batch))
