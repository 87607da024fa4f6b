"""Memory over a step: what a traced step held, and what the step's tensors add up to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from laptime.model import Workload
from laptime.views import format, palette
from laptime.views.figures.figure import Figure, Trace, axis, label, packed
from laptime.views.one_step import OneStep

_MIB = 2.0**20
_STATIC = ("parameters", "buffers", "state", "inputs")


def memory(one: OneStep, workload: Workload | None) -> Figure | None:
    """Mebibytes over milliseconds; None where nothing is known."""
    # CUDA's allocator knows all that it gave out; on the CPU a trace counts from its own start.
    whole = one.device.startswith("cuda")
    static = sum(getattr(workload.memory, name) for name in _STATIC) if workload is not None else 0
    below = static if whole else 0
    traces = [*_measured(one), *(_estimated(one, workload, below) if workload is not None else ())]
    if not traces:
        return None
    known = []
    if any(row.memory_bytes is not None for row in one.layers):
        known.append(
            "Measured: the most that was allocated while a layer ran, "
            + ("as CUDA's allocator counts it." if whole else "beyond what was there when the trace began.")
        )
    if workload is not None:
        known.append(
            "Estimated: tensors alive at each operation of the step as it was read, "
            + ("with" if whole else "without")
            + f" {format.memory(static)} of parameters, buffers, optimizer state and inputs; libraries' "
            f"workspaces are not counted. {format.memory(workload.memory.peak)} in all at the peak."
        )
    return Figure(
        name="memory",
        title="Memory over a step",
        caption=" ".join(known),
        traces=traces,
        layout={
            "xaxis": axis("ms", range=[0, one.wall_s * 1e3]),
            "yaxis": axis("MiB", rangemode="tozero"),
            "hovermode": "closest",
        },
    )


def _measured(one: OneStep) -> list[Trace]:
    rows = sorted((row for row in one.layers if row.memory_bytes is not None), key=lambda row: row.start_s)
    if not rows:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "measured",
            "line": {"shape": "hv", "color": palette.colour("backward"), "width": 1.6},
            "fill": "tozeroy",
            "fillcolor": palette.colour("backward") + "22",
            "x": packed([(row.start_s - one.start_s) * 1e3 for row in rows]),
            "y": packed([(row.memory_bytes or 0) / _MIB for row in rows]),
            "customdata": [label(f"{row.layer}, {row.phase}") for row in rows],
            "hovertemplate": "%{y:,.4g} MiB in %{customdata}<extra>measured</extra>",
        }
    ]


def _estimated(one: OneStep, workload: Workload, below: int) -> list[Trace]:
    """Operations spread evenly over the time that their layer took in this step."""
    spans = _spans(one)
    at: list[float] = []
    size: list[float] = []
    names: list[str] = []
    now = 0.0
    for (layer, phase), group in groupby(workload.operations, key=lambda op: (op.layer, op.phase.value)):
        operations = list(group)
        start, seconds = spans.get((layer, phase), (now, 0.0))
        start = max(start, now)
        for place, operation in enumerate(operations):
            at.append((start + seconds * place / len(operations)) * 1e3)
            size.append((operation.alive + below) / _MIB)
            names.append(label(f"{layer}, {phase}: {operation.name}"))
        now = start + seconds
    if not at:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "estimated",
            "line": {"shape": "hv", "color": palette.colour("forward"), "width": 1.4},
            "x": packed(np.maximum.accumulate(at)),
            "y": packed(size),
            "customdata": names,
            "hovertemplate": "%{y:,.4g} MiB at %{customdata}<extra>estimated</extra>",
        }
    ]


def _spans(one: OneStep) -> Mapping[tuple[str, str], tuple[float, float]]:
    """Start and length of each layer's phases since the step began."""
    spans: dict[tuple[str, Any], tuple[float, float]] = {}
    for row in one.layers:
        spans[row.layer, row.phase.value] = (row.start_s - one.start_s, row.seconds)
    return spans
