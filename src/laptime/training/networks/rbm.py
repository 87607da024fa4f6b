"""A restricted Boltzmann machine, trained by contrastive divergence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laptime.errors import ConfigError
from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Criterion, Moment, Objective, StepLoss


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
        """One step of contrastive divergence."""
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
