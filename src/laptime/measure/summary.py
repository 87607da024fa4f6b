"""What a run says about itself: shares, the recorder's own cost, labels, and whether its tiers agree."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from laptime.measure.books import LayerBlock
from laptime.measure.budget import Budget
from laptime.measure.instruments import Seen
from laptime.measure.timeline import RawStep
from laptime.record import Layer, Phase, Stage, Statistics, Step, ratio_interval
from laptime.record.layers import OTHER_UNIT
from laptime.store import Run

FEWEST = 5

@dataclass(slots=True)
class Facts:
    """Running counts of a recording; their size does not depend on the number of steps."""

    steps: Counter[str] = field(default_factory=Counter)
    instrumented: int = 0
    optimizer_steps: int = 0
    without_backward: int = 0
    without_forward: int = 0
    without_update: int = 0
    wall_s: float = 0.0
    host_s: float = 0.0
    unexplained_s: float = 0.0
    instrument_s: float = 0.0
    compute_s: float = 0.0
    named_s: float = 0.0
    traced: list[int] = field(default_factory=list)
    dropped_traces: int = 0
    trace_ended_at: int | None = None
    bare_before: list[float] = field(default_factory=list)
    bare_after: list[float] = field(default_factory=list)
    activation_bytes: dict[str, int] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a label, once."""
        if text not in self.notes:
            self.notes.append(text)

    def count(self, seen: Seen, stage: Stage) -> None:
        """Take in what was seen during a step."""
        if stage is Stage.TRAIN:
            self.without_backward += not seen.backward
            self.without_forward += seen.backward and not seen.forward
            self.optimizer_steps += seen.update

    def take(self, step: Step, block: LayerBlock | None, raw: RawStep) -> None:
        """Take in a closed step."""
        self.steps[step.stage] += 1
        self.wall_s += step.wall_s
        self.unexplained_s += step.unexplained_s
        self.instrument_s += step.instrument_s
        if block is not None:
            self.instrumented += 1
            other = sum(
                seconds
                for name, seconds in zip(block.plan.names, block.seconds, strict=True)
                if name == OTHER_UNIT
            )
            total = float(block.seconds.sum())
            self.compute_s += total
            self.named_s += total - float(other)
        if raw.trace is not None:
            self.traced.append(step.step)
            self._memory(block, raw)
        elif step.stage is Stage.TRAIN and not raw.instrumented and not raw.perturbed:
            self._bare(step)

    def _bare(self, step: Step) -> None:
        """Bare steps just before and just after the last kernel trace show whether the detach was clean."""
        if self.trace_ended_at is None:
            self.bare_before = [*self.bare_before[-31:], step.wall_s] if step.step > 0 else []
        elif step.step >= self.trace_ended_at and len(self.bare_after) < 32:
            self.bare_after.append(step.wall_s)

    def _memory(self, block: LayerBlock | None, raw: RawStep) -> None:
        if block is None:
            return
        for code, name, phase in zip(
            block.plan.codes.tolist(), block.plan.names, block.plan.phases, strict=True
        ):
            if phase == Phase.FORWARD and code in raw.trace.kept_bytes:
                self.activation_bytes[name] = max(0, raw.trace.kept_bytes[code])
            if code in raw.trace.peak_bytes:
                self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), raw.trace.peak_bytes[code])

    def with_memory(self, layers: list[Layer]) -> list[Layer]:
        """The layers with what the traced steps said of their memory."""
        return [
            replace(
                layer,
                activation_bytes=self.activation_bytes.get(layer.name),
                peak_bytes=self.peak_bytes.get(layer.name),
            )
            for layer in layers
        ]


def summarize_run(facts: Facts, budget: Budget, run: Run) -> dict[str, Any]:
    """The `summary` of run.json."""
    overhead = budget.overhead()
    return {
        "steps": dict(facts.steps),
        "instrumented_steps": facts.instrumented,
        "optimizer_steps": facts.optimizer_steps,
        "wall_s": facts.wall_s,
        "step_s": asdict(run.accounts().wall),
        "host_clock_ratio": facts.wall_s / facts.host_s if facts.host_s else None,
        "unexplained_share": facts.unexplained_s / facts.wall_s if facts.wall_s else None,
        "named_share": facts.named_s / facts.compute_s if facts.compute_s else None,
        "instrument_share": facts.instrument_s / facts.wall_s if facts.wall_s else None,
        "overhead": asdict(overhead) if overhead else None,
        "budget": {"budget": budget.budget, "share": budget.share, "every_step": budget.every_step},
        "kernels": _kernels(facts, run),
        "notes": notes(facts) + _compiled(run),
    }


def _kernels(facts: Facts, run: Run) -> dict[str, Any] | None:
    if not facts.traced and not facts.dropped_traces:
        return None
    detach: dict[str, Any] | None = None
    if min(len(facts.bare_before), len(facts.bare_after)) >= FEWEST:
        ratio, low, high = ratio_interval(facts.bare_after, facts.bare_before)
        detach = {"ratio": ratio, "low": low, "high": high, "clean": low <= 1.0}
    return {
        "steps": facts.traced,
        "dropped": facts.dropped_traces,
        "detach": detach,
        "reconciliation": reconcile(run, facts.traced),
    }


def reconcile(run: Run, traced: Sequence[int]) -> dict[str, Any] | None:
    """How far the layer tier and the kernel tier are apart, weighted by time.

    `spans_apart`: layer seconds of marked steps against the same spans while traced (what tracing perturbs).
    `busy_apart`: layer seconds against the kernels' own time (what is idle inside the spans).
    """
    spans, busy = _traced_medians(run, traced)
    layers = run.layers()
    if layers.traced or not spans:
        return None
    marked: dict[tuple[str, str], float] = {}
    for layer in layers:
        for phase in Phase:
            times: Statistics | None = getattr(layer, phase)
            if times is not None and (layer.layer, phase.value) in spans:
                marked[layer.layer, phase.value] = times.median
    total = sum(marked.values())
    if not total:
        return None
    return {
        "spans_apart": sum(abs(seconds - spans[key]) for key, seconds in marked.items()) / total,
        "busy_apart": sum(abs(seconds - busy[key]) for key, seconds in marked.items()) / total,
        "busy_share": sum(busy[key] for key in marked) / total,
    }


Medians = dict[tuple[str, str], float]


def _traced_medians(run: Run, traced: Sequence[int]) -> tuple[Medians, Medians]:
    spans: dict[tuple[str, str], list[float]] = {}
    busy: dict[tuple[str, str], list[float]] = {}
    for step in traced:
        columns = ["step", "layer", "phase", "seconds", "busy_s"]
        for row in run.stored("layers").read(columns, steps=range(step, step + 1)).to_pylist():
            if row["step"] == step and row["busy_s"] is not None:
                spans.setdefault((row["layer"], row["phase"]), []).append(row["seconds"])
                busy.setdefault((row["layer"], row["phase"]), []).append(row["busy_s"])
    return (
        {key: statistics.median(values) for key, values in spans.items()},
        {key: statistics.median(values) for key, values in busy.items()},
    )


def _compiled(run: Run) -> list[str]:
    names = [layer.name for layer in run.network if layer.compiled]
    if not names:
        return []
    return [f"compiled by torch.compile, so charged as one unit each: {', '.join(names)}"]


def notes(facts: Facts) -> list[str]:
    """Labels for what a reader of the tables should know."""
    found = list(facts.notes)
    trained = facts.steps.get(Stage.TRAIN, 0)
    if facts.without_backward:
        found.append(f"{facts.without_backward} of {trained} training steps had no backward pass")
    if facts.without_forward:
        found.append(
            f"{facts.without_forward} of {trained} training steps ran backward without calling the recorded "
            "network: pass the module that the loop calls (the compiled or wrapped one)"
        )
    if trained and not facts.optimizer_steps:
        found.append("no recorded optimizer made a step: pass it to record() to have updates charged")
    return found
