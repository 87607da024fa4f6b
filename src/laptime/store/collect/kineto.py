"""Steps and layers from traces that torch.profiler saved: ours or anyone's.

A span begins when the host has entered it *and* the device has done all that was asked before, so spans tile
the step on one timeline, and what no range, module or operator claims is `unexplained`. Inside a span the
kernels (on a CPU the operators) are busy time, the rest is idle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from laptime.errors import DataError
from laptime.record import COMPUTE, Account, LayerTime, Phase, Stage, Step
from laptime.record.intervals import union
from laptime.record.layers import OTHER_UNIT
from laptime.store.collect.collected import Collected
from laptime.store.collect.events import EVALUATE, STEP, Event, Trace, by_thread, outermost, read_trace
from laptime.store.collect.source import ChromeTrace
from laptime.store.collect.turns import NOBODY, Owner, Turns
from laptime.store.files import one_line

_S = 1e-6  # a trace counts microseconds
_PHASES = {Account.FORWARD: Phase.FORWARD, Account.LOSS: Phase.FORWARD, Account.BACKWARD: Phase.BACKWARD}
_WORDS = {
    "modules": "layers are the modules that the trace names (it was saved with stacks)",
    "ranges": "layers are the record_function ranges that the trace names",
    "operators": "the trace names no layers: operators stand for them; with_stack=True would name modules",
}
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel, copy or operator: whose it is, when the host asked for it, when it ran."""

    owner: Owner
    asked: float
    event: Event


@dataclass(slots=True)
class _Share:
    """What one owner had of a step, in microseconds."""

    begin: float
    span: float = 0.0
    busy: float = 0.0
    exposed: float = 0.0  # communication with nothing else on the device
    calls: int = 0
    tiles: list[Interval] = field(default_factory=list)


def read(files: Sequence[Path]) -> Collected:
    """Every step of the traces. A file's rank is what it says; files of one rank follow each other."""
    found = Collected(source="kineto")
    numbers: dict[int, int] = defaultdict(lambda: -1)  # the last step of each rank
    for file in files:
        trace = read_trace(ChromeTrace(file))
        if trace.empty:
            raise DataError(
                f"{one_line(file)} holds no operators, ranges or kernels; trace with ProfilerActivity.CPU"
            )
        _Reader(trace, found, numbers).read()
    _label(found)
    return found


class _Reader:
    """One trace on its way into what was collected."""

    def __init__(self, trace: Trace, found: Collected, numbers: dict[int, int]) -> None:
        self._trace, self._found, self._numbers = trace, found, numbers
        self._rank = trace.rank or 0
        self._turns = Turns(trace)
        self._on_device = bool(trace.kernels)
        self._pieces = list(self._kernels() if self._on_device else self._operators())
        self._passed = _Passed(self._pieces)
        self._asked = [piece.asked for piece in self._pieces]

    def read(self) -> None:
        found, turns = self._found, self._turns
        found.note(_WORDS[turns.named])
        name = self._trace.device_name
        found.device |= {"type": "cuda" if self._on_device else "cpu"} | ({"name": name} if name else {})
        for number, begin, end in self._windows():
            number = max(number, self._numbers[self._rank] + 1)
            self._numbers[self._rank] = number
            self._step(number, begin, end)
        for layer, kind in turns.kinds.items():
            found.know(layer, kind)
        if turns.named == "operators":
            for layer in dict.fromkeys(row.layer for row in found.layers if "::" in row.layer):
                found.know(layer, "operator")

    def _windows(self) -> list[tuple[int, float, float]]:
        """(number, begin, end) of each step; the whole trace is one where no step is named."""
        named = [(STEP.match(one.name), one) for one in self._trace.ranges]
        steps = [(int(found[1]), one.start, one.end) for found, one in named if found]
        if steps:
            return steps
        self._found.note("no step is named (profiler.step() with a schedule does): the trace is one step")
        every = [*self._trace.operators, *self._trace.ranges, *self._trace.modules, *self._trace.kernels]
        return [(0, min(one.start for one in every), max(one.end for one in every))]

    # -- pieces ------------------------------------------------------------------------------------

    def _operators(self) -> Iterator[Piece]:
        """Outermost operators, in order; on a CPU they are what is busy."""
        tops = []
        for thread, events in by_thread(self._trace.operators).items():
            if thread in self._turns.threads:
                tops += list(outermost(events))
        for event in sorted(tops, key=lambda one: one.start):
            yield Piece(self._turns.at(event.start), event.start, event)

    def _kernels(self) -> Iterator[Piece]:
        """What the device ran, in the order it was asked for. A kernel belongs to whom launched it."""
        found = []
        for kernel in self._trace.kernels:
            launch = self._trace.launches.get(kernel.number)
            if launch is None:  # its launch is not in the trace; it counts from when it ran
                found.append(Piece(NOBODY, kernel.start, kernel))
            else:
                mine = launch.thread in self._turns.threads
                found.append(Piece(self._turns.at(launch.start) if mine else NOBODY, launch.start, kernel))
        return iter(sorted(found, key=lambda piece: piece.asked))

    # -- a step ------------------------------------------------------------------------------------

    def _step(self, number: int, begin: float, end: float) -> None:
        pieces = self._pieces[bisect_left(self._asked, begin) : bisect_left(self._asked, end)]
        shares = self._shares(begin, end, pieces)
        origin, wall = self._passed.at(begin), self._passed.at(end) - self._passed.at(begin)
        seconds: dict[Account, float] = defaultdict(float)
        idle = 0.0
        for owner, share in shares.items():
            rest = share.span - share.busy - share.exposed
            compute = owner.account in COMPUTE
            if owner is not NOBODY and owner.account is not Account.UNEXPLAINED:
                seconds[owner.account] += share.busy if compute else share.span - share.exposed
            seconds[Account.COMMUNICATION] += share.exposed
            idle += rest if compute else 0.0
        backward = any(owner.account is Account.BACKWARD for owner in shares)
        step = Step.closed(
            step=number,
            optimizer_step=number,
            rank=self._rank,
            device="cuda" if self._on_device else "cpu",
            stage=Stage.TRAIN,
            start_s=origin * _S,
            wall_s=wall * _S,
            seconds={account: value * _S for account, value in seconds.items()} | {Account.IDLE: idle * _S},
            instrumented=True,
        )
        self._found.steps.append(step)
        if not backward:
            self._found.note("some steps hold no backward pass: inference, validation, or a part of a step")
        self._rows(number, shares, pieces)

    def _shares(self, begin: float, end: float, pieces: Sequence[Piece]) -> dict[Owner, _Share]:
        """The step's time by owner: the spans tile it."""
        shares: dict[Owner, _Share] = {}
        turns = [*self._turns.between(begin, end), (end, NOBODY)]
        for (start, owner), (stop, _) in pairwise(turns):
            first, last = self._passed.at(start), self._passed.at(stop)
            share = shares.setdefault(owner, _Share(begin=first))
            share.span += last - first
            share.calls += 1
            share.tiles.append((first, last))
        running: dict[Owner, list[Interval]] = defaultdict(list)
        for piece in pieces:
            if not _communicates(piece.event):
                running[piece.owner].append((piece.event.start, piece.event.end))
        exposed = list(_exposed(pieces)) if self._on_device else []
        for owner, share in shares.items():
            busy = sum(last - first for first, last in union(running[owner]))
            share.busy = min(busy, share.span)
            share.exposed = min(_overlap(exposed, share.tiles), share.span - share.busy)
        return shares

    def _rows(self, number: int, shares: dict[Owner, _Share], pieces: Sequence[Piece]) -> None:
        for owner, share in shares.items():
            phase = Phase.UPDATE if owner.account is Account.UPDATE else _PHASES.get(owner.account)
            if phase is None:
                continue
            self._found.layers.append(
                LayerTime(
                    step=number,
                    rank=self._rank,
                    layer=owner.layer or OTHER_UNIT,
                    phase=phase,
                    start_s=share.begin * _S,
                    seconds=share.span * _S,
                    calls=share.calls if owner.account is Account.FORWARD else 1,
                    busy_s=share.busy * _S,
                    idle_s=(share.span - share.busy) * _S,
                )
            )
        for piece in pieces:
            event = piece.event
            self._found.add_kernel(
                step=number,
                rank=self._rank,
                layer=piece.owner.layer or OTHER_UNIT,
                phase=piece.owner.account.value,
                kind=event.kind or "operator",
                name=event.name.removeprefix(EVALUATE + ": "),
                stream=event.stream if self._on_device else 0,
                start_s=event.start * _S,
                seconds=(event.end - event.start) * _S,
            )


class _Passed:
    """When the device was done with everything that the host had asked for by some moment."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        ordered = [piece for piece in pieces if piece.event.kind]  # operators are done when they return
        self._asked = [piece.asked for piece in ordered]
        self._done = list(accumulate((piece.event.end for piece in ordered), max))

    def at(self, moment: float) -> float:
        """The moment itself if nothing was outstanding then."""
        before = bisect_left(self._asked, moment)
        return max(moment, self._done[before - 1]) if before else moment


def _communicates(event: Event) -> bool:
    return bool(event.kind) and "nccl" in event.name.lower()


def _exposed(pieces: Iterable[Piece]) -> Iterator[Interval]:
    """Communication kernels, less the time in which another kernel ran beside them."""
    every = list(pieces)
    mine = union((piece.event.start, piece.event.end) for piece in every if _communicates(piece.event))
    rest = [(piece.event.start, piece.event.end) for piece in every if not _communicates(piece.event)]
    other = list(union(rest))
    ends = [end for _, end in other]
    for start, end in mine:
        for first, last in other[bisect_right(ends, start) :]:
            if first >= end:
                break
            if first > start:
                yield start, first
            start = max(start, last)
        if start < end:
            yield start, end


def _overlap(ones: Sequence[Interval], others: Sequence[Interval]) -> float:
    """Length that two sorted lists of disjoint intervals have in common."""
    total, place = 0.0, 0
    for start, end in others:
        while place < len(ones) and ones[place][1] <= start:
            place += 1
        for first, last in ones[place:]:
            if first >= end:
                break
            total += min(end, last) - max(start, first)
    return total


def _label(found: Collected) -> None:
    """What everyone should know who reads these tables."""
    found.note("all steps were traced: their times include the profiler's own cost")
    if any(row.phase is Phase.UPDATE for row in found.layers):
        found.note("a trace does not say whose parameters an update changes: it is charged to (other)")
