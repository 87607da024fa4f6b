"""Convolutions and poolings: windows that slide over images."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from laptime.microbench.case import Case
from laptime.microbench.families import family
from laptime.microbench.network_shapes import Window, book
from laptime.microbench.random_sizes import Draw, Supply, TooLarge

aten = torch.ops.aten
KNOWN = 0.5  # of convolutions that are drawn from the book
LAST = {"cpu": 0.1, "cuda": 0.25}  # of images that have their channels side by side


@family(share=10)
def convolution(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """One that networks have, or a random one; forward and backward."""
    draw = supply.draw
    conv = draw.pick(book().windows) if draw.chance(KNOWN) else _random(draw)
    n, out = draw.batch(), conv.out
    if min(out) < 1:
        raise TooLarge
    places, window = n * out[0] * out[1], conv.c // conv.groups * conv.k[0] * conv.k[1]
    elements = n * conv.c * conv.h * conv.w + places * conv.o + conv.o * window
    supply.check(flops=4.0 * places * window * conv.o, elements=2.0 * elements)
    last = draw.chance(LAST[supply.device.type])
    x = image(supply, (n, conv.c, conv.h, conv.w), dtype, last=last)
    weight = supply.take((conv.o, conv.c // conv.groups, *conv.k), dtype)
    # A GPU's library leaves the bias to a kernel of its own, which predictions count by itself.
    bias = supply.take((conv.o,), dtype) if supply.device.type == "cpu" and draw.chance(0.5) else None
    stride, padding, dilation = [conv.s] * 2, list(conv.p), [conv.dilation] * 2
    shape = (stride, padding, dilation, False, [0, 0], conv.groups)
    gradient = image(supply, (n, conv.o, *out), dtype, last=last)
    first = conv.c <= 4  # images have no gradient
    mask = [not draw.chance(0.7 if first else 0.03), True, bias is not None]
    sizes = [conv.o] if bias is not None else None
    return [
        Case(call=partial(aten.convolution, x, weight, bias, *shape), kept=True),
        Case(call=partial(aten.convolution_backward, gradient, x, weight, sizes, *shape, mask)),
    ]


def image(supply: Supply, shape: tuple[int, int, int, int], dtype: torch.dtype, *, last: bool) -> Tensor:
    """Channel after channel, or with the channels of a pixel side by side."""
    if not last:
        return supply.take(shape, dtype)
    n, c, h, w = shape
    return supply.take((n, h, w, c), dtype).permute(0, 3, 1, 2)


def _random(draw: Draw) -> Window:
    """Dense, pointwise, grouped, depthwise, or the first of a network."""
    style = draw.pick(("dense", "pointwise", "first", "depthwise", "grouped"), (8, 4, 4, 2, 2))
    c, o, k, s, groups = _channels(draw, style)
    side = draw.side(24, 256) if style == "first" else draw.side()
    p = k // 2 if draw.chance(0.8) else draw.pick((0, max(0, k // 2 - 1)))
    return Window(c=c, o=o, h=side, w=side, k=(k, k), s=s, p=(p, p), groups=groups)


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
            groups, each = draw.between(2, 64), draw.width(4, 128)
            return groups * each, groups * each, draw.pick((1, 3), (1, 3)), draw.pick((1, 2), (3, 1)), groups
    k = draw.pick((3, 5, 7), (6, 2, 1))
    return draw.width(4, 1024), draw.width(8, 1024), k, draw.pick((1, 2), (4, 1)), 1


@family(share=2)
def pool(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """The largest of a window, or its mean; forward and backward."""
    draw = supply.draw
    n, c, side = draw.batch(), draw.width(4, 1024), draw.side(6, 128)
    supply.check(elements=6.0 * n * c * side * side)
    last = draw.chance(LAST[supply.device.type])
    x = image(supply, (n, c, side, side), dtype, last=last)
    style = draw.pick(("max", "mean", "adaptive"), (6, 3, 1))
    if style == "adaptive":
        few = min(side, draw.pick((2, 6, 7)))
        gradient = image(supply, (n, c, few, few), dtype, last=last)
        return [
            Case(call=partial(aten._adaptive_avg_pool2d, x, [few, few]), kept=True),
            Case(call=partial(aten._adaptive_avg_pool2d_backward, gradient, x)),
        ]
    k = draw.pick((2, 3, 5), (4, 4, 1))
    s, p, up = draw.pick((1, 2, 3), (2, 5, 1)), draw.pick((0, k // 2)), draw.chance(0.2)
    window = ([k, k], [s, s], [p, p])
    if style == "mean":
        forward = partial(aten.avg_pool2d, x, *window, up)
        gradient = image(supply, forward().shape, dtype, last=last)
        return [
            Case(call=forward, kept=True),
            Case(call=partial(aten.avg_pool2d_backward, gradient, x, *window, up, True, None)),
        ]
    largest = partial(aten.max_pool2d_with_indices, x, *window, [1, 1], up)
    out, places = largest()
    gradient = image(supply, out.shape, dtype, last=last)
    backward = partial(aten.max_pool2d_with_indices_backward, gradient, x, *window, [1, 1], up, places)
    return [Case(call=largest, kept=True), Case(call=backward)]
