"""One operation of a step, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "bool": 1, "uint8": 1}
"""Of one element, by torch's names of types."""


class Phase(StrEnum):
    """When in a step an operation runs."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one operation computes and moves.

    `sizes` holds the numbers that its time depends on, under the names of `kinds`; a matrix product has m, k
    and n. Bytes are counted once for each tensor, as if nothing stayed in a cache. FLOPs are those of matrix
    products and convolutions, a multiplication and an addition each, as `torch.utils.flop_counter` counts.
    """

    name: str  # torch's, such as aten.convolution
    kind: str  # one of `kinds.KINDS`
    phase: Phase
    layer: str  # "" where no layer owns it: the loss
    dtype: str  # in which it computes: float32, bfloat16, float16
    sizes: Mapping[str, int] = field(default_factory=dict)
    flops: int = 0
    read: int = 0  # bytes
    written: int = 0
    alive: int = 0  # bytes in tensors while it runs, its results included
    covered: bool = True  # by a formula of its own; else it counts with its bytes alone

    @property
    def element_bytes(self) -> int:
        """Of one number in the type that it computes in."""
        return BYTES.get(self.dtype, 4)

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "phase": self.phase.value,
            "sizes": dict(self.sizes),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Operation:
        """From what `document` gave; what only another laptime keeps is passed over."""
        known = {name: document[name] for name in cls.__slots__ if name in document}
        return cls(**known | {"phase": Phase(document["phase"])})
