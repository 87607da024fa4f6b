"""What is bound by memory: functions of single elements, copies, look-ups, norms, reductions, the update."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laptime.microbench.convolutions import channels_last, image
from laptime.microbench.families import Case, both_ways, family
from laptime.microbench.random_sizes import Supply
from laptime.ops.optimizers import OPTIMIZERS, update_operation

aten = torch.ops.aten
_EPS = 1e-5
_ALL = [True, True, True]
_MOMENTUM = OPTIMIZERS["momentum"]

# Functions by their arguments (see `elementwise`), each as often as networks have it.
_FUNCTIONS: dict[tuple[Any, ...], dict[str, int]] = {
    ("x",): {"relu": 2, "sigmoid": 1, "tanh": 1, "gelu": 1, "silu": 1, "hardswish": 1},
    ("own",): {"relu_": 3},
    ("own", "x"): {"add_": 2},
    ("x", "y"): {"add": 4, "mul": 2, "div": 1}
    | dict.fromkeys([f"{name}_backward" for name in ("sigmoid", "tanh", "gelu", "silu", "hardswish")], 1),
    ("x", "y", 0): {"threshold_backward": 4},
    ("x", 2): {"pow": 1},
    ("x", 0.1, True): {"native_dropout": 2},
    ("x", "mask", 1.1): {"native_dropout_backward": 2},
    ("x", "row"): {"add": 2},
    ("x", "column"): {"mul": 2},
}


def _plane(supply: Supply, least: int = 64) -> tuple[int, int]:
    """Rows and columns of so many elements that they can be passed over in time."""
    count = supply.draw.between(least, supply.most)
    columns = min(count, supply.draw.width(4, 4096))
    return max(1, count // columns), columns


@family(share=6)
def elementwise(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """A function of one or two tensors, or of a tensor and a row or column."""
    arguments = supply.draw.pick([*_FUNCTIONS], [sum(names.values()) for names in _FUNCTIONS.values()])
    name = supply.draw.pick([*_FUNCTIONS[arguments]], [*_FUNCTIONS[arguments].values()])
    rows, columns = _plane(supply)
    x = supply.take((rows, columns), dtype)
    tensors: dict[Any, Callable[[], Tensor]] = {
        "x": lambda: x,
        "y": lambda: supply.take((rows, columns), dtype),
        "own": lambda: supply.own((rows, columns), dtype),
        "mask": lambda: supply.take((rows, columns), dtype) > 0,
        "row": lambda: supply.take((columns,), dtype),
        "column": lambda: supply.take((rows, 1), dtype),
    }
    given: list[Any] = [tensors[argument]() if argument in tensors else argument for argument in arguments]
    call = partial(getattr(aten, name), *given)
    if name == "native_dropout" and supply.device.type != "cuda":
        return [Case(call=partial(torch.nn.functional.dropout, *given), shown=call, kept=True)]
    return [Case(call=call, kept=name != "div" and not name.endswith(("_", "_backward")))]


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
        supply.check(elements=2.0 * math.prod(shape))
        order = draw.pick(((0, 2, 1, 3), (0, 2, 3, 1), (0, 3, 1, 2), (2, 0, 1, 3)), (5, 2, 2, 1))
        x = supply.take(shape, dtype).permute(order)
    return [Case(call=partial(aten.clone, x, memory_format=torch.contiguous_format), kept=True)]


@family()
def cat(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of a few tensors, along channels or rows."""
    draw = supply.draw
    parts, (rows, columns) = draw.pick((2, 3, 4)), _plane(supply)
    dim = draw.pick((0, 1))
    tensors = [supply.take((max(1, rows // 2), max(1, columns // parts)), dtype) for _ in range(parts)]
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
    return both_ways(
        partial(aten.embedding, table, ids),
        partial(aten.embedding_dense_backward, gradient, ids, v, -1, False),
    )


@family(share=2)
def batch_norm(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of images, with the library that torch chooses; forward and backward."""
    draw = supply.draw
    n, c, side = draw.batch(), draw.width(8, 2048), draw.side(2, 128)
    supply.check(elements=6.0 * n * c * side * side)
    last = channels_last(supply)
    x, gradient = (image(supply, (n, c, side, side), dtype, last=last) for _ in range(2))
    # Autocast leaves a norm's own parameters in float32.
    weight, bias = (supply.take((c,), torch.float32) for _ in range(2))
    mean, variance = torch.zeros(c, device=x.device), torch.ones(c, device=x.device)
    given = (x, weight, bias, mean, variance, True, 0.1, _EPS)
    forward = partial(aten._batch_norm_impl_index, *given, True)
    _, saved_mean, scale, reserve, library = forward()
    stays = (weight, mean, variance, saved_mean, scale)
    backward = partial(
        aten._batch_norm_impl_index_backward, library, x, gradient, *stays, True, _EPS, _ALL, reserve
    )
    native = partial(aten.native_batch_norm_backward, gradient, x, *stays, True, _EPS, _ALL)
    return [
        Case(call=forward, shown=partial(aten.native_batch_norm, *given), kept=True),
        Case(call=backward, shown=native),
    ]


@family()
def layer_norm(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of rows, forward and backward."""
    draw = supply.draw
    r, d = draw.between(4, 65_536), draw.width(16, 8192)
    supply.check(elements=6.0 * r * d)
    x, gradient = (supply.take((r, d), dtype) for _ in range(2))
    weight, bias = (supply.take((d,), dtype) for _ in range(2))
    forward = partial(aten.native_layer_norm, x, [d], weight, bias, _EPS)
    _, mean, scale = forward()
    backward = partial(aten.native_layer_norm_backward, gradient, x, [d], mean, scale, weight, bias, _ALL)
    return both_ways(forward, backward)


@family(share=2)
def softmax(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """And its logarithm, over the last dimension; forward and backward."""
    draw = supply.draw
    r, d = draw.between(1, 65_536), draw.width(2, 4096) if draw.chance(0.7) else draw.between(1000, 60_000)
    supply.check(elements=6.0 * r * d)
    x, gradient = (supply.take((r, d), dtype) for _ in range(2))
    pair = (aten._softmax, aten._softmax_backward_data)
    logarithmic = (aten._log_softmax, aten._log_softmax_backward_data)
    function, its_gradient = draw.pick((pair, logarithmic))
    forward = partial(function, x, 1, False)
    return both_ways(forward, partial(its_gradient, gradient, forward(), 1, dtype))


@family(share=3)
def reduction(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of rows (a bias's gradient), of images, of all there is."""
    draw = supply.draw
    style = draw.pick(("rows", "pixels", "columns", "images", "channels", "all"), (4, 2, 2, 2, 1, 1))
    if style == "all":
        return [Case(call=partial(aten.sum, supply.take((draw.between(256, supply.most),), dtype)))]
    shape: tuple[int, ...]
    if style in ("rows", "columns"):
        shape = draw.between(2, 16_384), draw.width(4, 16_384)
    else:
        side, n, c = draw.side(2, 64), draw.batch(), draw.width(8, 2048)
        shape = (n, side, side, c) if style == "pixels" else (n, c, side, side)
    how: dict[str, tuple[Any, ...]] = {
        "rows": ([0], True),
        "pixels": ([0, 1, 2], True),
        "columns": ([-1],),
        "images": ([2, 3], True),
        "channels": ([0, 2, 3],),
    }
    operation = aten.mean if style == "images" else aten.sum
    if style == "columns":
        operation = draw.pick((aten.mean, aten.sum, aten.amax))
    supply.check(elements=2.0 * math.prod(shape))
    return [Case(call=partial(operation, supply.take(shape, dtype), *how[style]))]


@family(low=False)
def optimizer(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """SGD with momentum, as torch runs it by default: all tensors of a network, most small, at once."""
    draw = supply.draw
    tensors = draw.between(1, 200)
    count = draw.between(tensors * 16, max(tensors * 32, supply.most))
    supply.check(elements=float(_MOMENTUM.passes * count))
    shares = [draw.random.paretovariate(0.6) for _ in range(tensors)]
    sizes = [max(1, int(count * share / sum(shares))) for share in shares]
    parameters = [nn.Parameter(supply.own((size,), dtype)) for size in sizes]
    for parameter in parameters:
        parameter.grad = supply.take(parameter.shape, dtype)
    chosen = torch.optim.SGD(parameters, lr=1e-9, momentum=0.9)
    chosen.step()  # makes the momentum
    whole = sum(sizes)
    return [Case(call=chosen.step, known=update_operation(_MOMENTUM, whole, tensors, 4 * whole))]
