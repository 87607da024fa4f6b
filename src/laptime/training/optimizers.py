"""Optimizers: the register of their names, their section of a configuration, and how one is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from laptime.training.section import OneOf, Section, Share

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """One name that `optimizer.name` takes. `laptime.ops.optimizers` has its memory and traffic."""

    name: str
    torch_class: str  # of torch.optim
    lr: float  # the usual learning rate
    uses: tuple[str, ...] = ()  # the keys of the section that it has, besides lr and weight_decay


# Learning rates as in torch.optim; for SGD, which has none there, the usual 0.01.
OPTIMIZERS = {
    kind.name: kind
    for kind in (
        OptimizerKind(name="sgd", torch_class="SGD", lr=0.01),
        OptimizerKind(name="momentum", torch_class="SGD", lr=0.01, uses=("momentum", "nesterov")),
        OptimizerKind(name="adagrad", torch_class="Adagrad", lr=0.01, uses=("eps",)),
        OptimizerKind(name="adadelta", torch_class="Adadelta", lr=1.0, uses=("eps",)),
        OptimizerKind(name="adam", torch_class="Adam", lr=1e-3, uses=("betas", "eps")),
        OptimizerKind(name="adamw", torch_class="AdamW", lr=1e-3, uses=("betas", "eps")),
        OptimizerKind(name="rmsprop", torch_class="RMSprop", lr=1e-3, uses=("momentum", "eps")),
    )
}


class OptimizerConfig(Section):
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
        return self.lr if self.lr is not None else OPTIMIZERS[self.name].lr


def optimizer(
    config: OptimizerConfig, parameters: Sequence[nn.Parameter], *, share: float = 1.0
) -> Optimizer:
    """The optimizer of a group of parameters, with a share of the learning rate."""
    import torch

    kind = OPTIMIZERS[config.name]
    used = {key: value for key in kind.uses if (value := getattr(config, key)) is not None}
    made: Any = getattr(torch.optim, kind.torch_class)
    built: Optimizer = made(parameters, lr=config.rate * share, weight_decay=config.weight_decay, **used)
    return built
