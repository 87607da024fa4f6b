"""What the time of an operation depends on, as numbers that a fitted model takes.

The same for operations read off a network and for those of a calibration's sweep. A model gives the logarithm
of time over `Work.bound`, so that it stays near the roofline where it has seen nothing like it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from laptime.model import Operation
from laptime.ops.kinds import flops as count_flops

# Types that products are computed in, by torch's names -> the precisions of `hardware`.
TYPES = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
TILES = 32, 64, 128, 256  # of outputs that a matrix kernel computes together, along either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An operation as a model sees it."""

    kind: str
    dtype: str
    flops: int
    bytes: int
    vector: tuple[float, ...]
    serial: int = 1  # kernels that wait for each other: the steps of a recurrent layer

    @property
    def multiplies_in(self) -> str:
        """The type of its products. Torch's default: cuDNN may use TF32 where cuBLAS may not."""
        cudnn = self.kind.startswith(("convolution", "recurrent"))
        return "tf32" if cudnn and self.dtype == "float32" else self.dtype


def work(operation: Operation) -> Work:
    """The features of an operation that was read off a network."""
    kind, sizes = operation.kind, operation.sizes
    if kind == "copy" and sizes.get("permuted"):
        kind = "permuted"
    kind = _SPECIAL.get(operation.name.partition(".")[2], kind)
    if kind.startswith("batch_norm") and sizes.get("last"):
        kind = kind.replace("norm", "norm_last")  # other kernels, and much faster ones
    sizes = {**sizes, "log": int("log_softmax" in operation.name)}
    moved = operation.moved
    if kind.startswith("pool"):  # a maximum also writes where it was found: not counted in a sweep
        moved = (sizes["n"] + sizes["o"]) * operation.element_bytes
    return of(kind, operation.dtype, sizes, moved)


# Elementwise, but bound by computing on a CPU; a calibration without models of them takes "elementwise".
_SMOOTH = "gelu silu sigmoid tanh elu mish softplus hardswish exp log erf pow sin cos"
_SPECIAL = {"native_dropout": "dropout", "nll_loss_forward": "score", "nll_loss2d_forward": "score"} | {
    f"{name}{way}": "function" for name in _SMOOTH.split() for way in ("", "_", "_backward")
}


def of(kind: str, dtype: str, sizes: Mapping[str, int], moved: int) -> Work:
    """The features of any operation of a kind."""
    flops = count_flops(kind, sizes)
    vector = (_log(flops), _log(moved), *_OWN.get(kind, _plain)(sizes))
    serial = sizes["s"] * sizes["l"] * sizes["directions"] if kind.startswith("recurrent") else 1
    return Work(kind=kind, dtype=dtype, flops=flops, bytes=moved, vector=vector, serial=serial)


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else -1.0


def _filled(count: float, tile: int) -> float:
    """The share of whole tiles that is used."""
    return count / (math.ceil(count / tile) * tile)


def _waves(rows: float, columns: float, groups: int, units: int = 132) -> float:
    """How often all multiprocessors are filled with tiles of 128; beyond thirty it no longer matters."""
    return min(30.0, math.ceil(rows / 128) * math.ceil(columns / 128) * groups / units)


def _plain(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return (_log(sizes.get("n", 0)), float(sizes.get("broadcast", 0)))


def _convolution(sizes: Mapping[str, int]) -> tuple[float, ...]:
    """As the matrix product that it amounts to: rows are places, columns channels, depth a window."""
    groups = sizes["g"]
    inside, outside = sizes["c"] // groups, sizes["o"] // groups
    rows, depth = sizes["n"] * sizes["places"], inside * sizes["window"]
    return (
        _log(sizes["n"]),
        _log(sizes["h"]),
        float(sizes["k"]),
        float(sizes["s"]),
        _log(groups),
        _log(inside),
        _log(outside),
        _log(rows),
        _log(depth),
        float(inside % 8 == 0),
        float(outside % 8 == 0),
        float(inside % 4 == 0),
        float(sizes.get("to_input", 1)),
        _waves(rows, outside, groups),
        *(_filled(outside, tile) for tile in TILES),
        *(_filled(inside, tile) for tile in TILES),
        _log(sizes["places"] * sizes["s"] ** 2),
        float(sizes.get("last", 0)),
        float(sizes.get("l", sizes["k"])),
    )


def _product(sizes: Mapping[str, int]) -> tuple[float, ...]:
    m, k, n = sizes["m"], sizes["k"], sizes["n"]
    return (
        _log(sizes.get("b", 1)),
        _log(m),
        _log(k),
        _log(n),
        float(sizes.get("ta", 0)),
        float(sizes.get("tb", 0)),
        float(m % 8 == 0),
        float(k % 8 == 0),
        float(n % 8 == 0),
        _waves(m, n, sizes.get("b", 1)),
        _filled(m, 128),
        _filled(n, 128),
    )


def _attention(sizes: Mapping[str, int]) -> tuple[float, ...]:
    named = (_log(sizes[name]) for name in ("b", "h", "s", "d"))
    return (*named, float(sizes["causal"]), _log(sizes["b"] * sizes["h"]))


def _rows(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return _log(sizes["r"]), _log(sizes["d"]), float(sizes["d"] % 4 == 0), float(sizes.get("log", 0))


def _batch_norm(sizes: Mapping[str, int]) -> tuple[float, ...]:
    each = sizes["n"] * sizes["p"]
    return (
        _log(sizes["n"]),
        _log(sizes["c"]),
        _log(sizes["p"]),
        _log(each),
        float(sizes["p"] % 4 == 0),
    )


def _pool(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return (
        _log(sizes["n"]),
        _log(sizes["o"]),
        float(sizes["window"]),
        float(sizes.get("avg", 0)),
        sizes["n"] / max(1, sizes["o"]),
        float(sizes.get("last", 0)),
    )


def _reduction(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return _log(sizes["n"]), _log(sizes["o"]), float(sizes.get("inner", 1))


def _recurrent(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return tuple(_log(sizes[name]) for name in ("b", "s", "h", "l"))


def _embedding(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return tuple(_log(sizes[name]) for name in ("t", "d", "v"))


def _optimizer(sizes: Mapping[str, int]) -> tuple[float, ...]:
    return _log(sizes["params"]), _log(sizes["tensors"])


_OWN = {
    "convolution": _convolution,
    "convolution_backward": _convolution,
    "mm": _product,
    "bmm": _product,
    "attention": _attention,
    "attention_backward": _attention,
    "layer_norm": _rows,
    "layer_norm_backward": _rows,
    "softmax": _rows,
    "softmax_backward": _rows,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm,
    "batch_norm_last": _batch_norm,
    "batch_norm_last_backward": _batch_norm,
    "pool": _pool,
    "pool_backward": _pool,
    "reduction": _reduction,
    "recurrent": _recurrent,
    "recurrent_backward": _recurrent,
    "embedding_backward": _embedding,
    "optimizer": _optimizer,
}
