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
from itertools import accumulate, pairwise

from laptime.model import COMPUTE, Account
from laptime.model.layers import union
from laptime.runs.importers.host_turns import Turns
from laptime.runs.importers.trace_events import NOBODY, Event, Owner

Interval = tuple[float, float]

_COMMUNICATION = Owner(Account.COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel, copy or operator: whose it is, when the host asked for it, when it ran."""

    owner: Owner
    asked: float  # -inf: before the trace began
    event: Event


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time and whose it is; not busy where its owner waits."""

    start: float
    end: float
    owner: Owner
    busy: bool


class TraceTimeline:
    """The segments of a trace, in order and without gaps, and where its steps begin on it.

    `pieces` are in the order they were asked for; with `on_device` a device ran them, else the host did.
    """

    def __init__(self, pieces: Sequence[Piece], turns: Turns, extent: Interval, *, on_device: bool) -> None:
        segments = _device_segments if on_device else _host_segments
        self._segments = list(segments(pieces, turns, extent))
        self._ends = [segment.end for segment in self._segments]
        work = [piece for piece in pieces if on_device and not piece.event.communicates]
        self._work = _Done(work)
        self._exchange = _Done([piece for piece in pieces if on_device and piece.event.communicates])
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


def _host_segments(pieces: Iterable[Piece], turns: Turns, extent: Interval) -> Iterator[Segment]:
    """A CPU's time: a moment is its turn's, busy where an operator runs."""
    at = extent[0]
    for start, end in union((piece.event.start, piece.event.end) for piece in pieces):
        yield from _by_turns(turns, at, start, busy=False)
        yield from _by_turns(turns, start, end, busy=True)
        at = end
    yield from _by_turns(turns, at, extent[1], busy=False)


def _device_segments(pieces: Sequence[Piece], turns: Turns, extent: Interval) -> Iterator[Segment]:
    work = [piece for piece in pieces if not piece.event.communicates]
    work.sort(key=lambda piece: piece.event.start)
    starts = [piece.event.start for piece in work]
    at = extent[0]
    for start, end, owners in _running(pieces):
        if start > at:  # nothing runs before the kernel that follows
            place = bisect_left(starts, start)
            following = work[place] if place < len(work) else None
            asked = start
            if following is not None and following.owner != NOBODY:
                asked = min(max(following.asked, at), start)
            yield from _by_turns(turns, at, asked, busy=False)
            if following is not None and asked < start:
                yield Segment(asked, start, following.owner, False)
        share = (end - start) / len(owners)
        for place, owner in enumerate(owners):
            yield Segment(start + place * share, start + (place + 1) * share, owner, True)
        at = end
    yield from _by_turns(turns, at, extent[1], busy=False)


def _running(pieces: Iterable[Piece]) -> Iterator[tuple[float, float, list[Owner]]]:
    """Stretches in which something runs, in order, and who has the time of each."""
    moments: list[tuple[float, int, int, Owner]] = []
    for piece in pieces:
        if piece.event.end > piece.event.start:
            rank, owner = _ranked(piece)
            moments += [(piece.event.start, 1, rank, owner), (piece.event.end, -1, rank, owner)]
    moments.sort(key=lambda moment: moment[0])
    running: list[Counter[Owner]] = [Counter() for _ in range(4)]  # by rank
    for (start, change, rank, owner), (end, *_) in pairwise(moments):
        running[rank][owner] += change
        if not running[rank][owner]:
            del running[rank][owner]
        first = next((owners for owners in running if owners), None)
        if first is not None and end > start:
            yield start, end, list(first)


def _ranked(piece: Piece) -> tuple[int, Owner]:
    """The lowest rank has the time: computation, copies, what is nobody's, communication."""
    if piece.event.communicates:
        return 3, _COMMUNICATION
    if piece.owner == NOBODY:
        return 2, NOBODY
    return int(piece.owner.account not in COMPUTE), piece.owner


def _by_turns(turns: Turns, start: float, end: float, *, busy: bool) -> Iterator[Segment]:
    if end > start:
        for (first, owner), (last, _) in pairwise([*turns.between(start, end), (end, NOBODY)]):
            yield Segment(first, last, owner, busy)
