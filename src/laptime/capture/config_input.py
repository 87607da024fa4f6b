"""What a network takes, from the configuration that `transformers` leaves on it (`network.config`).

Only attributes are read, so `transformers` itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
LONGEST = 4096  # token ids of a sample: contexts of 128 Ki are seldom trained at their full length
_USUAL_LENGTH = 512  # of configurations that name none, such as those with relative positions
_USUAL_IMAGE = 224  # of configurations that name no size, since any would do


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
    if "input_ids" in takes and _number(config, ("vocab_size",)):
        return _of_ids(network, config, takes, mode)
    if "pixel_values" in takes and _number(config, ("num_channels",)):
        return _of_images(config, takes, mode)
    return None


def _of_ids(network: nn.Module, config: Any, takes: set[str], mode: str) -> ConfigInput:
    context = _number(config, _LENGTHS)
    length = min(context or _USUAL_LENGTH, LONGEST)
    each = (length,)
    shapes: dict[str, tuple[int, ...]] = {"input_ids": each}
    if "labels" in takes and mode == "training":
        shapes["labels"] = () if type(network).__name__.endswith("SequenceClassification") else each
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        shapes["decoder_input_ids"] = each
    of = f" of {context:,} that it takes" if context and context > length else ""
    return ConfigInput(
        make=_maker({name: (shape, torch.int64) for name, shape in shapes.items()}),
        note=f"input from the network's configuration: {length:,} token ids{of}",
    )


def _of_images(config: Any, takes: set[str], mode: str) -> ConfigInput:
    given = getattr(config, "image_size", None) or _USUAL_IMAGE
    height, width = given if isinstance(given, Sequence) else (given, given)
    shape = (_number(config, ("num_channels",)) or 3, int(height), int(width))
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"pixel_values": (shape, torch.float32)}
    if "labels" in takes and mode == "training":
        shapes["labels"] = ((), torch.int64)
    return ConfigInput(
        make=_maker(shapes),
        note=f"input from the network's configuration: images of {'x'.join(map(str, shape))}",
    )


def _maker(shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> Callable[[int], dict[str, Tensor]]:
    def make(size: int) -> dict[str, Tensor]:
        return {
            name: torch.zeros((size, *shape), dtype=dtype, device="meta")
            for name, (shape, dtype) in shapes.items()
        }

    return make


def _number(config: Any, names: Sequence[str]) -> int | None:
    """The first of these that the configuration, or that of its text part, has as a whole number above 0."""
    for part in (config, getattr(config, "text_config", None)):
        for name in names:
            value = getattr(part, name, None)
            if type(value) is int and value > 0:
                return value
    return None
