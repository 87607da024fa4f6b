"""Norms: of channels over a batch, and of rows; forward and backward."""

from __future__ import annotations

import math
from typing import Any

from laptime.model import Operation
from laptime.ops.arguments import channels_last
from laptime.ops.feature_math import log2, row_features
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, grows, operation_kind


@operation_kind("batch_norm", "native_batch_norm _native_batch_norm_legit cudnn_batch_norm")
class BatchNorm(OperationKind):
    """n samples of c channels of p pixels."""

    microbenchmark = "batch_norm"
    input_at = 0  # among the arguments: on the way back a gradient comes before it

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        x = args[self.input_at]
        return {"n": x.shape[0], "c": x.shape[1], "p": math.prod(x.shape[2:]), "last": channels_last(x)}

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "n")

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        n, c, p = sizes["n"], sizes["c"], sizes["p"]
        return log2(n), log2(c), log2(p), log2(n * p), float(p % 4 == 0)

    def model_of(self, operation: Operation) -> str:
        """With channels side by side other kernels run, much faster ones."""
        return self.name.replace("norm", "norm_last") if operation.sizes.get("last") else self.name

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        """With fixed statistics it is elementwise; the sweep of the H200 has it in training only."""
        return "batch norm" if mode == "training" else "fixed norm"


@operation_kind("batch_norm_backward", "native_batch_norm_backward cudnn_batch_norm_backward")
class BatchNormBackward(BatchNorm):
    """The gradients of the input, the scale and the shift."""

    input_at = 1


@operation_kind("batch_norm_last", variant_of="batch_norm")
class BatchNormLast(BatchNorm):
    """Batch norm of images whose channels lie side by side."""

    like = ("batch_norm",)


@operation_kind("batch_norm_last_backward", variant_of="batch_norm_backward")
class BatchNormLastBackward(BatchNormBackward):
    """Its backward pass."""

    like = ("batch_norm_backward",)


@operation_kind("layer_norm", "native_layer_norm native_group_norm _fused_rms_norm")
class LayerNorm(OperationKind):
    """r rows of width d; a group norm's rows are its groups."""

    microbenchmark = "layer_norm"
    cuda_float32 = "layer_norm native_layer_norm group_norm rms_norm"
    input_at = 0

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        x, shape = args[self.input_at], args[self.input_at + 1]
        if isinstance(shape, list | tuple):
            width = math.prod(shape)
        else:  # native_group_norm(x, weight, bias, n, c, hw, groups, eps); its backward has them further on
            numbers = [value for value in args if isinstance(value, int) and not isinstance(value, bool)]
            width = x.numel() // max(1, numbers[0] * numbers[3]) if len(numbers) >= 4 else x.shape[-1]
        return {"r": x.numel() // max(width, 1), "d": width}

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "r", fixed_read=_scale_bytes(operation))

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return row_features(sizes)


@operation_kind(
    "layer_norm_backward",
    "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward",
)
class LayerNormBackward(LayerNorm):
    """The gradients of the input, the scale and the shift."""

    input_at = 1

    def growth(self, operation: Operation, batch: int) -> Growth:
        scale = _scale_bytes(operation)
        return grows(operation, batch, "r", fixed_read=scale, fixed_written=scale)


def _scale_bytes(operation: Operation) -> int:
    return 2 * operation.sizes["d"] * operation.element_bytes
