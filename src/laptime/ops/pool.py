"""Pooling, forward and backward."""

from __future__ import annotations

import math
from typing import Any

from laptime.model import Operation
from laptime.ops.arguments import channels_last, is_tensor, listed
from laptime.ops.feature_math import log2
from laptime.ops.registry import Arguments, Growth, Kernel, OperationKind, Sizes, grows, operation_kind


@operation_kind(
    "pool",
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d max_pool3d_with_indices"
    " avg_pool3d",
)
class Pool(OperationKind):
    """n elements in, o out, each of them from a window."""

    microbenchmark = "pool"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _sizes(args[0], listed(out)[0], args[1], args, out)

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "n", "o")

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return (
            log2(sizes["n"]),
            log2(sizes["o"]),
            float(sizes["window"]),
            float(sizes.get("avg", 0)),
            sizes["n"] / max(1, sizes["o"]),
            float(sizes.get("last", 0)),
        )

    def timed_as(self, operation: Operation) -> Kernel:
        """A maximum also writes where it was found: not counted in a sweep."""
        moved = (operation.sizes["n"] + operation.sizes["o"]) * operation.element_bytes
        return Kernel(kind=operation.kind, sizes=operation.sizes, moved=moved)


@operation_kind(
    "pool_backward",
    "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward"
    " adaptive_max_pool2d_backward max_pool3d_with_indices_backward avg_pool3d_backward",
)
class PoolBackward(Pool):
    """The gradient of the input."""

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _sizes(args[1], args[0], args[2] if len(args) > 2 else 1, args, out)


def _sizes(x: Any, small: Any, window: Any, args: Arguments, out: Any) -> dict[str, int]:
    # A maximum also tells where it was found, and is told so on the way back.
    largest = isinstance(out, tuple | list) or any(
        is_tensor(value) and str(value.dtype) == "torch.int64" for value in args
    )
    return {
        "n": x.numel(),
        "o": small.numel(),
        "window": math.prod(window) if isinstance(window, list | tuple) else 1,
        "avg": int(not largest),
        "last": channels_last(x),
    }
