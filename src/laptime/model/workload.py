"""A step's operations as plain numbers, and the memory it needs; saved as JSON and read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laptime.errors import WorkloadError
from laptime.files.parse import build
from laptime.files.read import read_json
from laptime.files.text import first_line, one_line
from laptime.files.write import plain
from laptime.model.accounts import Account, Phase
from laptime.model.layers import LOSS_LAYER

VERSION = 1
_HOW_TO_SAVE = "`laptime predict NETWORK --save FILE` and Workload.save make one"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that tensors take, as read off one step."""

    parameters: int
    gradients: int
    buffers: int
    state: int  # of the optimizer
    inputs: int
    activations: int  # alive when the backward pass begins, beyond all of the above
    peak: int  # the most that is alive at once, without what libraries need to work in

    @property
    def static(self) -> int:
        """What stays from step to step."""
        return self.parameters + self.buffers + self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one step of a network asks of any machine."""

    network: str
    batch: int
    precision: str  # fp32, bf16 or fp16: of autocast
    mode: str  # training or inference
    parameters: int
    tensors: int  # trainable parameters as tensors: what an optimizer goes through
    sample_bytes: int  # of one input sample
    layers: tuple[str, ...]  # in the order of their first calls
    operations: tuple[Operation, ...]
    memory: Memory
    notes: tuple[str, ...] = ()  # what had to be assumed
    accumulate: int = 1  # micro-batches per optimizer update (gradient accumulation)

    def __hash__(self) -> int:
        """By what tells most of them apart: the sizes of operations have no hash."""
        return hash((self.network, self.batch, self.precision, self.mode, len(self.operations)))

    @property
    def flops(self) -> int:
        """Of the whole step."""
        return sum(operation.flops for operation in self.operations)

    def phase(self, phase: Phase) -> tuple[Operation, ...]:
        """The operations of a phase."""
        return tuple(operation for operation in self.operations if operation.phase is phase)

    @property
    def uncovered(self) -> dict[str, float]:
        """Operations without a formula of their own, with their share of the bytes moved."""
        whole = sum(operation.moved for operation in self.operations) or 1
        shares: dict[str, float] = {}
        for operation in self.operations:
            if not operation.covered:
                shares[operation.name] = shares.get(operation.name, 0.0) + operation.moved / whole
        return dict(sorted(shares.items(), key=lambda pair: -pair[1]))

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"laptime_workload": VERSION, **plain(self)}

    @classmethod
    def of(cls, document: Any, where: str = "it") -> Workload:
        """From what `document` gave; `where` it came from, for whoever has to mend it."""
        if not isinstance(document, dict) or "laptime_workload" not in document:
            raise WorkloadError(f"{where} is no workload; {_HOW_TO_SAVE}")
        version = document["laptime_workload"]
        if version != VERSION:
            raise WorkloadError(
                f"{where} has version {one_line(version)[:20]}, this laptime reads {VERSION}; trace it anew"
            )
        try:
            operations = document.get("operations")
            if isinstance(operations, list):  # older files of this version left the loss without a name
                document = document | {"operations": [_named_loss(operation) for operation in operations]}
            workload = build(cls, document)
            if workload.batch < 1 or workload.accumulate < 1:
                raise ValueError(f"batch is {workload.batch}, accumulate {workload.accumulate}")
            return workload
        except ValueError as error:
            raise WorkloadError(f"{where} is damaged ({first_line(error)}); trace it anew") from None

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.document()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, *, inside: Path | None = None) -> Workload:
        """Read what `save` wrote; with `inside`, no link that leads out of that folder is followed."""
        where = one_line(path)
        try:
            return cls.of(read_json(path, inside=inside), where)
        except OSError as error:
            raise WorkloadError(
                f"{where} cannot be read ({first_line(error)}); give a saved workload"
            ) from None
        except ValueError:
            raise WorkloadError(f"{where} is no workload; {_HOW_TO_SAVE}") from None


def _named_loss(document: Any) -> Any:
    """An operation's document with the loss under its name: older files have none, and a phase of its own."""
    if not isinstance(document, dict) or (document.get("layer") and document.get("phase") != "loss"):
        return document
    phase = Phase.FORWARD.value if document.get("phase") == "loss" else document.get("phase")
    return document | {"layer": document.get("layer") or LOSS_LAYER, "phase": phase}
