"""An operation to time, and the register of families that a sweep draws them from.

Each family enters itself, in its own file of this folder.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import cycle
from typing import Any

import torch

from laptime.capture.op_reader import Alive, Reader
from laptime.errors import CalibrationError
from laptime.microbench.random_sizes import Supply
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


def both_ways(forward: Callable[[], Any], backward: Callable[[], Any]) -> list[Case]:
    """A forward pass and its backward pass."""
    return [Case(call=forward, kept=True), Case(call=backward)]


class InTurns:
    """The same operation on other tensors each time, so that none is in a cache."""

    def __init__(self, calls: Sequence[partial[Any]]) -> None:
        self.args = calls[0].args
        self._turns = cycle(calls)

    def __call__(self) -> Any:
        return next(self._turns)()


Make = Callable[[Supply, torch.dtype], list[Case]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFamily:
    """Operations of one kind, and of its backward pass where that has one."""

    name: str
    make: Make  # a random member, each way; raises TooLarge where the draw was unlucky
    share: int  # of the draws of a round: more where shapes matter more
    low: bool  # also in bfloat16


_families: list[SweepFamily] = []


def family(*, share: int = 1, low: bool = True) -> Callable[[Make], Make]:
    """Enter a function under its name."""

    def enter(make: Make) -> Make:
        _families.append(SweepFamily(name=make.__name__, make=make, share=share, low=low))
        return make

    return enter


@cache
def all_families() -> tuple[SweepFamily, ...]:
    """Every family. Reads the files of this folder."""
    folder = import_module("laptime.microbench")
    for module in pkgutil.iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return tuple(_families)
