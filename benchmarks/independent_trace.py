"""Section `trace`: laptime's time per layer and phase against an independent kernel trace.

Where the device is busy throughout, the trace is taken on the bare network and its busy time compared with
that of the recorder's kernels tier; beside it, the span between two marks, which is busy time and the little
that lies between kernels. Where the device waits for the host, torch.profiler stretches the very gaps that
are compared, so recording and trace look at the same steps, and spans are compared. The same holds on the
CPU, where steps vary by more than 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

import laptime
from benchmarks.kernel_trace import (
    LOSS,
    UNKNOWN,
    Key,
    Traced,
    attribute,
    events_of,
    mark_layers,
    medians,
    say,
)
from benchmarks.networks import Configuration, Workload
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER

TARGET = 0.03
WORST = 5
RECORDED_FIRST = 2  # a new recording discovers its layers, then sets its first marks
TRACED_FIRST = 1  # CUPTI drops records at the start of a session


def measure(
    one: Configuration, work: Workload, *, root: Path, steps: int, runs: Sequence[laptime.Run] = ()
) -> dict[str, Any]:
    """How far laptime and the trace are apart. `runs`: recordings of the same network, if there are any."""
    cuda = work.device.type == "cuda"
    if cuda and one.bound == "device":
        compared = "busy, bare network"
        runs = runs or [record_alone(work, root / "recorded", steps)]
        marks = layer_medians(runs, skip=RECORDED_FIRST)
        traced = trace_bare(work, steps)
        result = compare(busy_medians(record_kernels(work, root / "kernels", steps)), medians(traced.busy))
    elif one.bound == "device":
        compared = "operators, same steps"
        run, traced = record_and_trace(work, root / "traced", steps)
        marks = layer_medians([run], skip=RECORDED_FIRST + TRACED_FIRST)
        result = compare(marks, medians(traced.busy))
    else:
        compared = "spans, same steps"
        run, traced = record_and_trace(work, root / "traced", steps)
        marks = layer_medians([run], skip=RECORDED_FIRST + TRACED_FIRST)
        result = compare(marks, medians(traced.spans))
    return {
        **result,
        "compared": compared,
        "busy_apart": compare(marks, medians(traced.busy))["apart"],
        "spans_apart": compare(marks, medians(traced.spans))["apart"],
        "steps": len(traced.busy),
        "dropped": traced.dropped,
        "unknown_share": traced.unknown_share,
        "target": TARGET,
    }


def layer_medians(runs: Sequence[laptime.Run], *, skip: int) -> dict[Key, float]:
    """laptime's seconds per layer and phase: the median over steps, then over recordings."""
    found: list[dict[Key, float]] = []
    for run in runs:
        rows: dict[Key, float] = {}
        for layer in run.layers(skip=skip):
            if layer.layer not in (LOSS_LAYER, OTHER_LAYER):
                for phase, times in (("forward", layer.forward), ("backward", layer.backward)):
                    if times is not None:
                        rows[layer.layer, phase] = times.median
        found.append(rows)
    return medians(found)


def busy_medians(run: laptime.Run) -> dict[Key, float]:
    """The busy seconds of the kernels tier per layer and phase: the median over the traced steps."""
    found: dict[Key, list[float]] = {}
    for row in run.layer_table.to_pylist():
        compute = row["phase"] in ("forward", "backward") and row["layer"] not in (LOSS_LAYER, OTHER_LAYER)
        if compute and row["busy_s"] is not None:
            found.setdefault((row["layer"], row["phase"]), []).append(row["busy_s"])
    return {key: float(np.median(seconds)) for key, seconds in found.items()}


def compare(ours: Mapping[Key, float], theirs: Mapping[Key, float]) -> dict[str, Any]:
    """Σ |laptime − trace| / Σ trace over layers and phases, and the layers that differ most."""
    keys = sorted(key for key in ours.keys() | theirs.keys() if key[0] not in (LOSS, UNKNOWN))
    total = sum(theirs.get(key, 0.0) for key in keys)
    rows: list[dict[str, Any]] = [
        {
            "layer": layer,
            "phase": phase,
            "laptime_s": ours.get((layer, phase), 0.0),
            "trace_s": theirs.get((layer, phase), 0.0),
        }
        for layer, phase in keys
    ]
    apart = [abs(row["laptime_s"] - row["trace_s"]) for row in rows]
    worst = sorted(zip(apart, rows, strict=True), key=lambda pair: -pair[0])[:WORST]
    return {
        "apart": sum(apart) / total if total else float("nan"),
        "worst": [{**row, "share": difference / (total or 1.0)} for difference, row in worst],
        "layers": rows,
    }


def _profiler(work: Workload) -> profile:
    cuda = [ProfilerActivity.CUDA] if work.device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *cuda])


def _traced_steps(work: Workload, batches: Iterable[Any]) -> None:
    for batch in batches:
        say("step")
        work.step(batch)
    say("step")  # what follows belongs to no traced step
    work.synchronize()


def _trace(work: Workload, batches: Callable[[int], Iterable[Any]], steps: int) -> Traced:
    undo = mark_layers(work.network)
    profiler = _profiler(work)
    try:
        work.synchronize()
        profiler.start()
        _traced_steps(work, batches(TRACED_FIRST + steps))
        profiler.stop()
    finally:
        undo()
    return attribute(events_of(profiler), skip=TRACED_FIRST)


def trace_bare(work: Workload, steps: int) -> Traced:
    """The trace of a network that nothing else watches."""
    return _trace(work, lambda count: repeat(work.batch, count), steps)


def record_alone(work: Workload, out: Path, steps: int) -> laptime.Run:
    """A recording of every step."""
    with laptime.record(work.network, work.optimizer, out=out, every_step=True) as recording:
        for batch in recording.steps(repeat(work.batch, RECORDED_FIRST + steps)):
            work.step(batch)
    return recording.run


def record_kernels(work: Workload, out: Path, steps: int) -> laptime.Run:
    """A recording with a kernel trace of its own, in a profiler session of its own."""
    first = RECORDED_FIRST + 1
    chosen = range(first, first + steps)
    with laptime.record(work.network, work.optimizer, out=out, kernels=chosen) as recording:
        for batch in recording.steps(repeat(work.batch, chosen.stop + 1)):
            work.step(batch)
    return recording.run


def record_and_trace(work: Workload, out: Path, steps: int) -> tuple[laptime.Run, Traced]:
    """Both at once, each by its own means: the recording starts first and leaves its first steps untraced."""
    with laptime.record(work.network, work.optimizer, out=out, every_step=True) as recording:
        for batch in recording.steps(repeat(work.batch, RECORDED_FIRST)):
            work.step(batch)
        traced = _trace(work, lambda count: recording.steps(repeat(work.batch, count)), steps)
    return recording.run, traced
