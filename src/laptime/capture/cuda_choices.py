"""Makes fake CPU tensors dispatch as on CUDA while a step is traced.

Attention, recurrent layers and dropout are one operation each on a GPU (`fused_ops`) and several, or another,
on a CPU; and autocast keeps more operations in float32 on CUDA (torch's documentation, "Automatic Mixed
Precision: CUDA Ops that can autocast to float32"; the kinds in `ops` name them). Both are decided by torch's
dispatcher, so kernels are registered there during the trace: that covers calls from C++ too.
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

from laptime.capture.fused_ops import FusedAttention, FusedRecurrent, Wide
from laptime.ops.registry import kinds

_LOCK = threading.Lock()


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
        q, k, v = (tensor.reshape(-1, 1, *tensor.shape[-2:]) for tensor in (q, k, v))
        return FusedAttention.apply(q, k, v, is_causal).reshape(*lead, q.shape[-2], v.shape[-1])  # type: ignore[no-any-return]
    return FusedAttention.apply(q, k, v, is_causal)  # type: ignore[no-any-return]


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
def of_cuda() -> Iterator[None]:
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
            for name in dict.fromkeys(
                name for kind in kinds().values() for name in kind.cuda_float32.split()
            ):
                if _exists(name):
                    lent.impl(name, _in_float32(name), "AutocastCPU")
            yield
        finally:
            lent._destroy()


def _exists(name: str) -> bool:
    packet, _, overload = name.partition(".")
    operation = getattr(torch.ops.aten, packet, None)
    return operation is not None and (overload or "default") in operation.overloads()
