"""Steps and layers from traces that torch.profiler saved: ours or anyone's.

What no range, module or operator claims is `unexplained`. Inside a layer's time its kernels (on a CPU the
operators) are busy, the rest is idle; `timeline` says which moment is whose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from laptime.errors import DataError
from laptime.files.text import one_line
from laptime.model import COMPUTE, Account, LayerTime, Phase, Stage, Step
from laptime.model.layers import OTHER_LAYER
from laptime.runs.importers import trace_names
from laptime.runs.importers.host_turns import Turns
from laptime.runs.importers.imported import Collected
from laptime.runs.importers.other_threads import OtherThreads
from laptime.runs.importers.owners import NOBODY, Owner
from laptime.runs.importers.source import ChromeTrace
from laptime.runs.importers.trace_events import Event, Trace, by_thread, outermost, read_trace
from laptime.runs.importers.trace_timeline import Piece, device_timeline, host_timeline

_S = 1e-6  # a trace counts microseconds
_PAUSE = 1000.0  # longer, and the device had nothing left to do
_PHASES = {Account.FORWARD: Phase.FORWARD, Account.LOSS: Phase.FORWARD, Account.BACKWARD: Phase.BACKWARD}
_WORDS = {
    "modules": "layers are the modules that the trace names (it was saved with stacks)",
    "ranges": "layers are the record_function ranges that the trace names",
    "operators": "the trace names no layers: operators stand for them; with_stack=True would name modules",
    "nothing": "the trace holds kernels only: no layer or phase is known; add ProfilerActivity.CPU",
}


@dataclass(slots=True)
class _Share:
    """What one owner had of a step, in microseconds."""

    begin: float
    busy: float = 0.0
    idle: float = 0.0


def read(files: Iterable[Path]) -> Collected:
    """Every step of the traces. A file's rank is what it says; files of one rank follow each other."""
    collected = Collected(source="kineto")
    numbers: dict[int, int] = defaultdict(lambda: -1)  # the last step of each rank
    for file in files:
        trace = read_trace(ChromeTrace(file))
        if trace.empty:
            raise DataError(
                f"{one_line(file)} holds no operators, ranges or kernels; trace with ProfilerActivity.CPU"
            )
        _Reader(trace, collected, numbers).read()
    _label(collected)
    return collected


class _Reader:
    """Adds the steps of one trace to what was collected."""

    def __init__(self, trace: Trace, found: Collected, numbers: dict[int, int]) -> None:
        self._trace, self._found, self._numbers = trace, found, numbers
        self._rank = trace.rank or 0
        self._turns = Turns(trace)
        self._others = OtherThreads(trace, self._turns.threads, self._turns.named)
        self._on_device = bool(trace.kernels)
        self._pieces = list(self._kernels() if self._on_device else self._operators())
        self._asked = [piece.asked for piece in self._pieces]
        self._windows = self._find_windows()
        extent = min(begin for _, begin, _ in self._windows), max(end for _, _, end in self._windows)
        timeline = device_timeline if self._on_device else host_timeline
        self._timeline = timeline(self._pieces, self._turns, extent)

    def read(self) -> None:
        collected, turns = self._found, self._turns
        collected.note(_WORDS[turns.named if self._trace.host_known else "nothing"])
        name = self._trace.device_name if self._on_device else None
        collected.device |= {"type": self._trace.device_type} | ({"name": name} if name else {})
        for number, begin, end in self._windows:
            number = max(number, self._numbers[self._rank] + 1)
            self._numbers[self._rank] = number
            self._step(number, begin, end)
        for layer, kind in turns.kinds.items():
            collected.know(layer, kind)
        if turns.named == "operators":
            for layer in dict.fromkeys(row.layer for row in collected.layers if "::" in row.layer):
                collected.know(layer, "operator")

    def _find_windows(self) -> list[tuple[int, float, float]]:
        """(number, begin, end) of each step; the whole trace is one where no step is named."""
        named = [(trace_names.STEP.match(event.name), event) for event in self._trace.ranges]
        steps = [(int(match[1]), event.start, event.end) for match, event in named if match]
        if steps:
            return steps
        self._found.note("no step is named (profiler.step() with a schedule does): the trace is one step")
        trace = self._trace
        every = [*trace.operators, *trace.ranges, *trace.modules, *trace.kernels, *trace.launches.values()]
        return [(0, min(event.start for event in every), max(event.end for event in every))]

    # -- pieces ------------------------------------------------------------------------------------

    def _operators(self) -> Iterator[Piece]:
        """Outermost operators, in order; on a CPU they are what is busy."""
        tops = []
        for thread, events in by_thread(self._trace.operators).items():
            if thread in self._turns.threads:
                tops += list(outermost(events))
        for event in sorted(tops, key=lambda event: event.start):
            yield Piece(self._turns.at(event.start), event.start, event)

    def _kernels(self) -> Iterator[Piece]:
        """What the device ran, in the order it was asked for. A kernel belongs to whom launched it."""
        pieces = [
            Piece(self._launcher(kernel, launch), min(launch.start, kernel.start), kernel)
            for kernel in self._trace.kernels
            if (launch := self._trace.launches.get(kernel.number)) is not None
        ]
        return iter(sorted([*pieces, *self._unlaunched(pieces)], key=lambda piece: piece.asked))

    def _launcher(self, kernel: Event, launch: Event) -> Owner:
        if launch.thread in self._turns.threads:
            return self._turns.at(launch.start)
        return self._others.owner(kernel, launch)

    def _unlaunched(self, launched: Sequence[Piece]) -> Iterator[Piece]:
        """Kernels whose launch is not in the trace: asked for before it began, or nobody knows when."""
        first: dict[int, Piece] = {}  # of each stream, in the order they ran
        for piece in sorted(launched, key=lambda piece: piece.event.start):
            first.setdefault(piece.event.stream, piece)
        of_all = next(iter(first.values()), None)
        begin = reached = self._trace.begin
        for kernel in self._trace.kernels:
            if kernel.number in self._trace.launches:
                continue
            following = first.get(kernel.stream, of_all)
            before = following is not None and _was_waiting(kernel, begin, reached, following)
            if before:
                reached = max(reached, kernel.end)
            yield Piece(NOBODY, -inf if before else kernel.start, kernel)

    # -- a step ------------------------------------------------------------------------------------

    def _step(self, number: int, begin: float, end: float) -> None:
        origin, finish = self._timeline.moment(begin), self._timeline.moment(end)
        shares: dict[Owner, _Share] = {}
        for segment in self._timeline.between(origin, finish):
            share = shares.setdefault(segment.owner, _Share(begin=segment.start))
            if segment.busy:
                share.busy += segment.end - segment.start
            else:
                share.idle += segment.end - segment.start
        seconds: dict[Account, float] = defaultdict(float, {Account.IDLE: 0.0})
        for owner, share in shares.items():
            if owner.account in COMPUTE:
                seconds[owner.account] += share.busy * _S
                seconds[Account.IDLE] += share.idle * _S
            elif owner == NOBODY and not self._trace.host_known:
                seconds[Account.IDLE] += share.idle * _S
            elif owner.account is not Account.UNEXPLAINED:
                seconds[owner.account] += (share.busy + share.idle) * _S
        step = Step.closed(
            step=number,
            optimizer_step=number,
            rank=self._rank,
            device=self._trace.device_type,
            stage=Stage.TRAIN,
            start_s=origin * _S,
            wall_s=(finish - origin) * _S,
            seconds=seconds,
            instrumented=True,
        )
        self._found.steps.append(step)
        if not any(owner.account is Account.BACKWARD for owner in shares):
            self._found.note("some steps hold no backward pass: inference, validation, or a part of a step")
        self._layer_rows(number, shares, self._turns.calls(begin, end))
        self._kernel_rows(
            number, self._pieces[bisect_left(self._asked, begin) : bisect_left(self._asked, end)]
        )

    def _layer_rows(self, number: int, shares: dict[Owner, _Share], calls: Counter[Owner]) -> None:
        for owner, share in shares.items():
            phase = Phase.UPDATE if owner.account is Account.UPDATE else _PHASES.get(owner.account)
            if phase is None:
                continue
            self._found.layers.append(
                LayerTime(
                    step=number,
                    rank=self._rank,
                    layer=owner.layer or OTHER_LAYER,
                    phase=phase,
                    start_s=share.begin * _S,
                    seconds=(share.busy + share.idle) * _S,
                    calls=max(1, calls[owner]) if owner.account is Account.FORWARD else 1,
                    busy_s=share.busy * _S,
                    idle_s=share.idle * _S,
                )
            )

    def _kernel_rows(self, number: int, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            event = piece.event
            self._found.add_kernel(
                step=number,
                rank=self._rank,
                layer=piece.owner.layer or OTHER_LAYER,
                phase=piece.owner.account.value,
                kind=event.kind or "operator",
                name=event.name.removeprefix(trace_names.EVALUATE + ": "),
                stream=event.stream if self._on_device else 0,
                start_s=event.start * _S,
                seconds=(event.end - event.start) * _S,
            )


def _was_waiting(kernel: Event, begin: float, reached: float, following: Piece) -> bool:
    """Whether a kernel was in the device's queue when the trace began, `reached` being where that got to.

    A stream keeps order: such a kernel runs before the first launched one. It runs without a pause after the
    others, or it starts so long after that one's launch that the device was behind by more than the trace
    was old.
    """
    if kernel.start >= following.event.start:
        return False
    behind = kernel.start - following.asked
    return kernel.start <= reached + _PAUSE or behind >= following.asked - begin


def _label(found: Collected) -> None:
    """Notes for readers of these tables."""
    found.note("all steps were traced: their times include the profiler's own cost")
    if any(row.phase is Phase.UPDATE for row in found.layers):
        found.note("a trace does not say whose parameters an update changes: it is charged to (other)")
