"""Matrix products: single, batched, and within attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from laptime.model import Operation, Phase
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, operation_kind
from laptime.ops.sizes import filled, is_tensor, log2, waves

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # cuDNN's modes, which oneDNN's operators share: relu, tanh, LSTM, GRU


@operation_kind("mm", "mm addmm")
class MatrixProduct(OperationKind):
    """(m × k) times (k × n); `ta` and `tb` say whether either side is transposed."""

    microbenchmark = "mm"
    common = True
    reaches = "compute"
    work_class = "product"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        a, b = [value for value in args if is_tensor(value)][-2:]  # addmm has what is added before them
        return {
            "m": a.shape[-2],
            "k": a.shape[-1],
            "n": b.shape[-1],
            "ta": int(a.stride(-1) != 1 and a.shape[-1] > 1),
            "tb": int(b.stride(-1) != 1 and b.shape[-1] > 1),
        }

    def flops(self, sizes: Sizes) -> int:
        return 2 * sizes.get("b", 1) * sizes["m"] * sizes["k"] * sizes["n"]

    def growth(self, operation: Operation, batch: int) -> Growth:
        """Rows of a layer's input; of the product that gives its weight's gradient, the depth."""
        m, k, n = (operation.sizes[name] for name in "mkn")
        size = operation.element_bytes
        transposed = operation.phase is Phase.BACKWARD and operation.sizes.get("ta", 0)
        order = "kmn" if transposed else "mnk"
        grown = next((name for name in order if operation.sizes[name] % batch == 0), None)
        if grown is None:
            return Growth()
        if grown == "k":
            return Growth(sizes=("k",), fixed_written=m * n * size)
        if grown == "n":
            return Growth(sizes=("n",), fixed_read=m * k * size)
        bias = n * size if operation.name.endswith("addmm") else 0
        return Growth(sizes=("m",), fixed_read=k * n * size + bias)

    def weights(self, sizes: Sizes) -> set[int]:
        return {sizes["k"] * sizes["n"], sizes["n"]}

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        m, k, n = sizes["m"], sizes["k"], sizes["n"]
        return (
            log2(sizes.get("b", 1)),
            log2(m),
            log2(k),
            log2(n),
            float(sizes.get("ta", 0)),
            float(sizes.get("tb", 0)),
            float(m % 8 == 0),
            float(k % 8 == 0),
            float(n % 8 == 0),
            waves(m, n, sizes.get("b", 1)),
            filled(m, 128),
            filled(n, 128),
        )


@operation_kind("bmm", "bmm baddbmm")
class BatchedProduct(MatrixProduct):
    """`b` products of one shape."""

    microbenchmark = "bmm"
    common = False
    reaches = ""

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return {"b": out.shape[0], **super().sizes(args, out)}

    def growth(self, operation: Operation, batch: int) -> Growth:
        if operation.sizes["b"] % batch == 0:
            return Growth(sizes=("b",))
        return super().growth(operation, batch)

    def weights(self, sizes: Sizes) -> set[int]:
        return set()


@operation_kind("attention", "attention")
class Attention(OperationKind):
    """Scaled dot-product attention as one kernel: b samples, h heads, s queries and t keys of width d."""

    has_workspace = True
    microbenchmark = "attention"
    device_names = r"(?!.*backward)_scaled_dot_product_.*attention.*"
    batch_sizes = ("b",)
    work_class = "product"
    products = 2

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        query, key = args[self.gradients : self.gradients + 2]
        batch, heads, steps, width = query.shape
        return {"b": batch, "h": heads, "s": steps, "t": key.shape[2], "d": width, "causal": int(args[-1])}

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        return given["query"], given["key"], given["value"], bool(given.get("is_causal", False))

    def flops(self, sizes: Sizes) -> int:
        pairs = sizes["b"] * sizes["h"] * sizes["s"] * sizes["t"]
        return 2 * pairs * sizes["d"] * self.products

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        named = (log2(sizes[name]) for name in ("b", "h", "s", "d"))
        return (*named, float(sizes["causal"]), log2(sizes["b"] * sizes["h"]))


@operation_kind("attention_backward", "attention_backward")
class AttentionBackward(Attention):
    """The gradients of query, key and value."""

    device_names = r"(?=.*backward)_scaled_dot_product_.*attention.*"
    products = 5  # the scores anew, and four gradients
    gradients = 1

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        gradient = next(given[key] for key in ("grad_out", "grad_out_") if key in given)
        kept = [given[key] for key in ("out", "logsumexp") if key in given]
        *tensors, causal = super().from_device(given)
        return gradient, *tensors, *kept, causal


@operation_kind("recurrent", "recurrent")
class Recurrent(OperationKind):
    """Every step, layer and direction as one operation.

    b sequences of s steps of width i, hidden width h, l layers.
    """

    uses_tf32 = has_workspace = True
    microbenchmark = "recurrent"
    device_names = "mkldnn_rnn_layer|_cudnn_rnn"
    batch_sizes = ("b",)
    feature_sizes = ("b", "s", "h", "l")
    work_class = "product"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        steps, batch, width = args[self.gradients].shape
        gates, hidden, layers, directions = args[-4:]
        form = {"h": hidden, "l": layers, "gates": gates, "directions": directions}
        return {"b": batch, "s": steps, "i": width, **form}

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        x, weights, form = _layer(given)
        return x, weights, *form

    def flops(self, sizes: Sizes) -> int:
        """Gates times (input and hidden) products for each step of each layer and direction."""
        first = sizes["i"] + sizes["h"]
        further = (sizes["h"] * sizes["directions"] + sizes["h"]) * (sizes["l"] - 1)
        each = sizes["gates"] * sizes["h"] * (first + further) * sizes["directions"]
        return 2 * sizes["b"] * sizes["s"] * each

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        return _weight_bytes(operation), 0

    def weights(self, sizes: Sizes) -> set[int]:
        gates, h = sizes["gates"] * sizes["h"], sizes["h"]
        return {gates * width for width in (1, sizes["i"], h, h * sizes["directions"])}

    def serial_kernels(self, sizes: Sizes) -> int:
        return sizes["s"] * sizes["l"] * sizes["directions"]


@operation_kind("recurrent_backward", "recurrent_backward")
class RecurrentBackward(Recurrent):
    """The gradients of the input and of the weights."""

    device_names = "(mkldnn_rnn_layer|_cudnn_rnn)_backward"
    gradients = 1

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        x, weights, form = _layer(given)
        gradient = given.get("grad_output")
        return x if gradient is None else gradient, x, weights, None, *form

    def flops(self, sizes: Sizes) -> int:
        return 2 * super().flops(sizes)

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        return _weight_bytes(operation), _weight_bytes(operation)


def _weight_bytes(operation: Operation) -> int:
    h, directions, gates = (operation.sizes[name] for name in ("h", "directions", "gates"))
    further = (operation.sizes["l"] - 1) * (h * directions + h + 2)
    return prod((gates, h, directions, operation.sizes["i"] + h + 2 + further, operation.element_bytes))


def _layer(given: Mapping[str, Any]) -> tuple[Any, list[Any], tuple[int, ...]]:
    """Input, weights, and gates, hidden width, layers, directions.

    cuDNN runs all layers in one call and has their weights in a list; oneDNN runs one layer and direction.
    """
    x, (layers, directions) = given["input"], (1, 1)
    if "weight" in given:
        if given["batch_first"]:
            x = x.transpose(0, 1)
        weights = list(given["weight"])
        layers, directions = int(given["num_layers"]), 2 if given["bidirectional"] else 1
    else:
        weights = [value for key, value in given.items() if key.startswith("weight") and value is not None]
    return x, weights, (_GATES[int(given["mode"])], int(given["hidden_size"]), layers, directions)
