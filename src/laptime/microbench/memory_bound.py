"""What is bound by memory: functions of single elements, fills, copies, look-ups."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from laptime.microbench.case import Case
from laptime.microbench.families import family
from laptime.microbench.random_sizes import Supply

aten = torch.ops.aten

# As often as networks have them. `x` and `y` are tensors of one shape.
_FUNCTIONS: dict[str, int] = {
    "relu": 2,
    "relu_": 3,
    "threshold_backward": 4,
    "add": 4,
    "add_": 2,
    "mul": 2,
    "div": 1,
    "sigmoid": 1,
    "sigmoid_backward": 1,
    "tanh": 1,
    "tanh_backward": 1,
    "gelu": 1,
    "gelu_backward": 1,
    "silu": 1,
    "silu_backward": 1,
    "hardswish": 1,
    "hardswish_backward": 1,
    "pow": 1,
    "native_dropout": 2,
    "native_dropout_backward": 2,
    "add_row": 2,
    "mul_column": 2,
}


def _plane(supply: Supply, least: int = 64) -> tuple[int, int]:
    """Rows and columns of so many elements that they can be passed over in time."""
    count = supply.draw.between(least, supply.most)
    columns = min(count, supply.draw.width(4, 4096))
    return max(1, count // columns), columns


@family(share=6)
def elementwise(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """A function of one or two tensors, or of a tensor and a row or column."""
    name = supply.draw.pick(tuple(_FUNCTIONS), tuple(_FUNCTIONS.values()))
    shape = _plane(supply)
    return [function(name, supply, shape, dtype)]


def function(name: str, supply: Supply, shape: tuple[int, int], dtype: torch.dtype) -> Case:
    """One of them by name."""
    x = supply.take(shape, dtype)
    operation: Any = getattr(aten, name, None)
    match name:
        case "relu_":
            return Case(call=partial(operation, supply.own(shape, dtype)))
        case "add_":
            return Case(call=partial(operation, supply.own(shape, dtype), x))
        case "threshold_backward":
            return Case(call=partial(operation, x, supply.take(shape, dtype), 0))
        case "pow":
            return Case(call=partial(operation, x, 2), kept=True)
        case "native_dropout":
            if supply.device.type == "cuda":
                return Case(call=partial(operation, x, 0.1, True), kept=True)
            return Case(
                call=partial(torch.nn.functional.dropout, x, 0.1, True),
                shown=partial(operation, x, 0.1, True),
                kept=True,
            )
        case "native_dropout_backward":
            return Case(call=partial(operation, x, supply.take(shape, dtype) > 0, 1.1))
        case "add_row":
            return Case(call=partial(aten.add, x, supply.take(shape[1:], dtype)), kept=True)
        case "mul_column":
            return Case(call=partial(aten.mul, x, supply.take((shape[0], 1), dtype)), kept=True)
    if name in ("add", "mul", "div") or name.endswith("_backward"):
        return Case(call=partial(operation, x, supply.take(shape, dtype)), kept=name in ("add", "mul"))
    return Case(call=partial(operation, x), kept=True)


@family()
def fill(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """With one value."""
    x = supply.own(_plane(supply, 1), dtype)
    operation = supply.draw.pick((aten.zeros_like, aten.ones_like, aten.zero_))
    return [Case(call=partial(operation, x), kept=operation is not aten.zero_)]


@family(share=2)
def copy(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """In the same order: as they are, as another type, into place."""
    shape = _plane(supply)
    x = supply.take(shape, dtype)
    match supply.draw.pick(("clone", "cast", "into")):
        case "cast":
            other = torch.float32 if dtype is torch.bfloat16 else torch.bfloat16
            return [Case(call=partial(aten._to_copy, x, dtype=other), kept=True)]
        case "into":
            return [Case(call=partial(aten.copy_, supply.own(shape, dtype), x))]
    return [Case(call=partial(aten.clone, x), kept=True)]


@family(share=2)
def permuted(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Into another order: heads of attention, channels, a transposed matrix."""
    draw = supply.draw
    if draw.chance(0.3):
        x = supply.take(_plane(supply), dtype).t()
    else:
        shape = (draw.batch(), draw.width(2, 1024), draw.pick((2, 4, 8, 12, 16)), draw.width(4, 256))
        supply.check(elements=2.0 * shape[0] * shape[1] * shape[2] * shape[3])
        order = draw.pick(((0, 2, 1, 3), (0, 2, 3, 1), (0, 3, 1, 2), (2, 0, 1, 3)), (5, 2, 2, 1))
        x = supply.take(shape, dtype).permute(order)
    return [Case(call=partial(aten.clone, x, memory_format=torch.contiguous_format), kept=True)]


@family()
def cat(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of a few tensors, along channels or rows."""
    draw = supply.draw
    parts, (rows, columns) = draw.pick((2, 3, 4)), _plane(supply)
    sizes = [max(1, columns // parts) for _ in range(parts)]
    dim = draw.pick((0, 1))
    tensors: list[Tensor] = [supply.take((max(1, rows // 2), size), dtype) for size in sizes]
    return [Case(call=partial(aten.cat, tensors, dim), kept=True)]


@family(low=False)
def gather(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Rows of a table by their numbers, and its gradient; single scores."""
    draw = supply.draw
    t, d, v = draw.between(1, 32_768), draw.width(16, 2048), draw.between(2, 60_000)
    supply.check(elements=3.0 * (t * d + v * d))
    if draw.chance(0.3):
        scores, labels = supply.take((t, d), dtype), supply.ids((t,), d)
        return [Case(call=partial(aten.nll_loss_forward, scores, labels, None, 1, -100))]
    table, ids, gradient = supply.take((v, d), dtype), supply.ids((t,), v), supply.take((t, d), dtype)
    return [
        Case(call=partial(aten.embedding, table, ids), kept=True),
        Case(call=partial(aten.embedding_dense_backward, gradient, ids, v, -1, False)),
    ]
