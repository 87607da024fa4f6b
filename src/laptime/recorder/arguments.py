"""What `record` is given: checked before anything is touched, and read for what it holds."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from laptime.errors import ForeignOptimizer, RecordingError

Networks = nn.Module | Mapping[str, nn.Module]
Optimizers = Optimizer | Sequence[Optimizer] | None

_WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "DataParallel")


def named(networks: Networks | None) -> dict[str, nn.Module]:
    """Networks by name; a single one is called "network"."""
    if networks is None:
        return {}
    if isinstance(networks, nn.Module):
        return {"network": networks}
    if not isinstance(networks, Mapping) or not networks:
        raise RecordingError(f"record() takes a module or {{name: module}}, not {type(networks).__name__}")
    for name, network in networks.items():
        if not isinstance(network, nn.Module):
            raise RecordingError(f"network {name!r} is a {type(network).__name__}, not an nn.Module")
    return dict(networks)


def class_names(networks: Iterable[nn.Module]) -> str:
    """Class names of the networks for a list of runs, without torch's wrappers."""
    names = []
    for network in networks:
        while type(network).__name__ in _WRAPPERS:
            inner = getattr(network, "_orig_mod", None) or getattr(network, "module", None)
            if not isinstance(inner, nn.Module):
                break
            network = inner
        names.append(type(network).__name__)
    return " + ".join(dict.fromkeys(names))


def listed(optimizers: Optimizers) -> list[Optimizer]:
    if optimizers is None:
        return []
    checked = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    for optimizer in checked:
        if not isinstance(optimizer, Optimizer):
            raise RecordingError(
                f"{type(optimizer).__name__} is not a torch optimizer; pass the optimizer you step"
            )
    return checked


def check_optimizers(networks: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> None:
    mine = {id(p) for network in networks.values() for p in network.parameters()}
    for optimizer in optimizers:
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if networks and not mine & theirs:
            raise ForeignOptimizer(
                f"the {type(optimizer).__name__} optimizer updates no parameter of the network; "
                "build it from the parameters of the network you record"
            )


def refuse_nested(networks: Mapping[str, nn.Module]) -> None:
    for (name, inner), (other, outer) in permutations(networks.items(), 2):
        if any(module is inner for module in outer.modules()):
            raise RecordingError(f"network {name!r} is part of network {other!r}; record {other!r} alone")


def refuse_replicas(network: nn.Module) -> None:
    """Refuse a network that torch copies onto several devices at every call, to run the copies in threads."""
    for module in network.modules():
        if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
            raise RecordingError(
                "nn.DataParallel runs copies of the network in threads, whose layers cannot be told apart; "
                "use DistributedDataParallel, or device_ids=[0]"
            )


def device_of(networks: Iterable[nn.Module]) -> torch.device:
    """Where the networks compute: the device of their first parameter."""
    for network in networks:
        for parameter in network.parameters():
            if parameter.device.type != "meta":
                return parameter.device
    return torch.device("cpu")


def step_numbers(kernels: Iterable[int]) -> list[int]:
    """The steps to trace."""
    try:
        steps = sorted({operator.index(step) for step in kernels})
    except TypeError:
        raise RecordingError(
            f"kernels={kernels!r} is not a list of step numbers, such as [100, 101]"
        ) from None
    if steps and steps[0] < 0:
        raise RecordingError(f"kernels={steps}: steps are counted from 0")
    return steps


def as_number(value: Any) -> float | None:
    """The value as a float for the log; None where it is not a number."""
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except Exception:  # a user's class, a list, a number too large
        return None


def batch_size(batch: Any) -> int | None:
    """Samples in a batch: the first dimension of its first tensor, through tuples, lists and dicts."""
    try:
        return _batch_size(batch)
    except Exception:  # a user's batch class whose attributes raise
        return None


def _batch_size(batch: Any) -> int | None:
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for item in batch[:8]:
            size = _batch_size(item)
            if size is not None:
                return size
        return None
    graphs = getattr(batch, "num_graphs", None)  # PyTorch Geometric: many graphs as one
    if isinstance(graphs, int):
        return graphs
    data = getattr(batch, "data", None)  # transformers' BatchEncoding keeps its tensors there
    return _batch_size(data) if isinstance(data, Mapping) else None
