"""Features of an operation, the input of fitted models.

The same for operations of a network and of a calibration sweep. A model predicts the logarithm of time over
`Work.bound`, so that it stays near the roofline outside its training data.
"""

from __future__ import annotations

from dataclasses import dataclass

from laptime.model import Operation
from laptime.ops.feature_math import log2
from laptime.ops.registry import Sizes, kind_named

# Types that products are computed in, by torch's names -> the precisions of `hardware`.
TYPES = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An operation as a model sees it."""

    kind: str
    dtype: str
    flops: int
    bytes: int
    vector: tuple[float, ...]
    serial: int = 1  # sequential kernels: the steps of a recurrent layer

    @property
    def multiplies_in(self) -> str:
        """The type of its products."""
        return "tf32" if self.dtype == "float32" and kind_named(self.kind).uses_tf32 else self.dtype


def work(operation: Operation) -> Work:
    """The features of an operation that was read off a network."""
    kernel = kind_named(operation.kind).timed_as(operation)
    return kernel_work(kernel.kind, operation.dtype, kernel.sizes, kernel.moved)


def kernel_work(kind: str, dtype: str, sizes: Sizes, moved: int) -> Work:
    """The features of any operation of a kind."""
    entry = kind_named(kind)
    flops = entry.flops(sizes)
    vector = (log2(flops), log2(moved), *entry.features(sizes))
    serial = entry.serial_kernels(sizes)
    return Work(kind=kind, dtype=dtype, flops=flops, bytes=moved, vector=vector, serial=serial)
