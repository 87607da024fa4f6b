"""Operations of our own, for what is one kernel on CUDA and several operations, or another, on a CPU.

Attention, recurrent layers, and softmax that widens. They compute nothing: on tensors without memory they say
what shapes they give, and what the backward pass keeps. A reading names them as any other operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.library import Library

_LIBRARY = Library("laptime", "DEF")
Meaning = TypeVar("Meaning", bound=Callable[..., Any])


def _defined(*schemas: str) -> Callable[[Meaning], Meaning]:
    """Register a function as the implementation of these schemas."""

    def enter(meaning: Meaning) -> Meaning:
        for schema in schemas:
            _LIBRARY.define(schema)
            _LIBRARY.impl(schema.partition("(")[0], meaning, "CompositeExplicitAutograd")
        return meaning

    return enter


@_defined("attention(Tensor q, Tensor k, Tensor v, bool causal) -> (Tensor, Tensor)")
def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    batch, heads, steps, _ = q.shape
    # Laid out step by step, all heads side by side, so that joining the heads afterwards copies nothing.
    out = q.new_empty((batch, steps, heads, v.shape[-1])).transpose(1, 2)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


@_defined(
    "attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, bool causal)"
    " -> (Tensor, Tensor, Tensor)"
)
def _attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@_defined(
    "recurrent(Tensor x, Tensor[] weights, int gates, int hidden, int layers, int directions)"
    " -> (Tensor, Tensor)"
)
def _recurrent(
    x: Tensor, weights: list[Tensor], gates: int, hidden: int, layers: int, directions: int
) -> tuple[Tensor, Tensor]:
    steps = x.shape[0] * x.shape[1]
    # What cuDNN keeps for the backward pass: the gates, the cell and the output of every step.
    kept = steps * hidden * directions * layers * (gates + 2)
    if x.dtype != torch.float32:  # autocast's weight copies are separate; one more, contiguous copy is kept
        kept += sum(weight.numel() for weight in weights)
    reserve = x.new_empty(kept)
    return x.new_empty((*x.shape[:2], hidden * directions)), reserve


@_defined(
    "recurrent_backward(Tensor g, Tensor x, Tensor[] weights, Tensor reserve, int gates, int hidden,"
    " int layers, int directions) -> (Tensor, Tensor[])"
)
def _recurrent_backward(
    g: Tensor,
    x: Tensor,
    weights: list[Tensor],
    reserve: Tensor,
    gates: int,
    hidden: int,
    layers: int,
    directions: int,
) -> tuple[Tensor, list[Tensor]]:
    return torch.empty_like(x), [torch.empty_like(weight) for weight in weights]


@_defined("wide_softmax(Tensor x, int dim) -> Tensor", "wide_log_softmax(Tensor x, int dim) -> Tensor")
def _wide(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x, dtype=torch.float32)


@_defined(
    "wide_softmax_backward(Tensor g, Tensor out, int dim, ScalarType dtype) -> Tensor",
    "wide_log_softmax_backward(Tensor g, Tensor out, int dim, ScalarType dtype) -> Tensor",
)
def _wide_backward(g: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(g, dtype=dtype)


operations = torch.ops.laptime


class FusedAttention(torch.autograd.Function):
    """Scaled dot-product attention in one kernel."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out, sums = operations.attention(q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.causal = causal
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        to_each = operations.attention_backward(gradients[0], *ctx.saved_tensors, ctx.causal)
        return *to_each, None


class FusedRecurrent(torch.autograd.Function):
    """Every step, layer and direction of a recurrent layer in one call, as cuDNN has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, form: tuple[int, int, int, int], *weights: Tensor) -> Tensor:
        out, reserve = operations.recurrent(x, weights, *form)
        ctx.save_for_backward(x, reserve, out, *weights)
        ctx.form = form
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, reserve, _, *weights = ctx.saved_tensors
        to_x, to_weights = operations.recurrent_backward(gradients[0], x, weights, reserve, *ctx.form)
        return to_x, None, *to_weights


class Wide(torch.autograd.Function):
    """Softmax of low precision whose result is float32; its gradient is of low precision again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, name: str) -> Tensor:
        out = getattr(operations, name)(x, dim)
        ctx.save_for_backward(out)
        ctx.rest = dim, name, x.dtype
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dim, name, dtype = ctx.rest
        backward = getattr(operations, f"{name}_backward")
        return backward(gradients[0], ctx.saved_tensors[0], dim, dtype), None, None
