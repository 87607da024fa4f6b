"""Scaled dot-product attention as one kernel, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laptime.model import Operation
from laptime.ops.feature_math import log2
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, grows, operation_kind


@operation_kind("attention", "attention")
class Attention(OperationKind):
    """b samples, h heads, s queries and t keys of width d."""

    has_workspace = True
    microbenchmark = "attention"
    device_names = r"(?!.*backward)_scaled_dot_product_.*attention.*"
    products = 2

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _sizes(args[0], args[1], args)

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        return *_tensors(given), _causal(given)

    def flops(self, sizes: Sizes) -> int:
        pairs = sizes["b"] * sizes["h"] * sizes["s"] * sizes["t"]
        return 2 * pairs * sizes["d"] * self.products

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "b")

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        named = (log2(sizes[name]) for name in ("b", "h", "s", "d"))
        return (*named, float(sizes["causal"]), log2(sizes["b"] * sizes["h"]))

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        return "product"


@operation_kind("attention_backward", "attention_backward")
class AttentionBackward(Attention):
    """The gradients of query, key and value."""

    device_names = r"(?=.*backward)_scaled_dot_product_.*attention.*"
    products = 5  # the scores anew, and four gradients

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _sizes(args[1], args[2], args)

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        gradient = next(given[key] for key in ("grad_out", "grad_out_") if key in given)
        kept = [given[key] for key in ("out", "logsumexp") if key in given]
        return gradient, *_tensors(given), *kept, _causal(given)


def _sizes(query: Any, key: Any, args: Arguments) -> dict[str, int]:
    batch, heads, steps, width = query.shape
    return {"b": batch, "h": heads, "s": steps, "t": key.shape[2], "d": width, "causal": int(args[-1])}


def _tensors(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(given[key] for key in ("query", "key", "value"))


def _causal(given: Mapping[str, Any]) -> bool:
    return bool(given.get("is_causal", False))
