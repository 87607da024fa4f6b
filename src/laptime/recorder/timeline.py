"""The running step: its marks, and what has happened in it so far.

Tile, don't wrap: a mark where ownership changes, each interval charged to one owner, so the sum closes. An
owner is a small integer: an account's place in the list of accounts, or, after those, an owner that is
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
from torch.optim import Optimizer

from laptime.model import ACCOUNTS, Account, Stage
from laptime.recorder.backends.backend import Clock, Stamp
from laptime.recorder.layer_division import LayerUnit

CODE = {account: index for index, account in enumerate(ACCOUNTS)}
DATA_WAIT = CODE[Account.DATA_WAIT]
COPY = CODE[Account.COPY]
FORWARD = CODE[Account.FORWARD]
LOSS = CODE[Account.LOSS]
BACKWARD = CODE[Account.BACKWARD]
UPDATE = CODE[Account.UPDATE]
COMMUNICATION = CODE[Account.COMMUNICATION]
IDLE = CODE[Account.IDLE]
HOST = CODE[Account.HOST]
INSTRUMENT = CODE[Account.INSTRUMENT]
LOSS_BACKWARD = len(ACCOUNTS)  # the backward pass, inside the nodes that the loss made
INPUT = LOSS_BACKWARD + 1  # inside a network, before its first layer: charged to that layer
OPTIMIZERS = INPUT + 1  # OPTIMIZERS + k: the update of optimizer k
MOST_OPTIMIZERS = 16
KINDS = (
    "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "parameter_server", "recv",
    "reduce", "reduce_scatter", "scatter", "send",
)  # fmt: skip
COLLECTIVES = OPTIMIZERS + MOST_OPTIMIZERS  # COLLECTIVES + k: waiting in a collective of kind k
CAUSES = ("fill", "drain", "imbalance")  # of a pipeline's bubbles
# A stage waits for its neighbours in either: gloo sends only once the other side has asked for it.
POINT_TO_POINT = ("send", "recv")
BUBBLES = COLLECTIVES + len(KINDS)  # BUBBLES + 2c + p: waiting in POINT_TO_POINT[p], for cause c
UNITS = BUBBLES + len(CAUSES) * len(
    POINT_TO_POINT
)  # UNITS + 2u: forward of unit u; UNITS + 2u + 1: its backward
NOTHING_NS = 15_000  # on the host: too short for a wait, and for a kernel launch between two phases
RETURN = 1 << 24  # set on a mark that gives time back to an owner without calling it again


def forward_code(unit: int) -> int:
    return UNITS + 2 * unit


def backward_code(unit: int) -> int:
    return UNITS + 2 * unit + 1


def in_engine_thread() -> bool:
    """Whether this thread belongs to autograd's engine: Python's threading did not start it."""
    return isinstance(threading.current_thread(), threading._DummyThread)


class Timeline:
    """The marks of the step that is running."""

    __slots__ = ("_marked_ns", "_now", "clock", "on_mark", "open", "owners", "stamps", "thread")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._now = clock.now
        self._marked_ns = 0
        self.stamps: list[Stamp] = []
        self.owners: list[int] = []
        self.on_mark: Callable[[int], None] | None = None  # a kernel trace is told the number of each mark
        self.open = False  # a step is running
        self.thread = threading.get_ident()  # whose steps these are

    def mark(self, code: int) -> None:
        """From now on, time goes to this owner."""
        self.stamps.append(self._now())
        self.owners.append(code)
        if self.on_mark is not None:
            self.on_mark(len(self.owners) - 1)

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
        return self.owners[-1] & ~RETURN if self.owners else HOST

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


def mark_seconds(clock: Clock, marks: int) -> float:
    """Seconds that one mark keeps the host busy."""
    scratch = Timeline(clock)
    begin = time.perf_counter()
    for _ in range(marks):
        scratch.mark(HOST)
    passed = time.perf_counter() - begin
    clock.recycle(scratch.stamps)
    return passed / marks


@dataclass(slots=True)
class StepEvidence:
    """What happened in a step; decides its stage and its labels."""

    forward: bool = False
    backward: bool = False
    update: bool = False
    graded: bool = False  # a forward pass had gradients enabled
    training: bool = False  # a network was in training mode

    def saw_forward(self, *, graded: bool, training: bool) -> None:
        self.forward = True
        self.graded = self.graded or graded
        self.training = self.training or training

    @property
    def works(self) -> bool:
        """Whether the step has done anything but wait."""
        return self.forward or self.backward or self.update

    @property
    def stage(self) -> Stage:
        """What the step was for."""
        trains = self.backward or self.update or (self.graded and self.training) or not self.forward
        return Stage.TRAIN if trains else Stage.VALIDATION


@dataclass(slots=True, eq=False)
class RunningStep:
    """One object for a whole recording, since hooks hold it; `next_step` makes it that of the next step."""

    evidence: StepEvidence = field(default_factory=StepEvidence)
    began: float = field(default_factory=time.perf_counter)
    forward_depth: int = 0  # forward passes under way
    backward_depth: int = 0
    in_loss: bool = False  # inside a loss function
    samples: int | None = None  # in the batch that was drawn last
    marked: bool = False  # it carries layer marks,
    complete: bool = True  # and does to its end
    perturbed: bool = False  # a profiler session is open
    walked_s: float = 0.0  # what walks over autograd graphs have taken of it

    def starts(self) -> float:
        """The step starts here; returns the host seconds of the previous step."""
        before, self.began = self.began, time.perf_counter()
        return self.began - before

    def restart(self) -> None:
        """Begin here, with nothing in it."""
        self.evidence = StepEvidence()
        self.forward_depth = 0
        self.starts()

    def next_step(self) -> StepEvidence:
        """The next step begins; returns what happened in this one."""
        evidence, self.evidence = self.evidence, StepEvidence()
        self.walked_s = 0.0
        self.forward_depth = self.backward_depth = 0
        return evidence

    def close(self) -> bool:
        """Close the step; returns whether its layer times are complete. The next one keeps `marked`."""
        self.marked = self.marked and self.complete
        self.complete, self.samples, self.in_loss = True, None, False
        return self.marked


class LoopListener:
    """Told what happens in a recorded loop. This one does nothing; that of `laptime run` cuts steps."""

    def before_draw(self, iterator: Any) -> None:
        """A batch is about to be drawn."""

    def before_forward(self, unit: LayerUnit) -> None:
        """A network is called, or a part of it by itself."""

    def before_backward(self) -> None:
        """A backward pass begins that accumulates gradients."""

    def before_update(self, optimizer: Optimizer) -> None:
        """A known optimizer begins a step."""

    def after_update(self, optimizer: Optimizer) -> None:
        """A known optimizer has ended a step."""

    def unknown_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer steps that the recording does not know."""

    def other_thread(self) -> bool:
        """A network is called in another thread than the recorded one; whether to go on there."""
        return False

    def give_way(self) -> None:
        """Another recording is about to begin in this process."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A call of a collective, from the call until its result is there."""

    kind: str
    bytes: int  # of the tensors given: the whole of what is gathered or scattered
    wire_bytes: float  # that cross this rank's link in one direction
    begin: Stamp
    returned: Stamp | None = None  # of a call that may have waited inside: its end, if nobody waits after it
    end: Stamp | None = None  # None: nobody waited for it
    end_clock: Clock | None = None  # of the end, where that is another than the timeline's
    bucket: int | None = None  # of gradients, as DDP counts them
    computed: Stamp | None = None  # of a bucket: the last gradient of the pass was there
    span: tuple[float, float] | None = None  # seconds since the step began, once stamps are read
    exposed_s: float = 0.0  # of a bucket: its span after the last gradient

    def read_stamps(self, clock: Clock, zero: Stamp) -> None:
        """Read when it began and ended; what the device has not passed stays unknown."""
        if self.end is None or not clock.ready(self.end) or not clock.ready(self.begin):
            return
        begin, end = (clock.read([zero, stamp])[0] * 1e-3 for stamp in (self.begin, self.end))
        self.span = begin, max(begin, end)
        if self.computed is not None and clock.ready(self.computed):
            self.exposed_s = max(0.0, end - max(begin, clock.read([zero, self.computed])[0] * 1e-3))
        if self.end_clock is not None:
            self.end_clock.recycle([self.end])


@dataclass(slots=True)
class RawStep:
    """The marks of a finished step."""

    stamps: list[Stamp]
    owners: list[int]
    fields: dict[str, Any]
    instrumented: bool
    logged: dict[str, Any] = field(default_factory=dict)
    exchanged: list[Exchange] = field(default_factory=list)
    read: list[float] | None = None  # milliseconds between neighbouring stamps, once the device passed them
    perturbed: bool = False  # a profiler session was open
    trace: Any = None

    def read_stamps(self, clock: Clock) -> list[float]:
        """Milliseconds between the marks; and when its exchanges began and ended."""
        self.read = clock.read(self.stamps)
        for exchange in self.exchanged:
            exchange.read_stamps(clock, self.stamps[0])
        return self.read


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
    table[COLLECTIVES:BUBBLES], table[BUBBLES:] = COMMUNICATION, IDLE
    units = np.where((codes - UNITS) % 2 == 0, FORWARD, BACKWARD)
    return np.where(codes < UNITS, table[np.minimum(codes, UNITS - 1)], units)


def tile(spans: Sequence[Sequence[float]], owners: Sequence[list[int]], is_layer: NDArray[np.bool_]) -> Tiles:
    """Charge each interval of many steps to its owner, all at once: a background thread must not be busy.

    `spans`: milliseconds between the marks of each step. Units that are no layer pass their time to whoever
    ran before them.
    """
    count = len(owners)
    span = np.array([interval for step in spans for interval in step], dtype=np.float64) * 1e-3
    step = np.repeat(np.arange(count), [len(step) for step in owners])
    walls = np.bincount(step, weights=span, minlength=count).astype(np.float64)
    begins = np.cumsum(span) - span - (np.cumsum(walls) - walls)[step]
    owner, called = _charged([code for step in owners for code in step], step, is_layer)
    codes, inverse = np.unique(owner, return_inverse=True)
    shape = (count, len(codes))
    keys = step * len(codes) + inverse
    starts = np.zeros(shape)
    starts.ravel()[keys[::-1]] = begins[::-1]  # the first start of each owner is written last

    def sums(keys: NDArray[np.int64], columns: int) -> NDArray[np.float64]:
        flat = np.bincount(keys, weights=span, minlength=count * columns)
        return np.asarray(flat, dtype=np.float64).reshape(count, columns)

    return Tiles(
        walls=walls,
        accounts=sums(step * len(ACCOUNTS) + account_of(owner), len(ACCOUNTS)),
        codes=codes,
        seconds=sums(keys, len(codes)),
        starts=starts,
        calls=np.bincount(keys[called], minlength=shape[0] * shape[1]).reshape(shape),
    )


def resolved(owners: Sequence[int], is_layer: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Who the time after each mark of a step goes to, as `tile` sees it."""
    return _charged(owners, np.zeros(len(owners), dtype=np.int64), is_layer)[0]


def _charged(
    owners: Sequence[int], step: NDArray[np.int64], is_layer: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Who the time after each mark goes to, and which marks are calls of that owner."""
    owner = np.array(owners, dtype=np.int64)
    called = (owner & RETURN) == 0
    owner &= ~RETURN
    if len(is_layer):
        _pass_on(owner, called, is_layer)
    # What runs before a network's first layer goes to that layer; to nobody if no layer follows.
    for index in np.flatnonzero(owner == INPUT):
        later = owner[index + 1 :][step[index + 1 :] == step[index]]
        ends = np.flatnonzero((later == LOSS) | (later == BACKWARD) | (later == HOST))
        layers = np.flatnonzero((later >= UNITS) & ((later - UNITS) % 2 == 0))
        follows = len(layers) > 0 and (len(ends) == 0 or layers[0] < ends[0])
        owner[index] = later[layers[0]] if follows else FORWARD
    return owner, called


def _pass_on(owner: NDArray[np.int64], called: NDArray[np.bool_], is_layer: NDArray[np.bool_]) -> None:
    """A mark of a unit that is no layer repeats the mark before it. A step's first mark is never a unit's."""
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
