"""A step's operations and the memory it needs; saved as JSON, and read where there is no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laptime.errors import WorkloadError
from laptime.files.read import read_json
from laptime.files.text import first_line, one_line
from laptime.files.typed import build
from laptime.model.accounts import Phase
from laptime.model.operation import Operation, named_loss

VERSION = 1
_HOW_TO_SAVE = "`laptime predict NETWORK --save FILE` and Workload.save make one"


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
        return {
            "laptime_workload": VERSION,
            **{name: getattr(self, name) for name in self.__slots__},
            "operations": [operation.document() for operation in self.operations],
            "memory": asdict(self.memory),
        }

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
            if isinstance(operations, list):  # version 1 named the loss otherwise
                document = document | {"operations": [named_loss(operation) for operation in operations]}
            workload = build(cls, document)
            if workload.batch < 1:
                raise ValueError("batch is 0")
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
