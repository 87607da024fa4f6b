"""The published single operations, `h200_ops.csv`, as a calibration's own."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from laptime.estimate.calibration import TimedOperation, kernel_work

# The names of the measured operations -> the kinds of `laptime.ops`.
_KINDS = {
    "sdpa": "attention",
    "sdpa_backward": "attention_backward",
    "log_softmax": "softmax",
    "log_softmax_backward": "softmax_backward",
    "max_pool": "pool",
    "avg_pool": "pool",
    "max_pool_backward": "pool_backward",
    "lstm": "recurrent",
    "lstm_backward": "recurrent_backward",
    "cast": "copy",
    "clone": "copy",
    "cat": "cat",
    "clone_permuted": "permuted",
    "copy_t": "permuted",
    "roll": "permuted",
    "sum": "reduction",
    "sum_hw": "reduction",
    "mean_hw": "reduction",
    "embedding": "gather",
    "sgd_momentum": "optimizer",
}
_SAME = {
    "batch_norm",
    "batch_norm_backward",
    "bmm",
    "convolution",
    "convolution_backward",
    "embedding_backward",
    "layer_norm",
    "layer_norm_backward",
    "mm",
    "softmax",
    "softmax_backward",
}


def read(path: str | Path) -> Iterator[TimedOperation]:
    """The rows of a file with the columns op, dtype, shape, bytes_in, bytes_out, device_us and host_us."""
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row["op"]
            kind = name if name in _SAME else _KINDS.get(name, "elementwise")
            moved = int(float(row["bytes_in"])) + int(float(row["bytes_out"]))
            yield TimedOperation(
                name=name,
                work=kernel_work(kind, row["dtype"], _sizes(name, row["shape"]), moved),
                device_us=float(row["device_us"]),
                host_us=float(row["host_us"]),
            )


def _sizes(name: str, shape: str) -> Mapping[str, int]:
    """Sizes under the names of `laptime.ops`, from `n8 c256 h8 …`."""
    given = {key: int(value) for key, value in re.findall(r"([a-z]+)(\d+)", shape)}
    match name:
        case "convolution" | "convolution_backward":
            side = (given["h"] + 2 * given["p"] - given["k"]) // given["s"] + 1
            found = given | {"w": given["h"], "places": side * side, "window": given["k"] ** 2}
            return found | {"to_input": 1, "to_weight": 1}
        case "max_pool" | "avg_pool" | "max_pool_backward":
            side = (given["h"] - given["k"]) // given["s"] + 1
            images = given["n"] * given["c"]
            return {
                "n": images * given["h"] ** 2,
                "o": images * side * side,
                "window": given["k"] ** 2,
                "avg": int(name == "avg_pool"),
            }
        case "batch_norm" | "batch_norm_backward":
            return {"n": given["n"], "c": given["c"], "p": given["h"] ** 2}
        case "sdpa" | "sdpa_backward":
            return given | {"t": given["s"]}
        case "lstm" | "lstm_backward":
            return given | {"i": given["h"], "gates": 4, "directions": 1}
        case "sum_hw" | "mean_hw":
            images = given["n"] * given["c"]
            return {"n": images * given["h"] ** 2, "o": images, "inner": 1}
        case "sum":
            return {"n": given["n"], "o": 1, "inner": 1}
        case "mul_broadcast":
            return {"n": given["n"] * given["c"] * given["h"] ** 2, "broadcast": 1}
        case "clone_permuted" | "roll":
            return {"n": given["b"] * given["h"] * given["s"] * given["d"]}
        case "cat":
            return {"n": given["n"] * given["c"] * given["h"] ** 2}
        case "log_softmax" | "log_softmax_backward":
            return given | {"log": 1}
    return given
