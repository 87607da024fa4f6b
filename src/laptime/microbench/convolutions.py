"""Convolutions and poolings: windows that slide over images."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from laptime.microbench.families import Case, both_ways, family
from laptime.microbench.random_sizes import Draw, Supply, TooLarge, Window, book

aten = torch.ops.aten
KNOWN = 0.5  # of convolutions that are drawn from the book
LAST = {"cpu": 0.1, "gpu": 0.25}  # of images that have their channels side by side


def channels_last(supply: Supply) -> bool:
    """Whether the next image has its channels side by side: a share of them does."""
    return supply.draw.chance(LAST["cpu" if supply.device.type == "cpu" else "gpu"])


@family(share=10)
def convolution(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """One that networks have, or a random one; forward and backward."""
    draw = supply.draw
    conv = draw.pick(book().windows) if draw.chance(KNOWN) else _random(draw)
    n, out = draw.batch(), conv.out
    if min(out) < 1:
        raise TooLarge
    places, window = n * out[0] * out[1], conv.c // conv.groups * conv.k_h * conv.k_w
    elements = n * conv.c * conv.h * conv.w + places * conv.o + conv.o * window
    supply.check(flops=4.0 * places * window * conv.o, elements=2.0 * elements)
    last = channels_last(supply)
    x = image(supply, (n, conv.c, conv.h, conv.w), dtype, last=last)
    weight = supply.take((conv.o, conv.c // conv.groups, conv.k_h, conv.k_w), dtype)
    # A GPU's library leaves the bias to a kernel of its own, which predictions count by itself.
    bias = supply.take((conv.o,), dtype) if supply.device.type == "cpu" and draw.chance(0.5) else None
    stride, padding, dilation = [conv.s] * 2, [conv.p_h, conv.p_w], [conv.dilation] * 2
    shape = (stride, padding, dilation, False, [0, 0], conv.groups)
    gradient = image(supply, (n, conv.o, *out), dtype, last=last)
    first = conv.c <= 4  # images have no gradient
    mask = [not draw.chance(0.7 if first else 0.03), True, bias is not None]
    sizes = [conv.o] if bias is not None else None
    return both_ways(
        partial(aten.convolution, x, weight, bias, *shape),
        partial(aten.convolution_backward, gradient, x, weight, sizes, *shape, mask),
    )


def image(supply: Supply, shape: tuple[int, int, int, int], dtype: torch.dtype, *, last: bool) -> Tensor:
    """Channel after channel, or with the channels of a pixel side by side."""
    if not last:
        return supply.take(shape, dtype)
    n, c, h, w = shape
    return supply.take((n, h, w, c), dtype).permute(0, 3, 1, 2)


def _random(draw: Draw) -> Window:
    """Dense, pointwise, grouped, depthwise, or the first of a network."""
    style = draw.pick(("dense", "pointwise", "first", "depthwise", "grouped"), (8, 4, 4, 2, 2))
    groups = 1
    if style == "first":
        k = draw.pick((3, 5, 7, 11), (3, 2, 2, 2))
        c, o, s = draw.pick((1, 3), (1, 3)), draw.width(6, 128), draw.pick((1, 2, 4), (3, 2, 2))
    elif style == "pointwise":
        c, o, k, s = draw.width(8, 2048), draw.width(8, 2048), 1, draw.pick((1, 2), (4, 1))
    elif style == "depthwise":
        c = o = groups = draw.width(16, 1024)
        k, s = draw.pick((3, 5, 7), (4, 2, 1)), draw.pick((1, 2), (3, 1))
    elif style == "grouped":
        groups = draw.between(2, 64)
        c = o = groups * draw.width(4, 128)
        k, s = draw.pick((1, 3), (1, 3)), draw.pick((1, 2), (3, 1))
    else:
        k = draw.pick((3, 5, 7), (6, 2, 1))
        c, o, s = draw.width(4, 1024), draw.width(8, 1024), draw.pick((1, 2), (4, 1))
    side = draw.side(24, 256) if style == "first" else draw.side()
    p = k // 2 if draw.chance(0.8) else draw.pick((0, max(0, k // 2 - 1)))
    return Window(c, o, side, side, k, k, s, p, p, groups=groups)


@family(share=2)
def pool(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """The largest of a window, or its mean; forward and backward."""
    draw = supply.draw
    n, c, side = draw.batch(), draw.width(4, 1024), draw.side(6, 128)
    supply.check(elements=6.0 * n * c * side * side)
    last = channels_last(supply)
    x = image(supply, (n, c, side, side), dtype, last=last)
    style = draw.pick(("max", "mean", "adaptive"), (6, 3, 1))
    if style == "adaptive":
        few = min(side, draw.pick((2, 6, 7)))
        gradient = image(supply, (n, c, few, few), dtype, last=last)
        forward = partial(aten._adaptive_avg_pool2d, x, [few, few])
        return both_ways(forward, partial(aten._adaptive_avg_pool2d_backward, gradient, x))
    k = draw.pick((2, 3, 5), (4, 4, 1))
    s, p, up = draw.pick((1, 2, 3), (2, 5, 1)), draw.pick((0, k // 2)), draw.chance(0.2)
    window = ([k, k], [s, s], [p, p])
    if style == "mean":
        forward = partial(aten.avg_pool2d, x, *window, up)
        gradient = image(supply, forward().shape, dtype, last=last)
        return both_ways(forward, partial(aten.avg_pool2d_backward, gradient, x, *window, up, True, None))
    forward = partial(aten.max_pool2d_with_indices, x, *window, [1, 1], up)
    out, places = forward()
    gradient = image(supply, out.shape, dtype, last=last)
    backward = partial(aten.max_pool2d_with_indices_backward, gradient, x, *window, [1, 1], up, places)
    return both_ways(forward, backward)
