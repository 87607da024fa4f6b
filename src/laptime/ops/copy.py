"""Copies: in the same order, into another one, of several tensors into one."""

from __future__ import annotations

from typing import Any

from laptime.model import Operation
from laptime.ops.arguments import first_tensor, is_tensor
from laptime.ops.registry import Arguments, OperationKind, operation_kind

_NAMES = """
_to_copy clone copy_ constant_pad_nd flip index_select narrow_copy repeat roll select_backward
slice_backward upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_nearest2d_backward
upsample_bilinear2d_backward pixel_shuffle im2col col2im reflection_pad2d reflection_pad2d_backward
as_strided_scatter slice_scatter diagonal_copy tile unfold_backward
"""


@operation_kind("copy", _NAMES)
class Copy(OperationKind):
    """n elements; `permuted`: read in another order than they lie in."""

    common = True
    reaches = "bandwidth"
    microbenchmark = "copy"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        first = first_tensor(args)
        permuted = first is not None and not first.is_contiguous()
        return {"n": out.numel() if is_tensor(out) else 0, "permuted": int(permuted)}

    def model_of(self, operation: Operation) -> str:
        return "permuted" if operation.sizes.get("permuted") else operation.kind


@operation_kind("permuted", variant_of="copy")
class PermutedCopy(OperationKind):
    """A copy into another order."""

    like = ("copy",)
    microbenchmark = "permuted"


@operation_kind("cat", "cat stack")
class Concatenation(OperationKind):
    """Several tensors copied into one."""

    like = ("copy", "elementwise")
    reaches = "bandwidth"
    microbenchmark = "cat"
