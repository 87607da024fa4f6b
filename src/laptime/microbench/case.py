"""An operation to time, and its description."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from laptime.capture.op_reader import Alive, Reader
from laptime.errors import CalibrationError
from laptime.model import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation with its arguments.

    `shown` is what the reader sees of it, where torch runs something else on this device than what the reader
    finds in a network: attention, recurrent layers, batch norm. The optimizer is not read but known.
    """

    call: Callable[[], Any]
    shown: Callable[[], Any] | None = None
    known: Operation | None = None
    kept: bool = False  # of a forward pass: what it makes stays alive until the backward pass

    def operation(self) -> Operation:
        """Kind, sizes and bytes, as the reader of networks has them. Runs it once."""
        if self.known is not None:
            return self.known
        reader = Reader(Alive())
        with reader:
            (self.shown or self.call)()
        if len(reader.found) != 1:
            names = ", ".join(operation.name for operation, _ in reader.found) or "none"
            raise CalibrationError(f"one operation was meant, {names} ran; this torch differs: tell us")
        return reader.found[0][0]


class InTurns:
    """The same operation on other tensors each time, so that none is in a cache."""

    def __init__(self, calls: Sequence[partial[Any]]) -> None:
        self.args = calls[0].args
        self._turns = cycle(calls)

    def __call__(self) -> Any:
        return next(self._turns)()
