"""Recurrent layers as one operation, forward and backward: every step, layer and direction."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from laptime.model import Operation
from laptime.ops.feature_math import log2
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, grows, operation_kind

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # cuDNN's modes, which oneDNN's operators share: relu, tanh, LSTM, GRU


@operation_kind("recurrent", "recurrent")
class Recurrent(OperationKind):
    """b sequences of s steps of width i, hidden width h, l layers."""

    uses_tf32 = has_workspace = True
    microbenchmark = "recurrent"
    device_names = "mkldnn_rnn_layer|_cudnn_rnn"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _sizes(args[0], args)

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        x, weights, form = _layer(given)
        return x, weights, *form

    def flops(self, sizes: Sizes) -> int:
        """Gates times (input and hidden) products for each step of each layer and direction."""
        first = sizes["i"] + sizes["h"]
        further = (sizes["h"] * sizes["directions"] + sizes["h"]) * (sizes["l"] - 1)
        each = sizes["gates"] * sizes["h"] * (first + further) * sizes["directions"]
        return 2 * sizes["b"] * sizes["s"] * each

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "b", fixed_read=_weight_bytes(operation))

    def weights(self, sizes: Sizes) -> set[int]:
        gates, h = sizes["gates"] * sizes["h"], sizes["h"]
        return {gates * width for width in (1, sizes["i"], h, h * sizes["directions"])}

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return tuple(log2(sizes[name]) for name in ("b", "s", "h", "l"))

    def serial_kernels(self, sizes: Sizes) -> int:
        return sizes["s"] * sizes["l"] * sizes["directions"]

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        return "product"


@operation_kind("recurrent_backward", "recurrent_backward")
class RecurrentBackward(Recurrent):
    """The gradients of the input and of the weights."""

    device_names = "(mkldnn_rnn_layer|_cudnn_rnn)_backward"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return _sizes(args[1], args)

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        x, weights, form = _layer(given)
        gradient = given.get("grad_output")
        return x if gradient is None else gradient, x, weights, None, *form

    def flops(self, sizes: Sizes) -> int:
        return 2 * super().flops(sizes)

    def growth(self, operation: Operation, batch: int) -> Growth:
        weights = _weight_bytes(operation)
        return grows(operation, batch, "b", fixed_read=weights, fixed_written=weights)

    def weights(self, sizes: Sizes) -> set[int]:
        return set()


def _sizes(x: Any, args: Arguments) -> dict[str, int]:
    steps, batch, width = x.shape
    gates, hidden, layers, directions = args[-4:]
    form = {"h": hidden, "l": layers, "gates": gates, "directions": directions}
    return {"b": batch, "s": steps, "i": width, **form}


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
