"""Optimizers, schedules of the learning rate and losses: sections of a configuration, and how each is built.

The register of optimizers is in `laptime.ops`; those of schedules and losses are here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveInt

from laptime.ops.optimizers import OPTIMIZERS
from laptime.training.config_section import ConfigSection, Count, OneOf, Share

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

    from laptime.training.objectives import Criterion


# -- optimizers ----------------------------------------------------------------------------------------------


class OptimizerConfig(ConfigSection):
    """How gradients change the parameters."""

    name: Annotated[str, OneOf(OPTIMIZERS)] = "momentum"
    """`momentum` is SGD with momentum."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """The learning rate; by default the usual one of the optimizer."""
    momentum: Share = 0.9
    """Momentum of `momentum` and `rmsprop`."""
    nesterov: bool = False
    """Nesterov momentum, for `momentum`."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """The two decay rates of `adam` and `adamw`."""
    eps: Annotated[float, Field(gt=0)] | None = None
    """Added to a denominator; by default the usual one of the optimizer."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Pulls the parameters towards zero."""

    @property
    def rate(self) -> float:
        """The learning rate: as asked for, or the usual one."""
        return self.lr if self.lr is not None else OPTIMIZERS[self.name].learning_rate


def settings(name: str) -> tuple[str, ...]:
    """The keys of the section that an optimizer takes, besides lr and weight_decay."""
    taken = inspect.signature(_torch_class(name)).parameters
    return (*OPTIMIZERS[name].settings, *(key for key in ("betas", "eps") if key in taken))


def optimizer(
    config: OptimizerConfig, parameters: Sequence[nn.Parameter], *, share: float = 1.0
) -> Optimizer:
    """The optimizer of a group of parameters, with a share of the learning rate."""
    used = {key: value for key in settings(config.name) if (value := getattr(config, key)) is not None}
    used |= {"lr": config.rate * share, "weight_decay": config.weight_decay}
    built: Optimizer = _torch_class(config.name)(parameters, **used)
    return built


def _torch_class(name: str) -> Any:
    import torch

    return getattr(torch.optim, OPTIMIZERS[name].torch_class)


# -- schedules -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """What one name of `schedule.name` stands for."""

    # The factor of the learning rate, from the whole epochs so far and the share of the updates so far.
    factor: Callable[[ScheduleConfig, int, float], float]
    settings: tuple[str, ...] = ()  # the keys of the section that it takes, besides warmup_steps


def _fall(config: ScheduleConfig, left: float) -> float:
    """From the whole rate to its `final` share."""
    return config.final + (1 - config.final) * left


SCHEDULES = {
    "constant": ScheduleKind(factor=lambda c, epochs, share: 1.0),
    "step": ScheduleKind(
        factor=lambda c, epochs, share: c.gamma ** (epochs // c.every), settings=("every", "gamma")
    ),
    "exponential": ScheduleKind(factor=lambda c, epochs, share: c.gamma**epochs, settings=("gamma",)),
    "linear": ScheduleKind(factor=lambda c, epochs, share: _fall(c, 1 - share), settings=("final",)),
    "cosine": ScheduleKind(
        factor=lambda c, epochs, share: _fall(c, (1 + cos(pi * share)) / 2), settings=("final",)
    ),
}


class ScheduleConfig(ConfigSection):
    """How the learning rate changes."""

    name: Annotated[str, OneOf(SCHEDULES)] = "constant"
    """`step` multiplies by `gamma` every `every` epochs; `linear` and `cosine` fall to `final`."""
    warmup_steps: Count = 0
    """Updates during which the rate rises from nearly zero."""
    every: PositiveInt = 30
    """Epochs between two steps."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The factor of `step`, and of each epoch of `exponential`."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the rate that is left at the end of `linear` and `cosine`."""


def schedule(
    config: ScheduleConfig, optimizer: Optimizer, *, updates: int, updates_per_epoch: int
) -> LambdaLR:
    """The learning rate over `updates` updates; stepped after each of them."""
    from torch.optim.lr_scheduler import LambdaLR

    return LambdaLR(optimizer, factor(config, updates=updates, updates_per_epoch=max(1, updates_per_epoch)))


def factor(config: ScheduleConfig, *, updates: int, updates_per_epoch: int) -> Callable[[int], float]:
    """What the learning rate is multiplied by at each update."""
    warmup, kind = config.warmup_steps, SCHEDULES[config.name]

    def at(update: int) -> float:
        if update < warmup:
            return (update + 1) / (warmup + 1)
        share = min(1.0, (update - warmup) / max(1, updates - warmup))
        return kind.factor(config, update // updates_per_epoch, share)

    return at


# -- losses --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """What one name of `loss.name` stands for."""

    function: str  # of torch.nn.functional
    classes: bool = False  # takes class numbers; otherwise they become rows of zeros and a one


LOSSES = {
    "cross-entropy": LossKind(function="cross_entropy", classes=True),
    "binary-cross-entropy": LossKind(function="binary_cross_entropy_with_logits"),
    "squared": LossKind(function="mse_loss"),
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
        if not targets.is_floating_point():
            targets = F.one_hot(targets, scores.shape[-1]).to(scores.dtype)
        return function(scores, targets)

    return function if LOSSES[name].classes else of_numbers
