"""What CUDA would choose where the CPU chooses otherwise, lent to fake CPU tensors while a step is read.

Attention, recurrent layers and dropout are one operation each on a GPU and several, or another, on a CPU;
and autocast keeps more operations in float32 on CUDA. Both are settled by torch's dispatcher, so kernels are
registered there for the time of the reading: they reach calls from C++ too.
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

_LOCK = threading.Lock()

# Torch's documentation, "Automatic Mixed Precision": CUDA Ops that can autocast to float32. Those that
# autocast of the CPU has not on its own list; names with the overload that networks call.
_FLOAT32 = [
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "nll_loss",
    "nll_loss_nd",
    "nll_loss2d",
    "cosine_similarity",
    "cumsum",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "prod",
    "prod.dim_int",
    "reciprocal",
    "rsqrt",
    "softplus",
    "sum",
    "sum.dim_IntList",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy_with_logits",
    "cosh",
    "sinh",
    "tan",
    "acos",
    "asin",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "cosine_embedding_loss",
    "poisson_nll_loss",
    "rms_norm",
]

_OWN = Library("laptime", "DEF")
_OWN.define("attention(Tensor q, Tensor k, Tensor v, bool causal) -> (Tensor, Tensor)")
_OWN.define(
    "attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, bool causal)"
    " -> (Tensor, Tensor, Tensor)"
)
_OWN.define(
    "recurrent(Tensor x, Tensor[] weights, int gates, int hidden, int layers, int directions)"
    " -> (Tensor, Tensor)"
)
_OWN.define(
    "recurrent_backward(Tensor g, Tensor x, Tensor[] weights, Tensor reserve, int gates, int hidden,"
    " int layers, int directions) -> (Tensor, Tensor[])"
)
for _name in ("wide_softmax", "wide_log_softmax"):
    _OWN.define(f"{_name}(Tensor x, int dim) -> Tensor")
    _OWN.define(f"{_name}_backward(Tensor g, Tensor out, int dim, ScalarType dtype) -> Tensor")


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    batch, heads, steps, _ = q.shape
    # Laid out step by step, all heads side by side, so that joining the heads afterwards copies nothing.
    out = q.new_empty((batch, steps, heads, v.shape[-1])).transpose(1, 2)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _recurrent(
    x: Tensor, weights: list[Tensor], gates: int, hidden: int, layers: int, directions: int
) -> tuple[Tensor, Tensor]:
    steps = x.shape[0] * x.shape[1]
    # What cuDNN keeps for the backward pass: the gates, the cell and the output of every step.
    kept = steps * hidden * directions * layers * (gates + 2)
    if x.dtype != torch.float32:  # autocast's copies of the weights lie apart: one more, that does not
        kept += sum(one.numel() for one in weights)
    reserve = x.new_empty(kept)
    return x.new_empty((*x.shape[:2], hidden * directions)), reserve


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
    return torch.empty_like(x), [torch.empty_like(one) for one in weights]


def _wide(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x, dtype=torch.float32)


def _wide_backward(g: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(g, dtype=dtype)


for _name, _meaning in {
    "attention": _attention,
    "attention_backward": _attention_backward,
    "recurrent": _recurrent,
    "recurrent_backward": _recurrent_backward,
    "wide_softmax": _wide,
    "wide_softmax_backward": _wide_backward,
    "wide_log_softmax": _wide,
    "wide_log_softmax_backward": _wide_backward,
}.items():
    _OWN.impl(_name, _meaning, "CompositeExplicitAutograd")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out, sums = torch.ops.laptime.attention(q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.causal = causal
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = torch.ops.laptime.attention_backward(gradients[0], *ctx.saved_tensors, ctx.causal)
        return *saved, None


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, form: tuple[int, int, int, int], *weights: Tensor) -> Tensor:
        out, reserve = torch.ops.laptime.recurrent(x, weights, *form)
        ctx.save_for_backward(x, reserve, out, *weights)
        ctx.form = form
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, reserve, _, *weights = ctx.saved_tensors
        to_x, to_weights = torch.ops.laptime.recurrent_backward(gradients[0], x, weights, reserve, *ctx.form)
        return to_x, None, *to_weights


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """One fused operation, with a mask or dropout too, as the memory-efficient kernels have it."""
    if q.dim() != 4:
        lead = q.shape[:-2]
        q, k, v = (one.reshape(-1, 1, *one.shape[-2:]) for one in (q, k, v))
        return _Attention.apply(q, k, v, is_causal).reshape(*lead, q.shape[-2], v.shape[-1])  # type: ignore[no-any-return]
    return _Attention.apply(q, k, v, is_causal)  # type: ignore[no-any-return]


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return torch.native_dropout(x, p, train)[0] if train and p > 0 else x


def _recurrent_of(gates: int) -> Callable[..., Any]:
    """lstm.input, gru.input and rnn_*.input as one operation."""

    def call(
        x: Tensor,
        state: Any,
        weights: list[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        directions = 2 if bidirectional else 1
        last = state[0] if gates == 4 else state
        hidden = weights[1].shape[1]
        form = (gates, hidden, layers, directions)
        if torch.is_autocast_enabled("cpu"):  # cuDNN's recurrent layers are on CUDA's list, the CPU's are not
            low = torch.get_autocast_dtype("cpu")
            x, weights = x.to(low), [one.to(low) for one in weights]
        if batch_first:
            x = x.transpose(0, 1)
        out = _Recurrent.apply(x, form, *weights)
        ends = out.new_empty((layers * directions, last.shape[1], last.shape[-1]))
        if batch_first:
            out = out.transpose(0, 1)
        return (out, ends, torch.empty_like(ends)) if gates == 4 else (out, ends)

    return call


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, name: str) -> Tensor:
        out = getattr(torch.ops.laptime, name)(x, dim)
        ctx.save_for_backward(out)
        ctx.rest = dim, name, x.dtype
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dim, name, dtype = ctx.rest
        backward = getattr(torch.ops.laptime, f"{name}_backward")
        return backward(gradients[0], ctx.saved_tensors[0], dim, dtype), None, None


def _widened(name: str) -> Callable[..., Any]:
    """Softmax of low precision gives float32 at once: on CUDA there is no copy in float32 before it."""
    plain = getattr(torch.ops.aten, f"_{name}")

    def call(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        with torch.autocast("cpu", enabled=False):
            if x.dtype in (torch.bfloat16, torch.float16) and dtype in (None, torch.float32):
                return _Wide.apply(x, dim, f"wide_{name}")
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
def of_cuda() -> Iterator[None]:
    """While it lasts, CPU tensors are computed on as CUDA tensors would be. One reading at a time."""
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a kernel that takes another's place: that is meant
        lent = Library("aten", "IMPL")
        try:
            lent.impl("scaled_dot_product_attention", _sdpa, "AutogradCPU")
            lent.impl("dropout", _dropout, "AutogradCPU")
            for name, gates in {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}.items():
                lent.impl(f"{name}.input", _recurrent_of(gates), "AutogradCPU")
            lent.impl("softmax.int", _widened("softmax"), "AutocastCPU")
            lent.impl("log_softmax.int", _log_softmax, "AutocastCPU")
            lent.impl("cross_entropy_loss", _cross_entropy, "AutocastCPU")
            for name in _FLOAT32:
                if _exists(name):
                    lent.impl(name, _in_float32(name), "AutocastCPU")
            yield
        finally:
            lent._destroy()


def _exists(name: str) -> bool:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found is not None and (overload or "default") in found.overloads()
