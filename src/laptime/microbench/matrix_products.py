"""Matrix products, and what libraries make of many of them: attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laptime.capture.cuda_choices import operations as own
from laptime.microbench.families import Case, InTurns, family
from laptime.microbench.random_sizes import Supply, book

aten = torch.ops.aten
KNOWN = 0.5  # of products that are drawn from the book
_UNCACHED, _TURNS = 256 << 20, 16  # bytes that no cache holds, in at most so many tensors


def _matrix(supply: Supply, shape: tuple[int, ...], dtype: torch.dtype, transposed: int) -> Tensor:
    if not transposed:
        return supply.take(shape, dtype)
    return supply.take((*shape[:-2], shape[-1], shape[-2]), dtype).mT


@family(share=6)
def mm(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """A linear layer's products: forward with a bias, to the input, to the weight."""
    draw = supply.draw
    rows, a, b = draw.batch(8192), draw.width(4, 16384), draw.width(4, 16384)
    if draw.chance(0.4):
        rows = draw.between(1, 256)  # of a network without a sequence: a batch
    if draw.chance(0.05):
        b = draw.between(5000, 60_000)  # words
    if draw.chance(KNOWN):
        each, a, b = draw.pick(book().linear)
        rows = each * draw.batch()
    supply.check(flops=2.0 * rows * a * b, elements=rows * a + a * b + rows * b)
    style = draw.pick(("forward", "plain", "to_input", "to_weight"), (3, 1, 2, 2))
    # A step comes back to a weight after everything else: it is in no cache then.
    turns = range(min(_TURNS, _UNCACHED // (a * b * dtype.itemsize) + 1) if style != "to_weight" else 1)
    if style == "forward":
        x, bias = supply.take((rows, a), dtype), supply.take((b,), dtype)
        weights = [supply.take((b, a), dtype).t() for _ in turns]
        return [Case(call=InTurns([partial(aten.addmm, bias, x, weight) for weight in weights]), kept=True)]
    if style == "to_weight":
        gradient, x = supply.take((rows, b), dtype), supply.take((rows, a), dtype)
        return [Case(call=partial(aten.mm, gradient.t(), x), kept=True)]  # a gradient lives until the update
    x = supply.take((rows, a), dtype)
    weights = [_matrix(supply, (a, b), dtype, style == "plain") for _ in turns]
    return [Case(call=InTurns([partial(aten.mm, x, weight) for weight in weights]))]


@family(share=2)
def bmm(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """Many products of one shape: attention by hand."""
    draw = supply.draw
    b, m, n = draw.width(1, 1024), draw.width(4, 2048), draw.width(4, 2048)
    k = draw.pick((16, 32, 64, 128)) if draw.chance(0.6) else draw.width(4, 2048)
    ta, tb = draw.pick(((0, 0), (0, 1), (1, 0)))
    if draw.chance(KNOWN):
        b, m, k, n, ta, tb = draw.pick(book().batched)
        b *= draw.batch()
    supply.check(flops=2.0 * b * m * k * n, elements=b * (m * k + k * n + m * n))
    call = partial(aten.bmm, _matrix(supply, (b, m, k), dtype, ta), _matrix(supply, (b, k, n), dtype, tb))
    return [Case(call=call, kept=draw.chance(0.5))]


@family(share=2)
def attention(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """The kernel that torch chooses here, forward and backward."""
    draw = supply.draw
    b, h, s = draw.batch(64), draw.pick((1, 2, 4, 6, 8, 12, 16, 32)), draw.width(8, 2048)
    d, causal = draw.pick((16, 32, 64, 80, 96, 128), (1, 3, 6, 1, 1, 3)), draw.chance(0.5)
    supply.check(flops=8.0 * b * h * s * s * d, elements=8.0 * b * h * s * d)
    q, k, v, gradient = (supply.take((b, h, s, d), dtype) for _ in range(4))
    sums = torch.empty((b, h, s), device=supply.device)
    need = q.detach().requires_grad_(), k.detach().requires_grad_(), v.detach().requires_grad_()
    attend = partial(F.scaled_dot_product_attention, is_causal=causal)
    with torch.enable_grad():
        out = attend(*need)
    return [
        Case(call=partial(attend, q, k, v), shown=partial(own.attention, q, k, v, causal), kept=True),
        Case(
            call=partial(_gradients, out, need, gradient),
            shown=partial(own.attention_backward, gradient, q, k, v, out.detach(), sums, causal),
        ),
    ]


@family()
def recurrent(supply: Supply, dtype: torch.dtype) -> list[Case]:
    """LSTM, GRU and plain layers over a sequence, forward and backward."""
    draw = supply.draw
    make, gates = draw.pick(((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)), (4, 2, 1))
    b, s, h = draw.batch(128), draw.between(4, 128), draw.width(16, 1024)
    i, layers = h if draw.chance(0.7) else draw.width(8, 512), draw.pick((1, 2, 3), (3, 2, 1))
    both = 2 if draw.chance(0.2) else 1
    weights = gates * h * (i + h + (layers - 1) * (both + 1) * h) * both
    # Step after step, such small products reach little of the peak: hence the sixfold.
    supply.check(flops=6 * 2.0 * b * s * weights, elements=4.0 * weights)
    layer = make(i, h, layers, bidirectional=both == 2, device=supply.device, dtype=dtype)
    x = supply.take((s, b, i), dtype)
    need = x.detach().requires_grad_()
    with torch.enable_grad():
        out = layer(need)[0]
    gradient = supply.take(out.shape, dtype)
    parameters = [parameter.detach() for parameter in layer.parameters()]
    form = (gates, h, layers, both)
    reserve = own.recurrent(x, parameters, *form)[1]
    return [
        Case(
            call=partial(_with_graph, layer, need),
            shown=partial(own.recurrent, x, parameters, *form),
            kept=True,
        ),
        Case(
            call=partial(_gradients, out, (need, *layer.parameters()), gradient),
            shown=partial(own.recurrent_backward, gradient, x, parameters, reserve, *form),
        ),
    ]


def _with_graph(layer: Any, x: Tensor) -> Any:
    """As in training: libraries keep more than in inference."""
    with torch.enable_grad():
        return layer(x)[0]


def _gradients(out: Tensor, of: Sequence[Tensor], gradient: Tensor) -> Any:
    return torch.autograd.grad(out, of, gradient, retain_graph=True)
