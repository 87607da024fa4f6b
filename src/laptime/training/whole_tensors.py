"""Parameters that are spread over ranks as DTensors, and the whole tensors that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from laptime.training.strategies.contract import Strategy


class SplitTensors(Strategy):
    """What strategies share whose parameters are DTensors. All ranks must call `…_state`."""

    def clip(self, parameters: Iterable[nn.Parameter], norm: float) -> None:
        trained = list(parameters)
        scale_down(trained, global_norm(trained), norm)

    def network_state(self, network: nn.Module) -> Mapping[str, Any]:
        return dict(_whole(network.state_dict()))

    def optimizer_state(self, optimizer: Optimizer) -> Mapping[str, Any]:
        return dict(_whole(optimizer.state_dict()))

    def load_network(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Load a whole network's state; each rank keeps its part."""
        now = network.state_dict()
        network.load_state_dict({name: _like(value, now.get(name)) for name, value in state.items()})

    def load_optimizer(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load a whole optimizer's state; each rank keeps its part."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parts = {
            place: {
                name: _like(value, parameters[place]) if _shaped_like(value, parameters[place]) else value
                for name, value in values.items()
            }
            for place, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": parts})


def global_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients, of which each rank may have a part."""
    squares = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            square = gradient.detach().pow(2).sum()
            squares.append(square.full_tensor() if isinstance(square, DTensor) else square)
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def scale_down(parameters: Iterable[nn.Parameter], norm: torch.Tensor, most: float) -> None:
    """Scale gradients of this global norm down to `most`, as `clip_grad_norm_` does."""
    factor = float(torch.clamp(most / (norm + 1e-6), max=1.0))
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.detach().mul_(factor)


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor().detach()
    if isinstance(value, Mapping):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_whole, value))
    return value


def _shaped_like(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def _like(value: Any, sample: Any) -> Any:
    if not isinstance(sample, DTensor):
        return value
    return distribute_tensor(value.to(sample.device), sample.device_mesh, sample.placements)
