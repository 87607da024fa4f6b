"""A restricted Boltzmann machine, and a deep belief network of such machines, one upon the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laptime.errors import ConfigError
from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Classification, Criterion, Moment, Objective, StepLoss

_EAGER = 10.0  # times the learning rate, which is that of the gentle backpropagation afterwards


class Contrast(NamedTuple):
    """How much more energy a sample has than what the machine makes of it, and its first guess at it."""

    energy: Tensor  # (samples,)
    logits: Tensor  # the samples given back, as log-odds


def contrastive_loss(contrast: Contrast, samples: Tensor) -> Tensor:
    """The gradient of contrastive divergence under the value of the reconstruction error, in nats a pixel.

    The energy difference has the right gradient but its value tells nothing: data and chain move together.
    The reconstruction error falls as the machine learns, in training as in validation.
    """
    energy = contrast.energy.mean()
    error = F.binary_cross_entropy_with_logits(contrast.logits, samples.flatten(1))
    return energy - energy.detach() + error.detach()


class ContrastiveDivergence(Objective):
    """CD-k: the chain starts at the data and takes the network's k steps."""

    def __init__(self, criterion: Criterion | None = None) -> None:
        if criterion is not None:
            raise ConfigError("a Boltzmann machine is trained by contrastive divergence; leave loss.name out")

    def parts(self, network: nn.Module, batch: Batch, moment: Moment) -> Iterator[StepLoss]:
        yield StepLoss(loss=contrastive_loss(network(batch[0], contrast=True), batch[0]))

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        """How far the expected reconstruction is from the data, in nats a pixel."""
        samples = batch[0].flatten(1)
        return StepLoss(loss=F.binary_cross_entropy_with_logits(network(samples), samples))


@network("rbm", input=(64,), classes=0, data="digits", goal=ContrastiveDivergence, parameters=4_224)
class RBM(nn.Module):
    """As many hidden units as visible ones: 64·64 weights + 64 + 64 biases = 4,224 parameters.

    Binary units; grey values between 0 and 1 are taken as probabilities. Hinton, "Training products of
    experts by minimizing contrastive divergence", Neural Computation 14 (2002). With the free energy
    F(v) = -b·v - sum log(1 + exp(W·v + c)), the gradient of F(data) - F(chain's end) is the update rule, so
    autograd makes it.
    """

    def __init__(self, *, inputs: int = 64, hidden: int = 64, chain: int = 1) -> None:
        super().__init__()
        if chain < 1:
            raise ValueError(f"a chain takes at least one step; got chain={chain}")
        self.chain = chain  # the k of CD-k
        self.weight = nn.Parameter(torch.empty(hidden, inputs))
        nn.init.xavier_normal_(self.weight)  # the usual 0.01 keeps small machines alike for many epochs
        self.visible_bias = nn.Parameter(torch.zeros(inputs))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, samples: Tensor, *, contrast: bool = False, up: bool = False) -> Tensor | Contrast:
        """The samples given back; their `contrast`; or, `up`, the hidden units. All as log-odds."""
        visible = samples.flatten(1)
        if up:
            return self._up(visible)
        if not contrast:
            return self._down(self._up(visible).sigmoid())
        with torch.no_grad():
            logits = end = self._down(_drawn(self._up(visible)))
            for _ in range(self.chain - 1):
                end = self._down(_drawn(self._up(_drawn(end))))
        return Contrast(self._free_energy(visible) - self._free_energy(end.sigmoid()), logits)

    def _up(self, visible: Tensor) -> Tensor:
        return F.linear(visible, self.weight, self.hidden_bias)

    def _down(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight.t(), self.visible_bias)

    def _free_energy(self, visible: Tensor) -> Tensor:
        return -(visible * self.visible_bias).sum(dim=1) - F.softplus(self._up(visible)).sum(dim=1)


def _drawn(logits: Tensor) -> Tensor:
    """Units on or off, at random with their probability."""
    return torch.bernoulli(logits.sigmoid())


class GreedyThenGentle(Classification):
    """Half of the epochs goes to the machines, from the lowest to the highest; the rest to all layers.

    With a single epoch there is no half to give, and the network is trained by backpropagation alone.
    """

    def groups(self, network: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Each machine by itself, and everything that backpropagation reaches: no visible bias."""
        machines = [module for module in network.modules() if isinstance(module, RBM)]
        groups = {f"rbm{number}": list(each.parameters()) for number, each in enumerate(machines, start=1)}
        visible = {id(machine.visible_bias) for machine in machines}
        return groups | {"all": [each for each in network.parameters() if id(each) not in visible]}

    def rate(self, group: str) -> float:
        """The machines learn in larger steps than backpropagation makes: the rate asked for is its own."""
        return 1.0 if group == "all" else _EAGER

    def parts(self, network: nn.Module, batch: Batch, moment: Moment) -> Iterator[StepLoss]:
        machines = sum(isinstance(module, RBM) for module in network.modules())
        index = learned(machines, moment)
        if index is None:
            yield self.judge(network, batch)
            return
        below, contrast = network(batch[0], machine=index)
        yield StepLoss(loss=contrastive_loss(contrast, below), group=f"rbm{index + 1}")


def learned(machines: int, moment: Moment) -> int | None:
    """Which of the machines is learned at a moment; None: all layers together."""
    greedy = moment.epochs // 2
    return moment.epoch * machines // greedy if moment.epoch < greedy else None


@network("dbn", input=(64,), classes=10, data="digits", goal=GreedyThenGentle, parameters=7_898)
class DBN(nn.Module):
    """Machines of 64x64 and 64x48 units and a linear layer: 4,224 + 3,184 + 490 = 7,898 parameters.

    Hinton, Osindero and Teh, "A fast learning algorithm for deep belief nets", Neural Computation 18 (2006);
    the fine-tuning is the discriminative one of Hinton and Salakhutdinov, Science 313 (2006).
    """

    def __init__(
        self, *, inputs: int = 64, num_classes: int = 10, hidden: Sequence[int] = (64, 48), chain: int = 1
    ) -> None:
        super().__init__()
        sizes = (inputs, *hidden)
        self.machines = nn.ModuleList(
            RBM(inputs=below, hidden=above, chain=chain) for below, above in pairwise(sizes)
        )
        self.classifier = nn.Linear(sizes[-1], num_classes)

    def forward(self, samples: Tensor, *, machine: int | None = None) -> Tensor | tuple[Tensor, Contrast]:
        """Scores for each class; of a `machine`, what it sees and its contrast."""
        if machine is None:
            scores: Tensor = self.classifier(self._up(samples, len(self.machines)))
            return scores
        with torch.no_grad():
            below = self._up(samples, machine)
        return below, cast(Contrast, self.machines[machine](below, contrast=True))

    def _up(self, samples: Tensor, machines: int) -> Tensor:
        """What the machine above the first few sees."""
        seen = samples.flatten(1)
        for machine in self.machines[:machines]:
            seen = machine(seen, up=True).sigmoid()
        return seen
