"""Tile, don't wrap: a mark where ownership changes, each interval charged to one owner, so the sum closes.

An owner is a small integer. Fixed ones stand for accounts; each optimizer and each unit (a module that may
prove to be a layer) has its own. `settle` turns the marks of one step into seconds by account and by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.measure.clocks import Clock, Stamp
from laptime.record import ACCOUNTS, Account

CODE = {account: index for index, account in enumerate(ACCOUNTS)}
DATA_WAIT = CODE[Account.DATA_WAIT]
COPY = CODE[Account.COPY]
FORWARD = CODE[Account.FORWARD]
LOSS = CODE[Account.LOSS]
BACKWARD = CODE[Account.BACKWARD]
UPDATE = CODE[Account.UPDATE]
COMMUNICATION = CODE[Account.COMMUNICATION]
HOST = CODE[Account.HOST]
INSTRUMENT = CODE[Account.INSTRUMENT]
LOSS_BACKWARD = 11  # the backward pass, inside the nodes that the loss made
INPUT = 12  # inside a network, before its first layer: charged to that layer
OPTIMIZERS = 16  # 16 + k: the update of optimizer k
MOST_OPTIMIZERS = 16
UNITS = OPTIMIZERS + MOST_OPTIMIZERS  # UNITS + 2u: forward of unit u; UNITS + 2u + 1: its backward
RETURN = 1 << 24  # set on a mark that gives time back to an owner without calling it again


def forward_code(unit: int) -> int:
    """The owner code of a unit's forward pass."""
    return UNITS + 2 * unit


def backward_code(unit: int) -> int:
    """The owner code of a unit's backward pass."""
    return UNITS + 2 * unit + 1


class Timeline:
    """The marks of the step that is running."""

    __slots__ = ("_now", "clock", "on_mark", "owners", "stamps")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._now = clock.now
        self.stamps: list[Stamp] = []
        self.owners: list[int] = []
        self.on_mark: Callable[[int], None] | None = None  # set while a kernel trace is on

    def mark(self, code: int) -> None:
        """From now on, time goes to this owner."""
        self.stamps.append(self._now())
        self.owners.append(code)
        if self.on_mark is not None:
            self.on_mark(len(self.owners) - 1)

    @property
    def owner(self) -> int:
        """Who is being charged now."""
        return self.owners[-1] if self.owners else HOST

    def give_back(self, code: int) -> None:
        """Charge an earlier owner again, without counting a call."""
        self.mark(code | RETURN)

    def relabel_since(self, index: int, was: int, becomes: int) -> None:
        """Charge the intervals from mark `index` on that went to `was` to another owner instead."""
        for i in range(index, len(self.owners)):
            if self.owners[i] & ~RETURN == was:
                self.owners[i] = becomes

    def cut(self) -> tuple[list[Stamp], list[int]]:
        """Close the step here and open the next: its first stamp is this one's last."""
        self.stamps.append(self._now())
        stamps, owners = self.stamps.copy(), self.owners.copy()
        # Cleared in place: the hooks hold no reference to the lists, but the last stamp opens the next step.
        del self.stamps[:-1]
        self.owners.clear()
        self.owners.append(INSTRUMENT)  # until the recorder has prepared the next step
        return stamps, owners


@dataclass(slots=True)
class RawStep:
    """The marks of a finished step, before anyone has read the clock's stamps."""

    stamps: list[Stamp]
    owners: list[int]
    fields: dict[str, Any]
    instrumented: bool
    logged: dict[str, Any] = field(default_factory=dict)
    perturbed: bool = False  # a profiler session was open
    trace: Any = None


@dataclass(frozen=True, slots=True)
class Settled:
    """Seconds by account, and by owner code with first start and calls."""

    wall_s: float
    accounts: NDArray[np.float64]
    seconds: NDArray[np.float64]
    starts: NDArray[np.float64]
    calls: NDArray[np.int64]


def account_of(codes: int) -> NDArray[np.int64]:
    """The account of each owner code below `codes`."""
    table = np.full(codes, BACKWARD, dtype=np.int64)
    table[: len(ACCOUNTS)] = np.arange(len(ACCOUNTS))
    table[INPUT] = FORWARD
    table[OPTIMIZERS:UNITS] = UPDATE
    table[UNITS::2] = FORWARD
    return table


def settle(times: NDArray[np.float64], owners: Sequence[int], is_layer: NDArray[np.bool_]) -> Settled:
    """Charge each interval to its owner. Units that are no layer pass their time to whoever ran before."""
    codes = UNITS + 2 * len(is_layer)
    owner = np.array(owners, dtype=np.int64)
    returned = (owner & RETURN) != 0
    owner &= ~RETURN
    unit = np.clip((owner - UNITS) // 2, 0, max(0, len(is_layer) - 1))
    drop = (owner >= UNITS) & ~is_layer[unit] if len(is_layer) else np.zeros(len(owner), dtype=bool)
    if drop.any():
        # The mark of a non-layer is taken out: the interval before it simply goes on. A first mark stays.
        drop[0] = False
        keep = ~drop
        owner, returned = owner[keep], returned[keep]
        times = np.concatenate((times[:-1][keep], times[-1:]))
    _resolve_input(owner)
    spans = np.diff(times)
    seconds = _sums(owner, spans, codes)
    calls = np.bincount(owner[~returned], minlength=codes)
    starts = np.zeros(codes)
    starts[owner[::-1]] = times[:-1][::-1]  # the first start of each owner is written last
    accounts = _sums(account_of(codes)[owner], spans, len(ACCOUNTS))
    return Settled(float(times[-1] - times[0]), accounts, seconds, starts, calls)


def _sums(keys: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(keys, weights=values, minlength=count), dtype=np.float64)


def _resolve_input(owner: NDArray[np.int64]) -> None:
    """Charge what runs before a network's first layer to that layer; to nobody if no layer follows."""
    for index in np.flatnonzero(owner == INPUT):
        later = owner[index + 1 :]
        followers = later[(later >= UNITS) & ((later - UNITS) % 2 == 0)]
        stop = later[(later == LOSS) | (later == BACKWARD) | (later == HOST)]
        first_stop = np.flatnonzero(later == stop[0])[0] if len(stop) else len(later)
        first_layer = np.flatnonzero(later == followers[0])[0] if len(followers) else len(later) + 1
        owner[index] = followers[0] if first_layer < first_stop else FORWARD
