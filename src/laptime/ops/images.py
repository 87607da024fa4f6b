"""Windows over images: convolutions and pooling, forward and backward."""

from __future__ import annotations

import math
from typing import Any

from laptime.model import Operation
from laptime.ops.registry import Arguments, Kernel, OperationKind, Sizes, operation_kind
from laptime.ops.sizes import TILES, channels_last, filled, is_tensor, listed, log2, waves


@operation_kind("convolution", "convolution")
class Convolution(OperationKind):
    """Sizes as in torch: n images of c channels and h × w, o channels out, a window of k × l."""

    uses_tf32 = has_workspace = common = True
    microbenchmark = "convolution"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        x, weight, bias = args[:3]
        sizes = _convolution_sizes(x.shape, weight.shape, out.shape, args)
        return sizes | {"bias": int(bias is not None), "last": channels_last(x, weight)}

    def flops(self, sizes: Sizes) -> int:
        """Each of `places` outputs (inputs, if transposed) of a channel looks at `window` pixels."""
        channels = sizes["c"] * sizes["o"] // sizes["g"]
        return 2 * sizes["n"] * sizes["places"] * channels * sizes["window"]

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        return sum(_weight_bytes(operation)), 0

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
        sizes = _convolution_sizes(x.shape, weight.shape, gradient.shape, moved)
        mask = args[-1]
        asked = {"to_input": int(mask[0]), "to_weight": int(mask[1]), "bias": int(mask[2])}
        return sizes | asked | {"last": channels_last(gradient, x, weight)}

    def flops(self, sizes: Sizes) -> int:
        return super().flops(sizes) * (sizes["to_input"] + sizes["to_weight"])

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        weight, bias = _weight_bytes(operation)
        return weight, weight * operation.sizes["to_weight"] + bias

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


def _convolution_sizes(x: Any, weight: Any, out: Any, args: Arguments) -> dict[str, int]:
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


@operation_kind(
    "pool",
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d max_pool3d_with_indices"
    " avg_pool3d",
)
class Pool(OperationKind):
    """n elements in, o out, each of them from a window."""

    microbenchmark = "pool"
    batch_sizes = ("n", "o")

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _pool_sizes(args[0], listed(out)[0], args[1], args, out)

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
        return _pool_sizes(args[1], args[0], args[2] if len(args) > 2 else 1, args, out)


def _pool_sizes(x: Any, small: Any, window: Any, args: Arguments, out: Any) -> dict[str, int]:
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
