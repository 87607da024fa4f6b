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

from laptime.ops.optimizers import OPTIMIZERS
from laptime.training.config import OptimizerConfig, ScheduleConfig


def rate(config: OptimizerConfig) -> float:
    """The learning rate: as asked for, or the usual one."""
    return config.lr if config.lr is not None else OPTIMIZERS[config.name].learning_rate


def optimizer(
    config: OptimizerConfig, parameters: Sequence[nn.Parameter], *, share: float = 1.0
) -> Optimizer:
    """The optimizer of a group of parameters, with a share of the rate. Only what it takes is given to it."""
    rule = OPTIMIZERS[config.name]
    kind: type[Optimizer] = getattr(torch.optim, rule.torch_class)
    offered: dict[str, Any] = {
        "lr": rate(config) * share,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
        **{name: getattr(config, name) for name in rule.settings},
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
