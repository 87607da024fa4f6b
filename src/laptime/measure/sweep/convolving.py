"""Convolutions and poolings: windows that slide over images."""

from __future__ import annotations

from functools import partial

import torch

from laptime.measure.sweep.case import Case
from laptime.measure.sweep.draw import Draw, Supply, TooLarge

aten = torch.ops.aten


def convolution(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Dense, pointwise, grouped, depthwise, and the first of a network; forward and backward."""
    draw = supply.draw
    style = draw.pick(("dense", "pointwise", "first", "depthwise", "grouped"), (8, 4, 4, 2, 1))
    n, side = draw.batch(), draw.side()
    c, o, k, s, groups = _channels(draw, style)
    p = k // 2 if draw.chance(0.8) else draw.pick((0, max(0, k // 2 - 1)))
    if style == "first":
        side = draw.side(24, 256)
    if side + 2 * p < k:
        raise TooLarge
    out = (side + 2 * p - k) // s + 1
    places, window = n * out * out, c // groups * k * k
    elements = n * c * side * side + places * o + o * window
    supply.check(flops=4.0 * places * window * o, elements=2.0 * elements)
    x, weight = supply.take((n, c, side, side), dtype), supply.take((o, c // groups, k, k), dtype)
    # A GPU's library leaves the bias to a kernel of its own, which predictions count by itself.
    bias = supply.take((o,), dtype) if supply.device.type == "cpu" and draw.chance(0.5) else None
    shape = ([s, s], [p, p], [1, 1], False, [0, 0], groups)
    gradient = supply.take((n, o, out, out), dtype)
    to_input = not draw.chance(0.7 if style == "first" else 0.03)
    has_bias = bias is not None
    return [
        Case(call=partial(aten.convolution, x, weight, bias, *shape), kept=True),
        Case(
            call=partial(
                aten.convolution_backward,
                gradient,
                x,
                weight,
                [o] if has_bias else None,
                *shape,
                [to_input, True, has_bias],
            )
        ),
    ]


def _channels(draw: Draw, style: str) -> tuple[int, int, int, int, int]:
    """Channels in and out, the window's side, the stride, groups."""
    match style:
        case "first":
            k = draw.pick((3, 5, 7, 11), (3, 2, 2, 2))
            return draw.pick((1, 3), (1, 3)), draw.width(6, 128), k, draw.pick((1, 2, 4), (3, 2, 2)), 1
        case "pointwise":
            return draw.width(8, 2048), draw.width(8, 2048), 1, draw.pick((1, 2), (4, 1)), 1
        case "depthwise":
            c = draw.width(16, 1024)
            return c, c, draw.pick((3, 5, 7), (4, 2, 1)), draw.pick((1, 2), (3, 1)), c
        case "grouped":
            groups = draw.pick((2, 4, 8, 32))
            each = draw.width(2, 64)
            return groups * each, groups * each, draw.pick((1, 3), (1, 3)), draw.pick((1, 2), (3, 1)), groups
    k = draw.pick((3, 5, 7), (6, 2, 1))
    return draw.width(4, 1024), draw.width(8, 1024), k, draw.pick((1, 2), (4, 1)), 1


def pool(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """The largest of a window, or its mean; forward and backward."""
    draw = supply.draw
    n, c, side = draw.batch(), draw.width(4, 1024), draw.side(6, 128)
    supply.check(elements=6.0 * n * c * side * side)
    x = supply.take((n, c, side, side), dtype)
    style = draw.pick(("max", "mean", "adaptive"), (6, 3, 1))
    if style == "adaptive":
        few = min(side, draw.pick((2, 6, 7)))
        gradient = supply.take((n, c, few, few), dtype)
        return [
            Case(call=partial(aten._adaptive_avg_pool2d, x, [few, few]), kept=True),
            Case(call=partial(aten._adaptive_avg_pool2d_backward, gradient, x)),
        ]
    k = draw.pick((2, 3, 5), (4, 4, 1))
    s, p, up = draw.pick((1, 2, 3), (2, 5, 1)), draw.pick((0, k // 2)), draw.chance(0.2)
    window = ([k, k], [s, s], [p, p])
    if style == "mean":
        forward = partial(aten.avg_pool2d, x, *window, up)
        gradient = supply.take(forward().shape, dtype)
        return [
            Case(call=forward, kept=True),
            Case(call=partial(aten.avg_pool2d_backward, gradient, x, *window, up, True, None)),
        ]
    largest = partial(aten.max_pool2d_with_indices, x, *window, [1, 1], up)
    out, places = largest()
    gradient = supply.take(out.shape, dtype)
    backward = partial(aten.max_pool2d_with_indices_backward, gradient, x, *window, [1, 1], up, places)
    return [Case(call=largest, kept=True), Case(call=backward)]
