"""Optimizers: their section of a configuration, and how one is built. Their register is in `laptime.ops`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from laptime.ops.optimizers import OPTIMIZERS
from laptime.training.config_section import ConfigSection, OneOf, Share

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


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
    rate, decay = config.rate * share, config.weight_decay
    built: Optimizer = _torch_class(config.name)(parameters, lr=rate, weight_decay=decay, **used)
    return built


def _torch_class(name: str) -> Any:
    import torch

    return getattr(torch.optim, OPTIMIZERS[name].torch_class)
