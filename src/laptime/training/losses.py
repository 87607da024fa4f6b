"""Losses: the register of their names, their section of a configuration, and their functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from laptime.training.config_section import ConfigSection, OneOf

if TYPE_CHECKING:
    from torch import Tensor

    from laptime.training.objectives import Criterion


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """One name that `loss.name` takes."""

    name: str
    function: str  # of torch.nn.functional
    classes: bool = False  # takes class numbers; otherwise they become rows of zeros and a one


LOSSES = {
    kind.name: kind
    for kind in (
        LossKind(name="cross-entropy", function="cross_entropy", classes=True),
        LossKind(name="binary-cross-entropy", function="binary_cross_entropy_with_logits"),
        LossKind(name="squared", function="mse_loss"),
    )
}


class LossConfig(ConfigSection):
    """The loss that is minimised."""

    name: Annotated[str, OneOf(LOSSES)] | None = None
    """By default the network's own."""


def criterion(name: str) -> Criterion:
    """The named loss, as a function of scores and targets."""
    from torch.nn import functional as F

    function: Criterion = getattr(F, LOSSES[name].function)

    def of_numbers(scores: Tensor, targets: Tensor) -> Tensor:
        return function(scores, targets if targets.is_floating_point() else one_hot(targets, scores))

    return function if LOSSES[name].classes else of_numbers


def one_hot(targets: Tensor, like: Tensor) -> Tensor:
    """Class numbers as rows of zeros and a one, in the shape and type of the scores."""
    from torch.nn import functional as F

    return F.one_hot(targets, like.shape[-1]).to(like.dtype)
