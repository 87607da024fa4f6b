"""What a network is read with: the user's input, or what a configuration of `transformers` tells of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from laptime.errors import WorkloadError
from laptime.ops.optimizers import OPTIMIZERS, UpdateRule, rule_of

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
LONGEST = 4096  # token ids of a sample: contexts of 128 Ki are seldom trained at their full length
_USUAL_LENGTH = 512  # of configurations that name none, such as those with relative positions
_USUAL_IMAGE = 224  # of configurations that name no size, since any would do


def module(network: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """The module and notes on it; a compiled one is traced uncompiled."""
    notes: tuple[str, ...] = ()
    if isinstance(network, nn.Module) and hasattr(network, "_orig_mod"):
        network = network._orig_mod
        notes = ("the network is compiled; what torch.compile joins is counted operation by operation",)
    if isinstance(network, type) or not isinstance(network, nn.Module):
        text = repr(network)
        shown = text if len(text) < 60 else f"{text[:57]}..."
        raise WorkloadError(f"{shown} is no network; give an nn.Module, such as resnet50()")
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in network.parameters()):
        raise WorkloadError("the network has lazy layers without a size; run it once on a batch first")
    return network, notes


def batch(network: nn.Module, shape: Any, example: Any, size: int | None) -> Any:
    """A batch to read the network with: the example, or one made of a sample's shape."""
    if shape is not None and example is not None:
        raise WorkloadError(
            "not both; give the shape of one sample as input=(3, 224, 224), or a batch as example="
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
    if isinstance(example, Mapping):  # also a tokenizer's BatchEncoding
        return dict(example)
    return example if isinstance(example, tuple | list) else (example,)


def optimizer(given: Any) -> UpdateRule:
    """How an optimizer updates: one of torch's own is known by its class, others by a name."""
    if isinstance(given, torch.optim.Optimizer):
        name = type(given).__name__
        rule = rule_of(name, momentum=bool(given.defaults.get("momentum")))
        if rule is None:
            raise WorkloadError(f"{name} is not known here; one of {', '.join(OPTIMIZERS)}")
        return rule
    if given not in OPTIMIZERS:
        raise WorkloadError(f"no optimizer is called {given!r}; one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[given]


def precision(network: nn.Module, asked: str) -> str:
    """As asked; of a network whose own parameters are not float32, theirs."""
    return _NAMES.get(_dtype(network), asked) if asked == "fp32" else asked


def _dtype(network: nn.Module) -> torch.dtype:
    types = (parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())
    return next(types, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInput:
    """How to make a batch, and what had to be assumed."""

    make: Callable[[int], dict[str, Tensor]]
    note: str


def config_input(network: nn.Module, mode: str) -> ConfigInput | None:
    """The input that a network's configuration tells of; None where there is none that is understood."""
    config = getattr(network, "config", None)
    if config is None:
        return None
    takes = set(signature(network.forward).parameters)
    labelled = "labels" in takes and mode == "training"
    if "input_ids" in takes and _number(config, ("vocab_size",)):
        context = _number(config, _LENGTHS)
        length = min(context or _USUAL_LENGTH, LONGEST)
        ids = (length,), torch.int64
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"input_ids": ids}
        if labelled:
            whole = type(network).__name__.endswith("SequenceClassification")
            shapes["labels"] = ((), torch.int64) if whole else ids
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
            shapes["decoder_input_ids"] = ids
        of = f" of {context:,} that it takes" if context and context > length else ""
        what = f"{length:,} token ids{of}"
    elif "pixel_values" in takes and (channels := _number(config, ("num_channels",))):
        given = getattr(config, "image_size", None) or _USUAL_IMAGE
        height, width = given if isinstance(given, Sequence) else (given, given)
        image = (channels, int(height), int(width))
        shapes = {"pixel_values": (image, torch.float32)} | (
            {"labels": ((), torch.int64)} if labelled else {}
        )
        what = f"images of {'x'.join(map(str, image))}"
    else:
        return None

    def make(size: int) -> dict[str, Tensor]:
        return {
            name: torch.zeros((size, *shape), dtype=dtype, device="meta")
            for name, (shape, dtype) in shapes.items()
        }

    return ConfigInput(make=make, note=f"input from the network's configuration: {what}")


def _number(config: Any, names: Sequence[str]) -> int | None:
    """The first of these that the configuration, or that of its text part, has as a whole number above 0."""
    for part in (config, getattr(config, "text_config", None)):
        for name in names:
            value = getattr(part, name, None)
            if type(value) is int and value > 0:
                return value
    return None
