"""Softmax and its logarithm, forward and backward."""

from __future__ import annotations

from typing import Any

from laptime.model import Operation
from laptime.ops.feature_math import row_features
from laptime.ops.registry import Arguments, Growth, Kernel, OperationKind, Sizes, grows, operation_kind


@operation_kind("softmax", "_softmax _log_softmax _safe_softmax wide_softmax wide_log_softmax")
class Softmax(OperationKind):
    """r rows of width d."""

    microbenchmark = "softmax"
    dim_at = 1  # among the arguments: on the way back gradient and output come before it

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        d = args[0].shape[args[self.dim_at]] if args[0].dim() else 1
        return {"r": args[0].numel() // max(d, 1), "d": d}

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "r")

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return row_features(sizes)

    def timed_as(self, operation: Operation) -> Kernel:
        sizes = {**operation.sizes, "log": int("log_softmax" in operation.name)}
        return Kernel(kind=operation.kind, sizes=sizes, moved=operation.moved)


@operation_kind(
    "softmax_backward",
    "_softmax_backward_data _log_softmax_backward_data wide_softmax_backward wide_log_softmax_backward",
)
class SoftmaxBackward(Softmax):
    """The gradient of the input."""

    dim_at = 2
