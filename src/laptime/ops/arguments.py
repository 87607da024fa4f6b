"""Arguments and results of an operation, known by their attributes alone: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


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
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


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
