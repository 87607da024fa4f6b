"""Schedules of the learning rate: the register of their names, their section, and their factors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from laptime.training.config_section import ConfigSection, Count, OneOf

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """One name that `schedule.name` takes."""

    name: str
    # The factor of the learning rate, from the whole epochs so far and the share of the updates so far.
    factor: Callable[[ScheduleConfig, int, float], float]
    settings: tuple[str, ...] = ()  # the keys of the section that it takes, besides warmup_steps


def _step(c: ScheduleConfig, epochs: int, share: float) -> float:
    return c.gamma ** (epochs // c.every)


def _linear(c: ScheduleConfig, epochs: int, share: float) -> float:
    return c.final + (1 - c.final) * (1 - share)


def _cosine(c: ScheduleConfig, epochs: int, share: float) -> float:
    return c.final + (1 - c.final) * (1 + math.cos(math.pi * share)) / 2


SCHEDULES = {
    kind.name: kind
    for kind in (
        ScheduleKind(name="constant", factor=lambda c, epochs, share: 1.0),
        ScheduleKind(name="step", factor=_step, settings=("every", "gamma")),
        ScheduleKind(
            name="exponential", factor=lambda c, epochs, share: c.gamma**epochs, settings=("gamma",)
        ),
        ScheduleKind(name="linear", factor=_linear, settings=("final",)),
        ScheduleKind(name="cosine", factor=_cosine, settings=("final",)),
    )
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
