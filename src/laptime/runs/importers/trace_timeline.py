"""A trace's time, charged moment by moment: on a device to what runs there, on a CPU to the host's owner.

On a device a moment belongs to the computation that runs in it; copies, work whose launch is not in the trace
and communication count only where nothing before them in this order runs. Owners that compute side by side
share the time. While nothing runs, the moment belongs to the owner of the next kernel once that was asked
for, and to whose turn it is on the host until then. A step's time on the device begins when all that was
asked for before is done. Communication alone does not hold a step's end up once the next step computes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

from laptime.model import COMPUTE
from laptime.model.intervals import union
from laptime.runs.importers.host_turns import Turns
from laptime.runs.importers.owners import COMMUNICATION, NOBODY, Owner
from laptime.runs.importers.trace_events import Event

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel, copy or operator: whose it is, when the host asked for it, when it ran."""

    owner: Owner
    asked: float  # -inf: before the trace began
    event: Event

    @property
    def communicates(self) -> bool:
        return self.event.communicates


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time and whose it is; not busy where its owner waits."""

    start: float
    end: float
    owner: Owner
    busy: bool


class _Rank(IntEnum):
    """Of what runs side by side, the lowest has the time."""

    COMPUTE = 0
    OTHER = 1
    UNOWNED = 2
    COMMUNICATION = 3


class TraceTimeline:
    """The segments of a trace, in order and without gaps, and where its steps begin on it."""

    def __init__(self, segments: Iterable[Segment], pieces: Sequence[Piece] = ()) -> None:
        self._segments = list(segments)
        self._ends = [segment.end for segment in self._segments]
        work = [piece for piece in pieces if not piece.communicates]
        exchange = [piece for piece in pieces if piece.communicates]
        self._work, self._exchange = _Done(work), _Done(exchange)
        self._asked = [piece.asked for piece in work]
        starts = [piece.event.start for piece in reversed(work)]
        self._next_start = [*accumulate(starts, min)][::-1]

    def moment(self, host: float) -> float:
        """When the device had done what the host had asked for by a moment; that moment if nothing was left.

        Communication is waited for only until something else asked for later runs.
        """
        later = bisect_left(self._asked, host)
        following = self._next_start[later] if later < len(self._next_start) else math.inf
        return max(host, self._work.by(host), min(self._exchange.by(host), following))

    def between(self, begin: float, end: float) -> Iterator[Segment]:
        """The segments of a stretch, cut where it begins and ends."""
        for place in range(bisect_right(self._ends, begin), len(self._segments)):
            segment = self._segments[place]
            if segment.start >= end:
                return
            yield Segment(max(segment.start, begin), min(segment.end, end), segment.owner, segment.busy)


class _Done:
    """When everything that was asked for before some moment was done."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._asked = [piece.asked for piece in pieces]
        self._ends = list(accumulate((piece.event.end for piece in pieces), max))

    def by(self, host: float) -> float:
        before = bisect_left(self._asked, host)
        return self._ends[before - 1] if before else -math.inf


def host_timeline(pieces: Sequence[Piece], turns: Turns, extent: Interval) -> TraceTimeline:
    """A CPU's time: a moment is its turn's, busy where an operator runs."""
    return TraceTimeline(_host_segments(pieces, turns, extent))


def _host_segments(pieces: Sequence[Piece], turns: Turns, extent: Interval) -> Iterator[Segment]:
    at = extent[0]
    for start, end in union((piece.event.start, piece.event.end) for piece in pieces):
        yield from _by_turns(turns, at, start, busy=False)
        yield from _by_turns(turns, start, end, busy=True)
        at = end
    yield from _by_turns(turns, at, extent[1], busy=False)


def device_timeline(pieces: Sequence[Piece], turns: Turns, extent: Interval) -> TraceTimeline:
    """A device's time, from pieces in the order they were asked for."""
    return TraceTimeline(_device_segments(pieces, turns, extent), pieces)


def _device_segments(pieces: Sequence[Piece], turns: Turns, extent: Interval) -> Iterator[Segment]:
    work = sorted((piece for piece in pieces if not piece.communicates), key=lambda piece: piece.event.start)
    starts = [piece.event.start for piece in work]
    at = extent[0]
    for start, end, owners in _running(pieces):
        if start > at:
            place = bisect_left(starts, start)
            yield from _waiting(turns, at, start, work[place] if place < len(work) else None)
        share = (end - start) / len(owners)
        for place, owner in enumerate(owners):
            yield Segment(start + place * share, start + (place + 1) * share, owner, True)
        at = end
    yield from _by_turns(turns, at, extent[1], busy=False)


def _running(pieces: Iterable[Piece]) -> Iterator[tuple[float, float, list[Owner]]]:
    """Stretches in which something runs, in order, and who has the time of each."""
    moments: list[tuple[float, int, _Rank, Owner]] = []
    for piece in pieces:
        if piece.event.end > piece.event.start:
            rank, owner = _ranked(piece)
            moments += [(piece.event.start, 1, rank, owner), (piece.event.end, -1, rank, owner)]
    moments.sort(key=lambda moment: moment[0])
    running: dict[_Rank, Counter[Owner]] = {rank: Counter() for rank in _Rank}
    for (start, change, rank, owner), (end, *_) in pairwise(moments):
        running[rank][owner] += change
        if not running[rank][owner]:
            del running[rank][owner]
        first = next((owners for owners in running.values() if owners), None)
        if first is not None and end > start:
            yield start, end, list(first)


def _ranked(piece: Piece) -> tuple[_Rank, Owner]:
    if piece.communicates:
        return _Rank.COMMUNICATION, COMMUNICATION
    if piece.owner == NOBODY:
        return _Rank.UNOWNED, NOBODY
    return (_Rank.COMPUTE if piece.owner.account in COMPUTE else _Rank.OTHER), piece.owner


def _waiting(turns: Turns, start: float, end: float, following: Piece | None) -> Iterator[Segment]:
    """Time in which nothing runs, before the kernel that follows."""
    asked = end
    if following is not None and following.owner != NOBODY:
        asked = min(max(following.asked, start), end)
    yield from _by_turns(turns, start, asked, busy=False)
    if following is not None and asked < end:
        yield Segment(asked, end, following.owner, False)


def _by_turns(turns: Turns, start: float, end: float, *, busy: bool) -> Iterator[Segment]:
    if end > start:
        for (first, owner), (last, _) in pairwise([*turns.between(start, end), (end, NOBODY)]):
            yield Segment(first, last, owner, busy)
