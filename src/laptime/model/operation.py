"""One operation of a step, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from laptime.model.accounts import Account, Phase
from laptime.model.layers import LOSS_LAYER

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "bool": 1, "uint8": 1}
"""Of one element, by torch's names of types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one operation computes and moves.

    `sizes` holds the numbers that its time depends on, under the names of its kind (`laptime.ops`); a matrix
    product has m, k and n. Bytes are counted once for each tensor, as if nothing stayed in a cache. FLOPs are
    those of matrix products and convolutions, a multiplication and an addition each, as
    `torch.utils.flop_counter` counts.
    """

    name: str  # torch's, such as aten.convolution
    kind: str  # one of `ops.registry.kinds`
    phase: Phase
    layer: str  # LOSS_LAYER where it is the loss'
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

    @property
    def account(self) -> Account:
        """The account of a step that its time goes to."""
        loss = self.layer == LOSS_LAYER and self.phase is Phase.FORWARD
        return Account.LOSS if loss else Account(self.phase.value)

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "phase": self.phase.value,
            "sizes": dict(self.sizes),
        }


def named_loss(document: Any) -> Any:
    """An operation's document with the loss under its name: version 1 had none, and a phase of its own."""
    if not isinstance(document, dict) or (document.get("layer") and document.get("phase") != "loss"):
        return document
    phase = Phase.FORWARD.value if document.get("phase") == "loss" else document.get("phase")
    return document | {"layer": document.get("layer") or LOSS_LAYER, "phase": phase}
