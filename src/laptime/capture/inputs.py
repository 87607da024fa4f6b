"""Validates and normalizes the user's input to a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from laptime.errors import WorkloadError
from laptime.ops.optimizers import OPTIMIZERS, rule_of

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


def module(network: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """The module and notes on it; a compiled one is traced uncompiled."""
    notes: tuple[str, ...] = ()
    if isinstance(network, nn.Module) and hasattr(network, "_orig_mod"):
        network = network._orig_mod
        notes = ("the network is compiled; what torch.compile joins is counted operation by operation",)
    if isinstance(network, type) or not isinstance(network, nn.Module):
        raise WorkloadError(f"{_shown(network)} is no network; give an nn.Module, such as resnet50()")
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in network.parameters()):
        raise WorkloadError("the network has lazy layers without a size; run it once on a batch first")
    return network, notes


def batch(network: nn.Module, shape: Any, example: Any, size: int | None) -> Any:
    """A batch to read the network with: the example, or one made of a sample's shape."""
    if (shape is None) == (example is None):
        both = "not both; " if shape is not None else ""
        raise WorkloadError(
            f"{both}give the shape of one sample as input=(3, 224, 224), or a batch as example="
        )
    if shape is not None:
        count = 1 if size is None else size
        whole = isinstance(shape, Sequence) and not isinstance(shape, str)
        sizes = (count, *shape) if whole else (count, shape)
        if not whole or not all(type(length) is int and length > 0 for length in sizes):
            raise WorkloadError(
                f"batch {count} of input {shape} cannot be read; give whole numbers above 0, such as "
                "batch=64, input=(3, 224, 224)"
            )
        return (torch.empty(sizes, dtype=_dtype(network), device="meta"),)
    if size is not None:
        raise WorkloadError("the example is a batch already; leave out batch=, or give input= instead")
    if isinstance(example, Mapping):  # also a tokenizer's BatchEncoding
        return dict(example)
    return example if isinstance(example, tuple | list) else (example,)


def optimizer(given: Any) -> Any:
    """The name of an optimizer; one of torch's own is known by its class."""
    if not isinstance(given, torch.optim.Optimizer):
        return given
    name = type(given).__name__
    rule = rule_of(name, momentum=bool(given.defaults.get("momentum")))
    if rule is None:
        raise WorkloadError(f"{name} is not known here; one of {', '.join(OPTIMIZERS)}")
    return rule.name


def precision(network: nn.Module, asked: str) -> str:
    """As asked; of a network whose own parameters are not float32, theirs."""
    return _NAMES.get(_dtype(network), asked) if asked == "fp32" else asked


def _dtype(network: nn.Module) -> torch.dtype:
    floating: Tensor | None = next(
        (parameter for parameter in network.parameters() if parameter.is_floating_point()), None
    )
    return torch.float32 if floating is None else floating.dtype


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
