"""Makes fake CPU tensors dispatch as on CUDA while a step is traced.

Attention, recurrent layers and dropout are one operation each on a GPU and several, or another, on a CPU; and
autocast keeps more operations in float32 on CUDA (torch's documentation, "Automatic Mixed Precision: CUDA Ops
that can autocast to float32"; the kinds in `ops` name them). Both are decided by torch's dispatcher, so
kernels are registered there during the trace: that covers calls from C++ too. What is one kernel on CUDA is
an operation of our own. It computes nothing: on tensors without memory it says what shapes it gives, and what
the backward pass keeps. A reading names it as any other operation.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from laptime.ops.registry import kinds

_LOCK = threading.Lock()
_LIBRARY = Library("laptime", "DEF")


def _define(schema: str, meaning: Callable[..., Any]) -> None:
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema.partition("(")[0], meaning, "CompositeExplicitAutograd")


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    batch, heads, steps, _ = q.shape
    # Laid out step by step, all heads side by side, so that joining the heads afterwards copies nothing.
    out = q.new_empty((batch, steps, heads, v.shape[-1])).transpose(1, 2)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _recurrent(
    x: Tensor, weights: list[Tensor], gates: int, hidden: int, layers: int, directions: int
) -> tuple[Tensor, Tensor]:
    steps = x.shape[0] * x.shape[1]
    # What cuDNN keeps for the backward pass: the gates, the cell and the output of every step.
    kept = steps * hidden * directions * layers * (gates + 2)
    if x.dtype != torch.float32:  # autocast's weight copies are separate; one more, contiguous copy is kept
        kept += sum(weight.numel() for weight in weights)
    return x.new_empty((*x.shape[:2], hidden * directions)), x.new_empty(kept)


_define("attention(Tensor q, Tensor k, Tensor v, bool causal) -> (Tensor, Tensor)", _attention)
_define(
    "attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, bool causal)"
    " -> (Tensor, Tensor, Tensor)",
    lambda g, q, k, v, *kept: (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)),
)
_define(
    "recurrent(Tensor x, Tensor[] weights, int gates, int hidden, int layers, int directions)"
    " -> (Tensor, Tensor)",
    _recurrent,
)
_define(
    "recurrent_backward(Tensor g, Tensor x, Tensor[] weights, Tensor reserve, int gates, int hidden,"
    " int layers, int directions) -> (Tensor, Tensor[])",
    lambda g, x, weights, *kept: (torch.empty_like(x), [torch.empty_like(weight) for weight in weights]),
)
for _name in ("wide_softmax", "wide_log_softmax"):
    _define(f"{_name}(Tensor x, int dim) -> Tensor", lambda x, dim: torch.empty_like(x, dtype=torch.float32))
    _define(
        f"{_name}_backward(Tensor g, Tensor out, int dim, ScalarType dtype) -> Tensor",
        lambda g, out, dim, dtype: torch.empty_like(g, dtype=dtype),
    )

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


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, dropout: float = 0.0, causal: bool = False, **_: Any
) -> Tensor:
    """One fused operation, with a mask or dropout too, as the memory-efficient kernels have it."""
    if q.dim() != 4:
        lead = q.shape[:-2]
        q, k, v = (tensor.reshape(-1, 1, *tensor.shape[-2:]) for tensor in (q, k, v))
        return FusedAttention.apply(q, k, v, causal).reshape(*lead, q.shape[-2], v.shape[-1])  # type: ignore[no-any-return]
    return FusedAttention.apply(q, k, v, causal)  # type: ignore[no-any-return]


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return torch.native_dropout(x, p, train)[0] if train and p > 0 else x


def _recurrent_of(gates: int) -> Callable[..., Any]:
    """lstm.input, gru.input and rnn_*.input as one operation."""

    def call(x: Tensor, state: Any, weights: list[Tensor], *options: Any) -> Any:
        _has_biases, layers, _dropout, _train, bidirectional, batch_first = options
        directions = 2 if bidirectional else 1
        last = state[0] if gates == 4 else state
        hidden = weights[1].shape[1]
        form = (gates, hidden, layers, directions)
        if torch.is_autocast_enabled("cpu"):  # cuDNN's recurrent layers are on CUDA's list, the CPU's are not
            low = torch.get_autocast_dtype("cpu")
            x, weights = x.to(low), [weight.to(low) for weight in weights]
        if batch_first:
            x = x.transpose(0, 1)
        out = FusedRecurrent.apply(x, form, *weights)
        ends = out.new_empty((layers * directions, last.shape[1], last.shape[-1]))
        if batch_first:
            out = out.transpose(0, 1)
        return (out, ends, torch.empty_like(ends)) if gates == 4 else (out, ends)

    return call


def _widened(name: str) -> Callable[..., Any]:
    """Softmax of low precision gives float32 at once: on CUDA there is no copy in float32 before it."""
    plain = getattr(torch.ops.aten, f"_{name}")

    def call(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        with torch.autocast("cpu", enabled=False):
            if x.dtype in (torch.bfloat16, torch.float16) and dtype in (None, torch.float32):
                return Wide.apply(x, dim, f"wide_{name}")
            return plain(x if dtype is None else x.to(dtype), dim, False)

    return call


_log_softmax = _widened("log_softmax")


def _cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """On CUDA no list of autocast has it: its log-softmax is, and widens. The CPU's has it, and copies."""
    if target.is_floating_point() or label_smoothing:
        return _in_float32("cross_entropy_loss")(x, target, weight, reduction, ignore_index, label_smoothing)
    scores = _log_softmax(x, 0 if x.dim() == 1 else 1)
    with torch.autocast("cpu", enabled=False):
        return torch.ops.aten.nll_loss_nd(scores, target, weight, reduction, ignore_index)


def _in_float32(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def cast(value: Any) -> Any:
        low = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
        return value.float() if low else value

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return operation(*map(cast, args), **{key: cast(value) for key, value in kwargs.items()})

    return call


@contextmanager
def cuda_dispatch() -> Iterator[None]:
    """Context in which CPU tensors dispatch as CUDA tensors would. One trace at a time."""
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is overridden, which is intended
        lent = Library("aten", "IMPL")
        try:
            lent.impl("scaled_dot_product_attention", _sdpa, "AutogradCPU")
            lent.impl("dropout", _dropout, "AutogradCPU")
            for name, gates in {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}.items():
                lent.impl(f"{name}.input", _recurrent_of(gates), "AutogradCPU")
            lent.impl("softmax.int", _widened("softmax"), "AutocastCPU")
            lent.impl("log_softmax.int", _log_softmax, "AutocastCPU")
            lent.impl("cross_entropy_loss", _cross_entropy, "AutocastCPU")
            for name in {name: None for kind in kinds().values() for name in kind.cuda_float32.split()}:
                packet, _, overload = name.partition(".")
                known = getattr(torch.ops.aten, packet, None)
                if known is not None and (overload or "default") in known.overloads():
                    lent.impl(name, _in_float32(name), "AutocastCPU")
            yield
        finally:
            lent._destroy()
