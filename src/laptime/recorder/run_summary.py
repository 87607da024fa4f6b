"""The summary of a run: shares, the recorder's overhead, labels, and whether layers and kernels agree."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from laptime.model import Account, Layer, Stage, summarize
from laptime.recorder.breakdown import ClosedSteps
from laptime.recorder.budget import Budget
from laptime.recorder.running_step import StepEvidence
from laptime.recorder.timeline import CODE, UNITS, RawStep
from laptime.recorder.trace_aftermath import Detach
from laptime.runs import Run

SAMPLES = 10_000  # step times kept for the summary: its memory must not grow with the run
NEAR = 200  # marked steps on each side of a traced one that it is compared with


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
    detach: Detach = field(default_factory=Detach)
    activation_bytes: dict[int, int] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)
    disturbed: list[int] = field(
        default_factory=list
    )  # untraced steps that starting or reading a trace slowed
    walls: list[float] = field(default_factory=list)
    timed: int = 0
    random: Random = field(default_factory=lambda: Random(0))
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a label, once."""
        if text not in self.notes:
            self.notes.append(text)

    def count(self, evidence: StepEvidence, stage: Stage) -> None:
        """Take in what happened in a step."""
        if stage is Stage.TRAIN:
            self.without_backward += not evidence.backward
            self.without_forward += evidence.backward and not evidence.forward
            self.optimizer_steps += evidence.update

    def finish(
        self, *, host_s: float, background_s: float, dropped_traces: int, notes: Sequence[str | None]
    ) -> None:
        """Called when the recording ends: add the host time of all steps and the collected notes."""
        self.host_s, self.background_s, self.dropped_traces = host_s, background_s, dropped_traces
        for text in notes:
            if text is not None:
                self.note(text)

    def take(self, closed: ClosedSteps) -> None:
        """Take in a batch of closed steps."""
        self.wall_s += float(closed.walls.sum())
        self.unexplained_s += float(closed.accounts[:, CODE[Account.UNEXPLAINED]].sum())
        self.instrument_s += float(closed.accounts[:, CODE[Account.INSTRUMENT]].sum())
        self.compute_s += closed.compute_s
        self.named_s += closed.named_s
        for raw, wall_s in zip(closed.raws, closed.walls.tolist(), strict=True):
            stage, step = raw.fields["stage"], raw.fields["step"]
            self.steps[stage] += 1
            self.instrumented += raw.instrumented
            if raw.trace is None and not raw.perturbed and stage is Stage.TRAIN and step > 0:
                self._sample(wall_s)
                self.detach.take(step, wall_s, instrumented=raw.instrumented)
            if raw.trace is not None:
                self.traced.append(step)
                self._memory(raw)
            elif raw.perturbed:
                self.disturbed.append(step)

    def _sample(self, wall_s: float) -> None:
        """A random sample of the step times, of bounded size (reservoir sampling)."""
        self.timed += 1
        if len(self.walls) < SAMPLES:
            self.walls.append(wall_s)
        elif (place := self.random.randrange(self.timed)) < SAMPLES:
            self.walls[place] = wall_s

    def _memory(self, raw: RawStep) -> None:
        for code, kept in raw.trace.kept_bytes.items():
            if code >= UNITS and (code - UNITS) % 2 == 0:
                self.activation_bytes[(code - UNITS) // 2] = max(0, kept)
        for code, peak in raw.trace.peak_bytes.items():
            if code >= UNITS:
                unit = (code - UNITS) // 2
                self.peak_bytes[unit] = max(self.peak_bytes.get(unit, 0), peak)

    def with_memory(self, layers: Mapping[int, Layer]) -> list[Layer]:
        """The layers, by unit, with what the traced steps said of their memory."""
        return [
            replace(
                layer, activation_bytes=self.activation_bytes.get(unit), peak_bytes=self.peak_bytes.get(unit)
            )
            for unit, layer in layers.items()
        ]


def summarize_run(facts: Facts, budget: Budget, run: Run) -> dict[str, Any]:
    """The `summary` of run.json."""
    overhead = budget.overhead()
    return {
        "steps": dict(facts.steps),
        "instrumented_steps": facts.instrumented,
        "optimizer_steps": facts.optimizer_steps,
        "wall_s": facts.wall_s,
        "step_s": asdict(summarize(facts.walls)),
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
        "kernels": _kernels(facts, run),
        "notes": notes(facts) + _compiled(run),
    }


def _kernels(facts: Facts, run: Run) -> dict[str, Any] | None:
    if not facts.traced and not facts.dropped_traces:
        return None
    return {
        "steps": facts.traced,
        "disturbed": facts.disturbed,
        "dropped": facts.dropped_traces,
        "detach": facts.detach.verdict(),
        "reconciliation": reconcile(run, facts.traced),
    }


def reconcile(run: Run, traced: Sequence[int]) -> dict[str, Any] | None:
    """How far the layer tier and the kernel tier are apart, weighted by time.

    `spans_apart`: layer seconds of marked steps against the same spans while traced (what tracing perturbs).
    `busy_apart`: layer seconds against the kernels' own time (what is idle inside the spans).
    """
    marked, spans, busy = _medians(run, traced)
    marked = {key: seconds for key, seconds in marked.items() if key in spans}
    total = sum(marked.values())
    if not total:
        return None
    return {
        "spans_apart": sum(abs(seconds - spans[key]) for key, seconds in marked.items()) / total,
        "busy_apart": sum(abs(seconds - busy[key]) for key, seconds in marked.items()) / total,
        "busy_share": sum(busy[key] for key in marked) / total,
    }


Medians = dict[tuple[str, str], float]


def _medians(run: Run, traced: Sequence[int]) -> tuple[Medians, Medians, Medians]:
    """Median seconds by layer and phase: of marked steps, of traced steps, and busy. Steps nearby only."""
    tiers: list[dict[tuple[str, str], list[float]]] = [{}, {}, {}]
    if not traced:
        return {}, {}, {}
    near = range(max(1, min(traced) - NEAR), max(traced) + NEAR)
    columns = ["stage", "step", "layer", "phase", "seconds", "busy_s"]
    for row in run.stored("layers").read(columns, steps=near).to_pylist():
        key = (row["layer"], row["phase"])
        if row["stage"] != Stage.TRAIN or row["step"] not in near:
            continue
        if row["busy_s"] is None:
            tiers[0].setdefault(key, []).append(row["seconds"])
        else:
            tiers[1].setdefault(key, []).append(row["seconds"])
            tiers[2].setdefault(key, []).append(row["busy_s"])
    marked, spans, busy = ({key: statistics.median(values) for key, values in tier.items()} for tier in tiers)
    return marked, spans, busy


def _compiled(run: Run) -> list[str]:
    names = [layer.name for layer in run.network if layer.compiled]
    if not names:
        return []
    return [f"compiled by torch.compile, so charged as one unit each: {', '.join(names)}"]


def notes(facts: Facts) -> list[str]:
    """Labels for what a reader of the tables should know."""
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
    return labels
