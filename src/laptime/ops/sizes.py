"""Sizes of tensors, known by their attributes alone (torch is not imported), and features of sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

TILES = 32, 64, 128, 256  # of outputs that a matrix kernel computes together, along either side


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor."""
    return hasattr(value, "element_size")


def listed(value: Any) -> Sequence[Any]:
    """The value if it is a sequence, else a list of it."""
    return value if isinstance(value, tuple | list) else [value]


def tensors_in(value: Any) -> Iterator[Any]:
    """Every tensor of a value, through tuples, lists and dictionaries."""
    if is_tensor(value):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def first_tensor(args: Sequence[Any]) -> Any | None:
    """The first argument that is a tensor."""
    return next((value for value in args if is_tensor(value)), None)


def channels_last(*tensors: Any) -> int:
    """Whether one of them has its channels side by side in memory, for which libraries have other kernels."""
    return int(any(tensor.dim() == 4 and not tensor.is_contiguous() and _nhwc(tensor) for tensor in tensors))


def _nhwc(tensor: Any) -> bool:
    sizes, strides, expected = tensor.shape, tensor.stride(), 1
    for axis in (1, 3, 2, 0):
        if sizes[axis] != 1 and strides[axis] != expected:
            return False
        expected *= sizes[axis]
    return True


def log2(value: float) -> float:
    """The logarithm; -1 where there is none."""
    return math.log2(value) if value > 0 else -1.0


def filled(count: float, tile: int) -> float:
    """The share of whole tiles that is used."""
    return count / (math.ceil(count / tile) * tile)


def waves(rows: float, columns: float, groups: int) -> float:
    """How often an H200's 132 multiprocessors are filled with tiles of 128; at most thirty counts."""
    return min(30.0, math.ceil(rows / 128) * math.ceil(columns / 128) * groups / 132)
