"""Tile, don't wrap: a mark where ownership changes, each interval charged to one owner, so the sum closes.

An owner is a small integer: an account's place in the list of accounts, or, after those, an owner that is
charged to one of them. Each optimizer and each unit (a module that may prove to be a layer) has its own.
`tile` turns the marks of many steps into seconds by account and by layer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, Account
from laptime.recorder.clocks import Clock, Stamp

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
LOSS_BACKWARD = len(ACCOUNTS)  # the backward pass, inside the nodes that the loss made
INPUT = LOSS_BACKWARD + 1  # inside a network, before its first layer: charged to that layer
OPTIMIZERS = INPUT + 1  # OPTIMIZERS + k: the update of optimizer k
MOST_OPTIMIZERS = 16
UNITS = OPTIMIZERS + MOST_OPTIMIZERS  # UNITS + 2u: forward of unit u; UNITS + 2u + 1: its backward
NOTHING_NS = 15_000  # on the host: too short for a wait, and for a kernel launch between two phases
RETURN = 1 << 24  # set on a mark that gives time back to an owner without calling it again


def forward_code(unit: int) -> int:
    """The owner code of a unit's forward pass."""
    return UNITS + 2 * unit


def backward_code(unit: int) -> int:
    """The owner code of a unit's backward pass."""
    return UNITS + 2 * unit + 1


class Timeline:
    """The marks of the step that is running."""

    __slots__ = ("_marked_ns", "_now", "_on_mark", "clock", "open", "owners", "stamps", "thread")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._now = clock.now
        self._marked_ns = 0
        self.stamps: list[Stamp] = []
        self.owners: list[int] = []
        self._on_mark: Callable[[int], None] | None = None
        self.open = False  # a step is running
        self.thread = threading.get_ident()  # whose steps these are

    def mark(self, code: int) -> None:
        """From now on, time goes to this owner."""
        self.stamps.append(self._now())
        self.owners.append(code)
        if self._on_mark is not None:
            self._on_mark(len(self.owners) - 1)

    def trace(self, on_mark: Callable[[int], None] | None) -> None:
        """While a kernel trace is on, tell it the number of each mark; None: it is over."""
        self._on_mark = on_mark

    @property
    def traced(self) -> bool:
        """Whether marks are told to a kernel trace."""
        return self._on_mark is not None

    def follow_thread(self) -> None:
        """Steps are those of this thread's loop from here on, and one is running."""
        self.open = True
        self.thread = threading.get_ident()

    def elsewhere(self) -> bool:
        """Whether this is another thread than the recorded one, or no step is open yet."""
        return threading.get_ident() != self.thread or not self.open

    def follow_up(self, code: int) -> None:
        """Like `mark`; where marks are dear and nothing can have happened since the last, relabel that."""
        if self.clock.deferred and time.perf_counter_ns() - self._marked_ns < NOTHING_NS and self.owners:
            self.owners[-1] = code
        else:
            self.mark(code)

    def relabel(self, code: int) -> None:
        """Give the time since the last mark to another owner."""
        self.owners[-1] = code
        self._marked_ns = time.perf_counter_ns()

    def mark_now(self, code: int) -> None:
        """A mark that a `follow_up` may replace."""
        self.mark(code)
        self._marked_ns = time.perf_counter_ns()

    def insert(self, stamp: Stamp, code: int) -> None:
        """Like `mark`, at a moment since the last one."""
        self.stamps.append(stamp)
        self.owners.append(code)

    @property
    def owner(self) -> int:
        """Who is being charged now."""
        return self.owners[-1] if self.owners else HOST

    def give_back(self, code: int) -> None:
        """Charge an earlier owner again, without counting a call."""
        self.mark(code | RETURN)

    def clear(self) -> None:
        """Clear all marks in place: hooks hold the lists."""
        self.clock.recycle(self.stamps)
        self.stamps.clear()
        self.owners.clear()

    def cut(self) -> tuple[list[Stamp], list[int]]:
        """Close the step here and open the next: its first stamp is this one's last."""
        self.stamps.append(self._now())
        stamps, owners = self.stamps.copy(), self.owners.copy()
        # Cleared in place, since hooks hold the lists. The last stamp opens the next step.
        del self.stamps[:-1]
        self.owners.clear()
        self.owners.append(INSTRUMENT)  # until the recorder has prepared the next step
        return stamps, owners

    def cut_at(self, mark: int) -> tuple[list[Stamp], list[int]]:
        """Close the step at an earlier mark; the marks from there on are those of the next."""
        stamps, owners = self.stamps[: mark + 1], self.owners[:mark]
        del self.stamps[:mark], self.owners[:mark]
        return stamps, owners


@dataclass(slots=True)
class RawStep:
    """The marks of a finished step."""

    stamps: list[Stamp]
    owners: list[int]
    fields: dict[str, Any]
    instrumented: bool
    logged: dict[str, Any] = field(default_factory=dict)
    read: list[float] | None = None  # milliseconds between neighbouring stamps, once the device passed them
    perturbed: bool = False  # a profiler session was open
    trace: Any = None


@dataclass(frozen=True, slots=True)
class Tiles:
    """Many steps, tiled: wall and accounts by step; seconds, first start and calls by step and owner."""

    walls: NDArray[np.float64]
    accounts: NDArray[np.float64]
    codes: NDArray[np.int64]
    seconds: NDArray[np.float64]
    starts: NDArray[np.float64]
    calls: NDArray[np.int64]


def account_of(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The account of each owner code."""
    table = np.full(UNITS, UPDATE, dtype=np.int64)
    table[: len(ACCOUNTS)] = np.arange(len(ACCOUNTS))
    table[[LOSS_BACKWARD, INPUT]] = BACKWARD, FORWARD
    units = np.where((codes - UNITS) % 2 == 0, FORWARD, BACKWARD)
    return np.where(codes < UNITS, table[np.minimum(codes, UNITS - 1)], units)


def tile(spans: Sequence[Sequence[float]], owners: Sequence[list[int]], is_layer: NDArray[np.bool_]) -> Tiles:
    """Charge each interval of many steps to its owner, all at once: a background thread must not be busy.

    `spans`: milliseconds between the marks of each step. Units that are no layer pass their time to whoever
    ran before them.
    """
    count = len(owners)
    owner = np.array([code for step in owners for code in step], dtype=np.int64)
    span = np.array([interval for step in spans for interval in step], dtype=np.float64) * 1e-3
    step = np.repeat(np.arange(count), [len(step) for step in owners])
    walls = np.bincount(step, weights=span, minlength=count).astype(np.float64)
    begins = np.cumsum(span) - span - (np.cumsum(walls) - walls)[step]
    called = (owner & RETURN) == 0
    owner &= ~RETURN
    _pass_on(owner, called, is_layer)
    _resolve_input(owner, step)
    codes, inverse = np.unique(owner, return_inverse=True)
    shape = (count, len(codes))
    keys = step * len(codes) + inverse
    starts = np.zeros(shape)
    starts.ravel()[keys[::-1]] = begins[::-1]  # the first start of each owner is written last
    return Tiles(
        walls=walls,
        accounts=_sums(step * len(ACCOUNTS) + account_of(owner), span, (count, len(ACCOUNTS))),
        codes=codes,
        seconds=_sums(keys, span, shape),
        starts=starts,
        calls=np.bincount(keys[called], minlength=shape[0] * shape[1]).reshape(shape),
    )


def resolved(owners: Sequence[int], is_layer: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Who the time after each mark of a step goes to, as `tile` sees it."""
    owner = np.array(owners, dtype=np.int64)
    called = (owner & RETURN) == 0
    owner &= ~RETURN
    _pass_on(owner, called, is_layer)
    _resolve_input(owner, np.zeros(len(owner), dtype=np.int64))
    return owner


def _sums(
    keys: NDArray[np.int64], values: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    flat = np.bincount(keys, weights=values, minlength=shape[0] * shape[1])
    return np.asarray(flat, dtype=np.float64).reshape(shape)


def _pass_on(owner: NDArray[np.int64], called: NDArray[np.bool_], is_layer: NDArray[np.bool_]) -> None:
    """A mark of a unit that is no layer repeats the mark before it. A step's first mark is never a unit's."""
    if not len(is_layer):
        return
    unit = np.clip((owner - UNITS) // 2, 0, len(is_layer) - 1)
    drop = (owner >= UNITS) & ~is_layer[unit]
    if drop.any():
        # Time given back to such a unit goes to whoever took the unit's call along.
        for index in np.flatnonzero(drop & ~called):
            calls = np.flatnonzero((owner[:index] == owner[index]) & called[:index])
            kept = np.flatnonzero(~drop[: calls[-1]]) if len(calls) else calls
            if len(kept):
                owner[index], drop[index] = owner[kept[-1]], False
        last_kept = np.maximum.accumulate(np.where(drop, 0, np.arange(len(owner))))
        owner[:] = owner[last_kept]
        called &= ~drop


def _resolve_input(owner: NDArray[np.int64], step: NDArray[np.int64]) -> None:
    """Charge what runs before a network's first layer to that layer; to nobody if no layer follows."""
    for index in np.flatnonzero(owner == INPUT):
        later = owner[index + 1 :][step[index + 1 :] == step[index]]
        ends = np.flatnonzero((later == LOSS) | (later == BACKWARD) | (later == HOST))
        layers = np.flatnonzero((later >= UNITS) & ((later - UNITS) % 2 == 0))
        follows = len(layers) > 0 and (len(ends) == 0 or layers[0] < ends[0])
        owner[index] = later[layers[0]] if follows else FORWARD
