"""Finished steps: their stamps are read, their rows are written, and the summary of the run adds them up.

The training thread reads stamps, since only it can do so cheaply; a background thread does the rest.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from laptime.model import Account, Stage, summarize
from laptime.model.exchanges import Bucket, Collective, RankExchanges
from laptime.model.layers import union
from laptime.recorder.backends import Clock
from laptime.recorder.breakdown import Breakdown, ClosedSteps
from laptime.recorder.budget import Budget
from laptime.recorder.guard import warn
from laptime.recorder.kernel_trace import StepTrace, slowdown_after
from laptime.recorder.timeline import CODE, UNITS, Exchange, RawStep, StepEvidence
from laptime.runs import Run, RunWriter
from laptime.runs.select import RunTables, SelectedSteps
from laptime.runs.table_reader import KEY

FLUSH_S = 2.0  # well inside the contract's 5 s, so that a slow disk still keeps it
LOOK_S = 0.25
ENOUGH = 64  # steps that make a breakdown worthwhile
BATCH = 256  # steps broken down at once
MOST_PENDING = 4096  # finished steps waiting for their breakdown; beyond this the training thread helps
NEAR = 200  # marked steps on each side of a traced one that it is compared with


@dataclass(slots=True)
class Exchanges:
    """What this process has exchanged in collectives of one kind, or in one bucket of gradients."""

    calls: int = 0
    bytes: int = 0
    wire_bytes: float = 0.0
    seconds: float = 0.0
    exposed_s: float = 0.0

    def count(self, exchange: Exchange) -> None:
        self.calls += 1
        self.bytes += exchange.bytes
        self.wire_bytes += exchange.wire_bytes


@dataclass(slots=True)
class Facts:
    """Running counts of a recording; their size does not depend on the number of steps."""

    steps: Counter[str] = field(default_factory=Counter)
    instrumented: int = 0
    optimizer_steps: int = 0
    without_backward: int = 0
    without_forward: int = 0
    wall_s: float = 0.0
    host_s: float = 0.0
    unexplained_s: float = 0.0
    instrument_s: float = 0.0
    background_s: float = 0.0  # processor time of the thread that writes
    compute_s: float = 0.0
    named_s: float = 0.0
    traced: list[int] = field(default_factory=list)
    dropped_traces: int = 0
    trace_began: int | None = None  # the warm-up step of the first profiler session
    trace_ended: int = 0  # the step that follows the last session
    activation_bytes: dict[int, int] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)
    disturbed: list[int] = field(default_factory=list)  # untraced steps that a trace's start or end slowed
    notes: list[str] = field(default_factory=list)
    exchanges: defaultdict[str, Exchanges] = field(default_factory=partial(defaultdict, Exchanges))
    buckets: defaultdict[int, Exchanges] = field(default_factory=partial(defaultdict, Exchanges))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def count(self, evidence: StepEvidence, stage: Stage) -> None:
        if stage is Stage.TRAIN:
            self.without_backward += not evidence.backward
            self.without_forward += evidence.backward and not evidence.forward
            self.optimizer_steps += evidence.update

    def take(self, closed: ClosedSteps) -> None:
        self.wall_s += float(closed.walls.sum())
        self.unexplained_s += float(closed.accounts[:, CODE[Account.UNEXPLAINED]].sum())
        self.instrument_s += float(closed.accounts[:, CODE[Account.INSTRUMENT]].sum())
        self.compute_s += closed.compute_s
        self.named_s += closed.named_s
        for kind, exposed_s in closed.exposed_s.items():
            self.exchanges[kind].exposed_s += exposed_s
        for raw in closed.raws:
            step = raw.fields["step"]
            self.steps[raw.fields["stage"]] += 1
            self.instrumented += raw.instrumented
            if raw.fields["stage"] is Stage.TRAIN:
                self._exchanges(raw.exchanged)
            if raw.trace is not None:
                self.traced.append(step)
                self._memory(raw.trace)
            elif raw.perturbed:
                self.disturbed.append(step)

    def _exchanges(self, exchanged: Sequence[Exchange]) -> None:
        """Those of a step. Several of a kind may be under way at once: that time is counted once."""
        spans: dict[str, list[tuple[float, float]]] = {}
        for each in exchanged:
            self.exchanges[each.kind].count(each)
            if each.span is not None:
                spans.setdefault(each.kind, []).append(each.span)
            if each.bucket is not None:
                bucket = self.buckets[each.bucket]
                bucket.count(each)
                bucket.seconds += each.span[1] - each.span[0] if each.span else 0.0
                bucket.exposed_s += each.exposed_s
        for kind, every in spans.items():
            self.exchanges[kind].seconds += sum(end - begin for begin, end in union(every))

    def exchanged(self, bucket_layers: Mapping[int, tuple[str, ...]]) -> RankExchanges:
        """All of it, over the training steps so far."""
        buckets = [(bucket, asdict(each)) for bucket, each in sorted(self.buckets.items())]
        return RankExchanges(
            steps=self.steps[Stage.TRAIN],
            collectives=tuple(
                Collective(kind=kind, **asdict(each)) for kind, each in sorted(self.exchanges.items())
            ),
            buckets=tuple(
                Bucket(
                    bucket=bucket,
                    layers=bucket_layers.get(bucket, ()),
                    **{name: value for name, value in each.items() if name != "wire_bytes"},
                )
                for bucket, each in buckets
            ),
        )

    def _memory(self, trace: StepTrace) -> None:
        for code, kept in trace.kept_bytes.items():
            if code >= UNITS and (code - UNITS) % 2 == 0:
                self.activation_bytes[(code - UNITS) // 2] = max(0, kept)
        for code, peak in trace.peak_bytes.items():
            if code >= UNITS:
                unit = (code - UNITS) // 2
                self.peak_bytes[unit] = max(self.peak_bytes.get(unit, 0), peak)


class FinishedSteps:
    """Takes finished steps and writes them to disk."""

    def __init__(
        self,
        clock: Clock,
        breakdown: Breakdown,
        facts: Facts,
        budget: Budget,
        writer: RunWriter,
        *,
        flush_s: float,
    ) -> None:
        self._clock = clock
        self._breakdown = breakdown
        self._facts = facts
        self._budget = budget
        self._writer = writer
        self._flush_s = flush_s
        self._unread: deque[RawStep] = deque()  # the device may not have passed their last stamp
        self._pending: deque[RawStep] = deque()  # to be broken down
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._updates = 0
        self._end = threading.Event()
        self._background = threading.Thread(target=self._work, name="laptime-writer", daemon=True)

    def start(self) -> None:
        """Write from here on, in a thread of its own."""
        self._background.start()

    def take(self, raw: RawStep) -> None:
        """Pass a finished step on, and read the stamps of those that the device has finished meanwhile.

        Read here and not in the background: with the driver and Python's lock to share, one event takes the
        background thread eight times as long, and the training thread waits for it.
        """
        if self._writer.foreign:  # a fork of the process that records has no background thread
            return
        if self._clock.deferred and raw.read is None:
            self._unread.append(raw)
            self._read_stamps(most=2)
        else:
            self._pending.append(raw)
        if len(self._pending) > MOST_PENDING:
            self._settle()

    def flush(self, *, wait: bool = False) -> None:
        """Write what is known now; with `wait`, once the device has passed every step that has ended."""
        if self._writer.foreign:
            return
        if wait and self._unread:
            self._clock.wait(self._unread[-1].stamps[-1])
        self._read_stamps()
        self._settle()
        self._writer.flush()

    def finish(self) -> None:
        """Wait for the device, break all steps down, write all rows, end the thread."""
        self._end.set()
        self._background.join()
        self.flush(wait=True)
        if self._failure is not None:
            self._facts.note(self._failure)
            warn(self._failure)

    def _read_stamps(self, *, most: int | None = None) -> None:
        while self._unread and most != 0 and self._clock.ready(self._unread[0].stamps[-1]):
            raw = self._unread.popleft()
            raw.read_stamps(self._clock)
            self._clock.recycle(raw.stamps[:-1])  # the last stamp is the first of the next step
            raw.stamps = []
            self._pending.append(raw)
            most = None if most is None else most - 1

    def _work(self) -> None:
        flushed = time.monotonic()
        try:
            while not self._end.wait(LOOK_S):
                due = time.monotonic() - flushed >= self._flush_s
                # Breaking down one step costs nearly as much as many, so steps are batched.
                if due or len(self._pending) >= ENOUGH:
                    self._settle()
                if due:
                    self._writer.flush(patient=True)
                    flushed = time.monotonic()
            self._facts.background_s = time.thread_time()
        except Exception as error:  # the training thread goes on, and writes what there is at the end
            reason = f"{type(error).__name__}: {error}"
            self._failure = f"rows were written only at the end ({reason}); please report this"

    def _settle(self) -> None:
        """Break down the steps that have been read. An internal error must not end the training."""
        with self._lock:
            while self._pending:
                raws = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH))]
                try:
                    self._enter(self._breakdown.close(raws))
                except Exception as error:
                    steps = f"steps {raws[0].fields['step']} to {raws[-1].fields['step']}"
                    reason = f"{type(error).__name__}: {error}"
                    self._failure = f"{steps} could not be recorded ({reason}); please report this"

    def _enter(self, closed: ClosedSteps) -> None:
        self._facts.take(closed)
        for raw, wall_s in zip(closed.raws, closed.walls.tolist(), strict=True):
            fields = raw.fields
            if fields["stage"] is Stage.TRAIN and fields["step"] > 0 and not raw.perturbed:
                kind = (fields["samples"], fields["optimizer_step"] > self._updates)
                self._budget.observe(wall_s, marks=len(raw.owners), instrumented=raw.instrumented, kind=kind)
            self._updates = fields["optimizer_step"]
        for name, table in closed.tables.items():
            if table is not None:
                self._writer.append(name, table)


# -- the summary of a run ------------------------------------------------------------------------------------


def summarize_run(facts: Facts, budget: Budget, run: Run) -> dict[str, Any]:
    """The `summary` of run.json: shares, overhead, labels, and whether layers and kernels agree."""
    overhead = budget.overhead()
    # The steps that count, as every view of the run has them, from the columns that say which: a run of days
    # has a million. It does not know yet which a trace disturbed.
    columns = (*KEY, "instrumented", "idle_s", "bubble_fill_s", "wall_s")
    tables = RunTables(run.stored("steps"), run.stored("layers"), columns=columns)
    counted = tables.select(Stage.TRAIN, skip=1, instrumented=None, disturbed=facts.disturbed)
    kernels = None
    if facts.traced or facts.dropped_traces:
        kernels = {
            "steps": facts.traced,
            "disturbed": facts.disturbed,
            "dropped": facts.dropped_traces,
            "detach": _detach(facts, counted),
            "reconciliation": _reconcile(run, facts.traced),
        }
    return {
        "steps": dict(facts.steps),
        "instrumented_steps": facts.instrumented,
        "optimizer_steps": facts.optimizer_steps,
        "wall_s": facts.wall_s,
        "step_s": asdict(summarize(counted["wall_s"])),
        "host_clock_ratio": facts.wall_s / facts.host_s if facts.host_s else None,
        "unexplained_share": facts.unexplained_s / facts.wall_s if facts.wall_s else None,
        "named_share": facts.named_s / facts.compute_s if facts.compute_s else None,
        "instrument_share": facts.instrument_s / facts.wall_s if facts.wall_s else None,
        "background_share": facts.background_s / facts.wall_s if facts.wall_s else None,
        "overhead": asdict(overhead) if overhead else None,
        "budget": {
            "budget": budget.budget,
            "share": budget.share,
            "every_step": budget.every_step,
            **budget.paid(),
        },
        "kernels": kernels,
        "notes": _notes(facts, run),
    }


def _detach(facts: Facts, counted: SelectedSteps) -> dict[str, Any] | None:
    """Whether the traces slowed what came after them, by the steps of this attempt and rank."""
    if facts.trace_began is None or not len(counted):
        return None
    mine = (counted["rank"] == 0) & (counted["attempt"] == counted["attempt"].max())
    steps, walls, marked = (counted[name][mine] for name in ("step", "wall_s", "instrumented"))
    return slowdown_after(steps, walls, marked, began=facts.trace_began, ended=facts.trace_ended)


def _reconcile(run: Run, traced: Sequence[int]) -> dict[str, Any] | None:
    """How far the layer tier and the kernel tier are apart, weighted by time; of marked steps nearby.

    `spans_apart`: layer seconds of marked steps against the same spans while traced (what tracing perturbs).
    `busy_apart`: layer seconds against the kernels' own time (what is idle inside the spans).
    """
    if not traced:
        return None
    near = range(max(1, min(traced) - NEAR), max(traced) + NEAR)
    columns = ["stage", "step", "layer", "phase", "seconds", "busy_s"]
    rows = run.stored("layers").read(columns, steps=near).to_pylist()

    def medians(column: str, *, traced: bool) -> dict[tuple[str, str], float]:
        values: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in rows:
            if row["stage"] == Stage.TRAIN and row["step"] in near and (row["busy_s"] is not None) == traced:
                values[row["layer"], row["phase"]].append(row[column])
        return {key: statistics.median(seconds) for key, seconds in values.items()}

    spans, busy = medians("seconds", traced=True), medians("busy_s", traced=True)
    marked = {key: seconds for key, seconds in medians("seconds", traced=False).items() if key in spans}
    total = sum(marked.values())
    if not total:
        return None
    return {
        "spans_apart": sum(abs(seconds - spans[key]) for key, seconds in marked.items()) / total,
        "busy_apart": sum(abs(seconds - busy[key]) for key, seconds in marked.items()) / total,
        "busy_share": sum(busy[key] for key in marked) / total,
    }


def _notes(facts: Facts, run: Run) -> list[str]:
    labels = list(facts.notes)
    trained = facts.steps.get(Stage.TRAIN, 0)
    if facts.without_backward:
        labels.append(f"{facts.without_backward} of {trained} training steps had no backward pass")
    if facts.without_forward:
        labels.append(
            f"{facts.without_forward} of {trained} training steps ran backward without a call of the network"
            ": record() takes the module that the loop calls (the compiled or wrapped one)"
        )
    if trained and not facts.optimizer_steps:
        labels.append("no recorded optimizer made a step: pass it to record() to have updates charged")
    compiled = [layer.name for layer in run.network if layer.compiled]
    if compiled:
        labels.append(f"compiled by torch.compile, so charged as one unit each: {', '.join(compiled)}")
    return labels
