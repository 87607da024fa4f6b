"""Optimizers and schedules, from their sections of the configuration."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from laptime.training.config import OptimizerConfig, ScheduleConfig

# The usual learning rates: of torch.optim, and 0.01 for SGD as in the thesis' momentum optimizer.
RATES = {
    "sgd": 0.01,
    "momentum": 0.01,
    "adagrad": 0.01,
    "adadelta": 1.0,
    "adam": 1e-3,
    "adamw": 1e-3,
    "rmsprop": 1e-3,
}
_MADE: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def rate(config: OptimizerConfig) -> float:
    """The learning rate: as asked for, or the usual one."""
    return config.lr if config.lr is not None else RATES[config.name]


def optimizer(
    config: OptimizerConfig, parameters: Sequence[nn.Parameter], *, share: float = 1.0
) -> Optimizer:
    """The optimizer of a group of parameters, with a share of the rate. Only what it takes is given to it."""
    kind = _MADE[config.name]
    offered: dict[str, Any] = {
        "lr": rate(config) * share,
        "momentum": config.momentum if config.name in ("momentum", "rmsprop") else 0.0,
        "nesterov": config.nesterov and config.name == "momentum",
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    if config.eps is not None:
        offered["eps"] = config.eps
    taken = inspect.signature(kind).parameters
    return kind(parameters, **{name: value for name, value in offered.items() if name in taken})


def schedule(
    config: ScheduleConfig, optimizer: Optimizer, *, updates: int, updates_per_epoch: int
) -> LambdaLR:
    """The learning rate over `updates` updates; stepped after each of them."""
    return LambdaLR(optimizer, factor(config, updates=updates, updates_per_epoch=max(1, updates_per_epoch)))


def factor(config: ScheduleConfig, *, updates: int, updates_per_epoch: int) -> Callable[[int], float]:
    """What the learning rate is multiplied by at each update."""

    def at(update: int) -> float:
        if update < config.warmup_steps:
            return (update + 1) / (config.warmup_steps + 1)
        epochs = update // updates_per_epoch
        share = min(1.0, (update - config.warmup_steps) / max(1, updates - config.warmup_steps))
        left = {
            "constant": 1.0,
            "step": config.gamma ** (epochs // config.every),
            "exponential": config.gamma**epochs,
            "linear": config.final + (1 - config.final) * (1 - share),
            "cosine": config.final + (1 - config.final) * (1 + math.cos(math.pi * share)) / 2,
        }
        return left[config.name]

    return at
