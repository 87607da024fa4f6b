"""Steps and layers from traces that torch.profiler saved: ours or anyone's.

What no range, module or operator claims is `unexplained`. Inside a layer's time its kernels (on a CPU the
operators) are busy, the rest is idle; `trace_timeline` says which moment is whose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.files.text import one_line
from laptime.model import Account, Phase
from laptime.model.layers import OTHER_LAYER
from laptime.runs.importers.host_turns import Turns
from laptime.runs.importers.imported import Collected, Share
from laptime.runs.importers.source import ChromeTrace
from laptime.runs.importers.trace_events import (
    NOBODY,
    STEP,
    Event,
    Owner,
    Spans,
    Trace,
    by_thread,
    host_account,
    leaves,
    operator_account,
    outermost,
    read_trace,
)
from laptime.runs.importers.trace_timeline import Piece, TraceTimeline

_PAUSE = 1000.0  # longer, and the device had nothing left to do
_WORDS = {
    "modules": "layers are the modules that the trace names (it was saved with stacks)",
    "ranges": "layers are the record_function ranges that the trace names",
    "operators": "the trace names no layers: operators stand for them; with_stack=True would name modules",
    "nothing": "the trace holds kernels only: no layer or phase is known; add ProfilerActivity.CPU",
}


def read(files: Iterable[Path]) -> Collected:
    """Every step of the traces. A file's rank is what it says; files of one rank follow each other."""
    collected = Collected(source="kineto")
    numbers: dict[int, int] = defaultdict(lambda: -1)  # the last step of each rank
    for file in files:
        trace = read_trace(ChromeTrace(file))
        if not (trace.operators or trace.kernels or trace.ranges):
            raise DataError(
                f"{one_line(file)} holds no operators, ranges or kernels; trace with ProfilerActivity.CPU"
            )
        _Reader(trace, collected).read(numbers)
    collected.note("all steps were traced: their times include the profiler's own cost")
    if any(row.phase is Phase.UPDATE for row in collected.layers):
        collected.note("a trace does not say whose parameters an update changes: it is charged to (other)")
    return collected


class _Reader:
    """Adds the steps of one trace to what was collected."""

    def __init__(self, trace: Trace, collected: Collected) -> None:
        self._trace, self._collected = trace, collected
        self._rank = trace.rank or 0
        self._turns = Turns(trace)
        self._pieces = list(self._kernels() if trace.kernels else self._operators())
        self._asked = [piece.asked for piece in self._pieces]

    def read(self, numbers: dict[int, int]) -> None:
        """Every step; `numbers` are those of the last step by rank."""
        trace, collected, turns = self._trace, self._collected, self._turns
        windows = self._windows()
        collected.note(_WORDS[turns.named if trace.host_known else "nothing"])
        collected.device["type"] = trace.device_type
        if trace.kernels and trace.device_name:
            collected.device["name"] = trace.device_name
        extent = min(begin for _, begin, _ in windows), max(end for _, _, end in windows)
        timeline = TraceTimeline(self._pieces, turns, extent, on_device=bool(trace.kernels))
        for number, begin, end in windows:
            numbers[self._rank] = max(number, numbers[self._rank] + 1)
            self._step(numbers[self._rank], begin, end, timeline)
        for layer, kind in turns.kinds.items():
            collected.know(layer, kind)
        if turns.named == "operators":
            for row in collected.layers:
                if "::" in row.layer:
                    collected.know(row.layer, "operator")

    def _windows(self) -> list[tuple[int, float, float]]:
        """(number, begin, end) of each step; the whole trace is one where no step is named."""
        trace = self._trace
        named = [(STEP.match(event.name), event) for event in trace.ranges]
        steps = [(int(match[1]), event.start, event.end) for match, event in named if match]
        if steps:
            return steps
        self._collected.note("no step is named (profiler.step() with a schedule does): the trace is one step")
        every = [*trace.operators, *trace.ranges, *trace.modules, *trace.kernels, *trace.launches.values()]
        return [(0, min(event.start for event in every), max(event.end for event in every))]

    # -- pieces ------------------------------------------------------------------------------------

    def _operators(self) -> Iterator[Piece]:
        """Outermost operators, in order; on a CPU they are what is busy."""
        mine = (operator for operator in self._trace.operators if operator.thread in self._turns.threads)
        tops = [top for events in by_thread(mine).values() for top in outermost(events)]
        for event in sorted(tops, key=lambda event: event.start):
            yield Piece(self._turns.at(event.start), event.start, event)

    def _kernels(self) -> list[Piece]:
        """What the device ran, in the order it was asked for. A kernel belongs to whom launched it."""
        others = _OtherThreads(self._trace, self._turns)
        pieces = []
        for kernel in self._trace.kernels:
            launch = self._trace.launches.get(kernel.number)
            if launch is not None:
                mine = launch.thread in self._turns.threads
                owner = self._turns.at(launch.start) if mine else others.owner(kernel, launch)
                pieces.append(Piece(owner, min(launch.start, kernel.start), kernel))
        return sorted([*pieces, *self._unlaunched(pieces)], key=lambda piece: piece.asked)

    def _unlaunched(self, launched: Sequence[Piece]) -> Iterator[Piece]:
        """Kernels whose launch is not in the trace: asked for before it began, or nobody knows when.

        A stream keeps order: a kernel that was in the device's queue when the trace began runs before the
        first launched one. It runs without a pause after the others, or it starts so long after that one's
        launch that the device was behind by more than the trace was old.
        """
        first: dict[int, Piece] = {}  # of each stream, in the order they ran
        for piece in sorted(launched, key=lambda piece: piece.event.start):
            first.setdefault(piece.event.stream, piece)
        of_all = next(iter(first.values()), None)
        begin = reached = self._trace.begin
        for kernel in self._trace.kernels:
            if kernel.number in self._trace.launches:
                continue
            following = first.get(kernel.stream, of_all)
            waited = False
            if following is not None and kernel.start < following.event.start:
                behind = kernel.start - following.asked
                waited = kernel.start <= reached + _PAUSE or behind >= following.asked - begin
            if waited:
                reached = max(reached, kernel.end)
            yield Piece(NOBODY, -inf if waited else kernel.start, kernel)

    # -- a step ------------------------------------------------------------------------------------

    def _step(self, number: int, begin: float, end: float, timeline: TraceTimeline) -> None:
        origin, finish = timeline.moment(begin), timeline.moment(end)
        shares: dict[Owner, Share] = {}
        for segment in timeline.between(origin, finish):
            owner = segment.owner
            if owner == NOBODY and not segment.busy and not self._trace.host_known:
                owner = Owner(Account.IDLE)
            share = shares.setdefault(owner, Share(begin=segment.start))
            if segment.busy:
                share.busy += segment.end - segment.start
            else:
                share.idle += segment.end - segment.start
        calls = self._turns.calls(begin, end)
        forward = {owner: calls[owner] for owner in calls if owner.account is Account.FORWARD}
        device = self._trace.device_type
        self._collected.add_step(number, self._rank, device, (origin, finish), shares, forward)
        if not any(owner.account is Account.BACKWARD for owner in shares):
            self._collected.note(
                "some steps hold no backward pass: inference, validation, or a part of a step"
            )
        for piece in self._pieces[bisect_left(self._asked, begin) : bisect_left(self._asked, end)]:
            event = piece.event
            self._collected.add_kernel(number, self._rank, piece.owner, event, event.kind or "operator")


class _OtherThreads:
    """Owners of kernels launched by other threads than the loop's and autograd's: replicas, servers.

    A launch is of the operator around it on its thread, and of the layer that the range there names.
    Where neither is around it, a kernel is forward if the trace holds no backward pass, and unexplained else.
    """

    def __init__(self, trace: Trace, turns: Turns) -> None:
        self._named = turns.named
        inference = trace.host_known and not any(operator.node for operator in trace.operators)
        self._unnamed = Owner(Account.FORWARD, OTHER_LAYER) if inference else NOBODY
        operators = by_thread(event for event in trace.operators if event.thread not in turns.threads)
        ranges = by_thread(event for event in trace.ranges if event.thread not in turns.threads)
        self._operators = {thread: Spans(outermost(events)) for thread, events in operators.items()}
        self._ranges = {thread: Spans(leaves(events)) for thread, events in ranges.items()}

    def owner(self, kernel: Event, launch: Event) -> Owner:
        """The owner of a kernel, by what its thread ran at launch; a copy outside operators is a copy."""
        operator, named = _during(self._operators, launch), _during(self._ranges, launch)
        account = None if named is None else host_account(named.name)
        if account is not None:
            return Owner(account)
        if operator is None and named is None:
            return Owner(Account.COPY) if kernel.kind == "copy" else self._unnamed
        account = operator_account(operator.name, False) if operator is not None else Account.FORWARD
        if account is not Account.FORWARD:
            return Owner(account)
        layer = OTHER_LAYER
        if self._named == "ranges" and named is not None:
            layer = named.name
        elif self._named == "operators" and operator is not None:
            layer = operator.name
        return Owner(account, layer)


def _during(spans: dict[Any, Spans], launch: Event) -> Event | None:
    event = spans[launch.thread].begun(launch.start) if launch.thread in spans else None
    return event if event is not None and launch.start < event.end else None
