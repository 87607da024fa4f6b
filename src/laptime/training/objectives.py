"""What a network is trained for: how a batch becomes losses, and which parameters each of them trains.

An objective calls its network only as `network(…)`: that is what the recorder times and what data
parallelism wraps. Networks with several ways to be called take a keyword for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laptime.errors import ConfigError

Batch = tuple[Any, ...]
Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The progress of a training, for objectives that change with it."""

    epoch: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """One loss of a step, the parameters it trains, and scores to be ranked against targets, if any."""

    loss: Tensor
    group: str = "all"
    scores: Tensor | None = None  # (samples, classes)
    targets: Tensor | None = None  # (samples,) of class numbers


class Objective:
    """Base class: one group of parameters and one loss a step, computed by `judge`.

    It is given the loss that a configuration names; None leaves the choice to the objective.
    """

    def __init__(self, criterion: Criterion | None = None) -> None:
        self.criterion = criterion or F.cross_entropy

    def groups(self, network: nn.Module) -> dict[str, list[nn.Parameter]]:
        """The parameters that each optimizer updates, by the name that a `StepLoss` gives as its group."""
        return {"all": [parameter for parameter in network.parameters() if parameter.requires_grad]}

    def rate(self, group: str) -> float:
        """The share of the configured learning rate that a group trains with."""
        return 1.0

    def parts(self, network: nn.Module, batch: Batch, moment: Moment) -> Iterator[StepLoss]:
        """The losses of one training step. The update of each is made before the next is computed."""
        yield self.judge(network, batch)

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        """The loss and the scores for validation."""
        raise NotImplementedError


class Classification(Objective):
    """Scores for each class against the target class. Auxiliary heads count with 0.3, as in GoogLeNet."""

    AUXILIARY = 0.3

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        inputs, targets = batch
        output = network(inputs)
        scores, *others = (output,) if isinstance(output, Tensor) else tuple(output)
        loss = self.criterion(scores, targets)
        for auxiliary in others:
            if isinstance(auxiliary, Tensor):
                loss = loss + self.AUXILIARY * self.criterion(auxiliary, targets)
        ranked = scores.dim() == 2 and not targets.is_floating_point()
        return StepLoss(
            loss=loss, scores=scores.detach() if ranked else None, targets=targets if ranked else None
        )


class WithoutClasses(Objective):
    """Base class of objectives that compare numbers with numbers; targets in the batch are ignored."""

    def __init__(self, criterion: Criterion | None = None) -> None:
        if criterion is F.cross_entropy:
            raise ConfigError(
                "loss.name = 'cross-entropy' needs classes, and this network has none; "
                "use 'squared' or 'binary-cross-entropy', or leave it out"
            )
        super().__init__(criterion or F.binary_cross_entropy_with_logits)


class Reconstruction(WithoutClasses):
    """The network reconstructs its input: the distance of the output from it, squared by default."""

    def __init__(self, criterion: Criterion | None = None) -> None:
        super().__init__(criterion or F.mse_loss)

    def judge(self, network: nn.Module, batch: Batch) -> StepLoss:
        inputs = batch[0]
        return StepLoss(loss=self.criterion(network(inputs), inputs))


def top_n(scores: Tensor, targets: Tensor, n: int) -> tuple[Tensor | float, Tensor | float]:
    """The shares of samples whose class is the first, and among the first n, of the network's ranking."""
    with torch.no_grad():
        # The place of the right class, cheaper than sorting out the first n. Classes that score the same
        # stand before it, and where scores are no numbers it has no place: neither counts as known.
        at_least = scores >= scores.gather(1, targets[:, None])
        if at_least.device.type == "cpu":  # six small operations: 10 µs in numpy, 70 in torch
            place = np.count_nonzero(at_least.numpy(), axis=1)
            first, among = np.count_nonzero(place == 1), np.count_nonzero((place > 0) & (place <= n))
            return first / len(place), among / len(place)
        places = at_least.sum(dim=1)
        right = torch.stack((places == 1, (places > 0) & (places <= n))).float().mean(dim=1)
        return right[0], right[1]
