"""A deep belief network: Boltzmann machines learned one upon the other, then gentle backpropagation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from laptime.training.networks.rbm import RBM, Contrast, contrastive_loss
from laptime.training.networks.registry import network
from laptime.training.objectives import Batch, Classification, Criterion, Moment, StepLoss

_EAGER = 10.0  # times the learning rate, which is that of the gentle backpropagation afterwards


class GreedyThenGentle(Classification):
    """Half of the epochs goes to the machines, from the lowest to the highest; the rest to all layers.

    With a single epoch there is no half to give, and the network is trained by backpropagation alone.
    """

    def __init__(self, criterion: Criterion | None = None) -> None:
        super().__init__(*([] if criterion is None else [criterion]))

    def groups(self, network: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Each machine by itself, and everything that backpropagation reaches: no visible bias."""
        machines = _machines(network)
        groups = {_machine(index): list(machine.parameters()) for index, machine in enumerate(machines)}
        visible = {id(machine.visible_bias) for machine in machines}
        return groups | {
            "all": [parameter for parameter in network.parameters() if id(parameter) not in visible]
        }

    def rate(self, group: str) -> float:
        """The machines learn in larger steps than backpropagation makes: the rate asked for is its own."""
        return 1.0 if group == "all" else _EAGER

    def parts(self, network: nn.Module, batch: Batch, moment: Moment) -> Iterator[StepLoss]:
        """One step of contrastive divergence on one machine, or of backpropagation."""
        index = learned(len(_machines(network)), moment)
        if index is None:
            yield self.judge(network, batch)
            return
        below, contrast = network(batch[0], machine=index)
        yield StepLoss(loss=contrastive_loss(contrast, below), group=_machine(index))


def learned(machines: int, moment: Moment) -> int | None:
    """Which of the machines is learned at a moment; None: all layers together."""
    greedy = moment.epochs // 2
    return moment.epoch * machines // greedy if moment.epoch < greedy else None


def _machines(network: nn.Module) -> list[RBM]:
    return [module for module in network.modules() if isinstance(module, RBM)]


def _machine(index: int) -> str:
    return f"rbm{index + 1}"


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
