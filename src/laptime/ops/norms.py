"""Norms of channels over a batch, norms of rows, and softmax; forward and backward."""

from __future__ import annotations

import math
from typing import Any

from laptime.model import Operation
from laptime.ops.registry import Arguments, Kernel, OperationKind, Sizes, enter, operation_kind
from laptime.ops.sizes import channels_last, log2


@operation_kind("batch_norm", "native_batch_norm _native_batch_norm_legit cudnn_batch_norm")
class BatchNorm(OperationKind):
    """n samples of c channels of p pixels."""

    microbenchmark = "batch_norm"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        x = args[self.gradients]  # the gradients come first
        return {"n": x.shape[0], "c": x.shape[1], "p": math.prod(x.shape[2:]), "last": channels_last(x)}

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        n, c, p = sizes["n"], sizes["c"], sizes["p"]
        return log2(n), log2(c), log2(p), log2(n * p), float(p % 4 == 0)

    def model_of(self, operation: Operation) -> str:
        """Tensors in channels_last format have other kernels, much faster ones."""
        return self.name.replace("norm", "norm_last") if operation.sizes.get("last") else self.name

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        """With fixed statistics it is elementwise: a class of its own, since only training was timed."""
        return "batch norm" if mode == "training" else "fixed norm"


_BATCH_NORM_BACKWARD = "native_batch_norm_backward cudnn_batch_norm_backward"
enter(BatchNorm("batch_norm_backward", _BATCH_NORM_BACKWARD, gradients=1))
# Of tensors in channels_last format.
enter(BatchNorm("batch_norm_last", variant_of="batch_norm", like=("batch_norm",)))
enter(
    BatchNorm(
        "batch_norm_last_backward",
        variant_of="batch_norm_backward",
        like=("batch_norm_backward",),
        gradients=1,
    )
)


class Rows(OperationKind):
    """r rows of width d; of a softmax, also whether a logarithm is taken."""

    batch_sizes = ("r",)

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return log2(sizes["r"]), log2(sizes["d"]), float(sizes["d"] % 4 == 0), float(sizes.get("log", 0))


@operation_kind("layer_norm", "native_layer_norm native_group_norm _fused_rms_norm")
class LayerNorm(Rows):
    """A group norm's rows are its groups."""

    microbenchmark = "layer_norm"
    cuda_float32 = "layer_norm native_layer_norm group_norm rms_norm"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        x, shape = args[self.gradients], args[self.gradients + 1]
        if isinstance(shape, list | tuple):
            width = math.prod(shape)
        else:  # native_group_norm(x, weight, bias, n, c, hw, groups, eps); its backward has them further on
            numbers = [value for value in args if isinstance(value, int) and not isinstance(value, bool)]
            width = x.numel() // max(1, numbers[0] * numbers[3]) if len(numbers) >= 4 else x.shape[-1]
        return {"r": x.numel() // max(width, 1), "d": width}

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        scale = 2 * operation.sizes["d"] * operation.element_bytes
        return scale, scale * self.gradients  # on the way back their gradients are written


_LAYER_NORM_BACKWARD = "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward"
enter(LayerNorm("layer_norm_backward", _LAYER_NORM_BACKWARD, gradients=1))


@operation_kind("softmax", "_softmax _log_softmax _safe_softmax wide_softmax wide_log_softmax")
class Softmax(Rows):
    """Softmax, or its logarithm."""

    microbenchmark = "softmax"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        d = args[0].shape[args[self.gradients + 1]] if args[0].dim() else 1
        return {"r": args[0].numel() // max(d, 1), "d": d}

    def timed_as(self, operation: Operation) -> Kernel:
        sizes = {**operation.sizes, "log": int("log_softmax" in operation.name)}
        return Kernel(kind=operation.kind, sizes=sizes, moved=operation.moved)


_SOFTMAX_BACKWARD = (
    "_softmax_backward_data _log_softmax_backward_data wide_softmax_backward wide_log_softmax_backward"
)
enter(Softmax("softmax_backward", _SOFTMAX_BACKWARD, gradients=1))
