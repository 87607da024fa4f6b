"""Convolutions of images, forward and backward."""

from __future__ import annotations

import math
from typing import Any

from laptime.model import Operation
from laptime.ops.arguments import channels_last
from laptime.ops.feature_math import TILES, filled, log2, waves
from laptime.ops.registry import Arguments, Growth, Kernel, OperationKind, Sizes, grows, operation_kind


@operation_kind("convolution", "convolution")
class Convolution(OperationKind):
    """Sizes as in torch: n images of c channels and h × w, o channels out, a window of k × l."""

    uses_tf32 = has_workspace = common = True
    microbenchmark = "convolution"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        x, weight, bias = args[:3]
        sizes = _sizes(x.shape, weight.shape, out.shape, args)
        return sizes | {"bias": int(bias is not None), "last": channels_last(x, weight)}

    def flops(self, sizes: Sizes) -> int:
        """Each of `places` outputs (inputs, if transposed) of a channel looks at `window` pixels."""
        channels = sizes["c"] * sizes["o"] // sizes["g"]
        return 2 * sizes["n"] * sizes["places"] * channels * sizes["window"]

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "n", fixed_read=sum(_weight_bytes(operation)))

    def weights(self, sizes: Sizes) -> set[int]:
        return {_weight(sizes), sizes["o"]}

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        """As the matrix product that it amounts to: rows are places, columns channels, depth a window."""
        groups = sizes["g"]
        inside, outside = sizes["c"] // groups, sizes["o"] // groups
        rows, depth = sizes["n"] * sizes["places"], inside * sizes["window"]
        return (
            log2(sizes["n"]),
            log2(sizes["h"]),
            float(sizes["k"]),
            float(sizes["s"]),
            log2(groups),
            log2(inside),
            log2(outside),
            log2(rows),
            log2(depth),
            float(inside % 8 == 0),
            float(outside % 8 == 0),
            float(inside % 4 == 0),
            float(sizes.get("to_input", 1)),
            waves(rows, outside, groups),
            *(filled(outside, tile) for tile in TILES),
            *(filled(inside, tile) for tile in TILES),
            log2(sizes["places"] * sizes["s"] ** 2),
            float(sizes.get("last", 0)),
            float(sizes.get("l", sizes["k"])),
        )

    def further_kernels(self, operation: Operation) -> tuple[Kernel, ...]:
        """cuDNN leaves the bias to a kernel of its own."""
        if not operation.sizes.get("bias"):
            return ()
        outputs = _outputs(operation.sizes)
        sizes = {"n": outputs, "broadcast": 1}
        return (Kernel(kind="elementwise", sizes=sizes, moved=2 * outputs * operation.element_bytes),)

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        if 1 < sizes["g"] >= sizes["c"]:
            return "depthwise"
        # What Winograd's algorithm, or FFTs, can do with fewer multiplications.
        small = sizes["g"] == 1 and sizes["k"] == 3 and sizes["s"] == 1
        return "winograd" if small else "convolution"


@operation_kind("convolution_backward", "convolution_backward")
class ConvolutionBackward(Convolution):
    """The gradients of the input, the weight and the bias, as far as they are asked for."""

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        gradient, x, weight = args[:3]
        moved = (x, weight, None, *args[4:])  # as the forward pass has them
        sizes = _sizes(x.shape, weight.shape, gradient.shape, moved)
        mask = args[-1]
        asked = {"to_input": int(mask[0]), "to_weight": int(mask[1]), "bias": int(mask[2])}
        return sizes | asked | {"last": channels_last(gradient, x, weight)}

    def flops(self, sizes: Sizes) -> int:
        return super().flops(sizes) * (sizes["to_input"] + sizes["to_weight"])

    def growth(self, operation: Operation, batch: int) -> Growth:
        weight, bias = _weight_bytes(operation)
        written = weight * operation.sizes["to_weight"] + bias
        return grows(operation, batch, "n", fixed_read=weight, fixed_written=written)

    def weights(self, sizes: Sizes) -> set[int]:
        return set()

    def further_kernels(self, operation: Operation) -> tuple[Kernel, ...]:
        if not operation.sizes.get("bias"):
            return ()
        outputs = _outputs(operation.sizes)
        sizes = {"n": outputs, "o": operation.sizes["o"], "inner": 1}
        return (Kernel(kind="reduction", sizes=sizes, moved=outputs * operation.element_bytes),)


def _weight(sizes: Sizes) -> int:
    return sizes["c"] * sizes["o"] // sizes["g"] * sizes["window"]


def _weight_bytes(operation: Operation) -> tuple[int, int]:
    """Of the weight, and of the bias if there is one."""
    sizes, size = operation.sizes, operation.element_bytes
    return _weight(sizes) * size, sizes["o"] * size * sizes.get("bias", 0)


def _outputs(sizes: Sizes) -> int:
    return sizes["n"] * sizes["o"] * sizes["places"]


def _sizes(x: Any, weight: Any, out: Any, args: Arguments) -> dict[str, int]:
    """From the shapes of input, weight and output."""
    transposed = bool(args[6])
    stride, padding, dilation, groups = args[3], args[4], args[5], int(args[8])
    spatial = list(x[2:])
    return {
        "n": x[0],
        "c": x[1],
        "o": out[1],
        "h": spatial[0],
        "w": spatial[1] if len(spatial) > 1 else 1,
        "k": weight[2],
        "l": weight[3] if len(weight) > 3 else 1,
        "s": int(stride[0]),
        "p": int(padding[0]),
        "dilation": int(dilation[0]),
        "g": groups,
        "transposed": int(transposed),
        "places": math.prod(x[2:]) if transposed else math.prod(out[2:]),
        "window": math.prod(weight[2:]),
    }
