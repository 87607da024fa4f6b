"""Norms, softmax and reductions: passes that look at a row or a channel as a whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from laptime.microbench.case import Case
from laptime.microbench.convolutions import LAST, image
from laptime.microbench.families import family
from laptime.microbench.random_sizes import Supply

aten = torch.ops.aten
_EPS = 1e-5
_ALL = [True, True, True]


@family(share=2)
def batch_norm(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of images, with the library that torch chooses; forward and backward."""
    draw = supply.draw
    n, c, side = draw.batch(), draw.width(8, 2048), draw.side(2, 128)
    supply.check(elements=6.0 * n * c * side * side)
    last = draw.chance(LAST[supply.device.type])
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
    return [Case(call=forward, kept=True), Case(call=backward)]


@family(share=2)
def softmax(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """And its logarithm, over the last dimension; forward and backward."""
    draw = supply.draw
    r, d = draw.between(1, 65_536), draw.width(2, 4096) if draw.chance(0.7) else draw.between(1000, 60_000)
    supply.check(elements=6.0 * r * d)
    x, gradient = (supply.take((r, d), dtype) for _ in range(2))
    forward, backward = draw.pick(
        (
            (aten._softmax, aten._softmax_backward_data),
            (aten._log_softmax, aten._log_softmax_backward_data),
        )
    )
    out = forward(x, 1, False)
    return [
        Case(call=partial(forward, x, 1, False), kept=True),
        Case(call=partial(backward, gradient, out, 1, dtype)),
    ]


@family(share=3)
def reduction(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Of rows (a bias's gradient), of images, of all there is."""
    draw = supply.draw
    call: Any
    match draw.pick(("rows", "pixels", "columns", "images", "channels", "all"), (4, 2, 2, 2, 1, 1)):
        case "rows":
            shape = draw.between(2, 16_384), draw.width(4, 16_384)
            call = partial(aten.sum, _checked(supply, shape, dtype), [0], True)
        case "pixels":
            side = draw.side(2, 64)
            x = _checked(supply, (draw.batch(), side, side, draw.width(8, 2048)), dtype)
            call = partial(aten.sum, x, [0, 1, 2], True)
        case "columns":
            shape = draw.between(2, 16_384), draw.width(4, 16_384)
            call = partial(draw.pick((aten.mean, aten.sum, aten.amax)), _checked(supply, shape, dtype), [-1])
        case "images" | "channels" as style:
            side = draw.side(2, 64)
            x = _checked(supply, (draw.batch(), draw.width(8, 2048), side, side), dtype)
            call = partial(aten.mean, x, [2, 3], True)
            if style == "channels":
                call = partial(aten.sum, x, [0, 2, 3])
        case _:
            call = partial(aten.sum, supply.take((draw.between(256, supply.most),), dtype))
    return [Case(call=call)]


def _checked(supply: Supply, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    supply.check(elements=2.0 * count)
    return supply.take(shape, dtype)
