"""One step from its start to its end: layers by phase, what is between them, kernels or operators, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from laptime.files.text import one_line
from laptime.model import KernelTime, Workload
from laptime.views import format, palette
from laptime.views.figures.figure import (
    NAMES_AXIS,
    Figure,
    Trace,
    axis,
    label,
    layout,
    packed,
    scatter,
    short,
)
from laptime.views.step_bins import OneStep

OUTSIDE = "not in a layer"
_MOST_KERNELS = 1500
_MOST_NAMES = 300  # written into their bars; Plotly measures each, a second for 3,000
_LAYERED = ("forward", "loss", "backward", "update", "idle")  # what layers divide, idle time inside them too
_BLANK = "#7b8794"  # of what has no account's colour, since it is of several
_DUST = 1e-9
_GAP = 1e-3  # of the step; shorter ones would not be seen
_DEEPEST = 3  # operators inside operators inside operators; more would be thin lines
_MIB = 2.0**20
_STATIC = ("parameters", "buffers", "state", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A layer, a gap between layers, a kernel or an operator."""

    name: str
    inside: str  # its layer and phase
    tint: str
    start_s: float
    seconds: float


def timeline(step: OneStep) -> Figure:
    """Bars over milliseconds since the step began."""
    lanes: dict[str, list[_Bar]] = {}

    def add(lane: str, name: str, inside: str, tint: str, start_s: float, seconds: float) -> None:
        bar = _Bar(name=name, inside=inside, tint=tint, start_s=start_s, seconds=seconds)
        lanes.setdefault(lane, []).append(bar)

    for row in step.layers:
        inside = f"{row.layer}, {row.phase}"
        add(f"layers {row.phase}", row.layer, inside, row.phase, row.start_s, row.seconds)
    outside = ", ".join(
        f"{account} {format.milliseconds(seconds)} ms"
        for account, seconds in step.accounts.items()
        if account not in _LAYERED and seconds > _DUST
    )
    until, end = step.start_s, step.start_s + step.wall_s
    for start_s, seconds in sorted([*((row.start_s, row.seconds) for row in step.layers), (end, 0.0)]):
        if start_s - until > _GAP * step.wall_s:
            inside = f"of the whole step, {outside or 'no account'}"
            add(OUTSIDE, OUTSIDE, inside, "", until, start_s - until)
        until = max(until, start_s + seconds)
    kernels = sorted(step.kernels, key=lambda kernel: -kernel.seconds)[:_MOST_KERNELS]
    streams = sorted({kernel.stream for kernel in kernels})
    for kernel, depth in _depths(kernels):
        if depth < _DEEPEST:
            kind = "operators" if kernel.kind == "operator" else "kernels"
            many = f" {streams.index(kernel.stream)}" if len(streams) > 1 else ""
            deep = f" ({depth})" if depth else ""
            tint = kernel.phase if kernel.phase in palette.ACCOUNTS else "host"
            inside = f"{kernel.layer}, {kernel.phase}"
            add(f"{kind}{many}{deep}", kernel.name, inside, tint, kernel.start_s, kernel.seconds)
    told = ""
    if outside:
        unknown = "how long these took is known, where in the gaps each was is not"
        told += f" Outside the layers: {outside}; {unknown}."
    if left := len(step.kernels) - len(kernels):
        told += f" The {len(kernels)} longest kernels; {left} shorter ones are left out."
    if not step.kernels:
        told += " Kernels are known of traced steps only: record(kernels=[100]) traces step 100."
    named = sorted(
        (bar.seconds for lane, row in lanes.items() if lane != OUTSIDE for bar in row), reverse=True
    )
    least = named[_MOST_NAMES - 1] if len(named) > _MOST_NAMES else 0.0
    within = axis("ms", range=[0, step.wall_s * 1e3])
    return Figure(
        name="timeline",
        title=f"Step {step.step}, from its start to its end",
        caption=f"{format.milliseconds(step.wall_s)} ms of {one_line(step.device)}. Drag to look closer, "
        f"double-click to go back.{told}",
        traces=[_lane(step, name, row, least) for name, row in lanes.items()],
        layout=layout(within, NAMES_AXIS | {"fixedrange": True}, barmode="overlay", bargap=0.15)
        | {"showlegend": False, "uniformtext": {"mode": "hide", "minsize": 9}},
        height=120 + 48 * len(lanes),
    )


def _lane(step: OneStep, name: str, row: Sequence[_Bar], least: float) -> Trace:
    """The bars of a lane; those of at least `least` seconds bear their names."""
    starts = [bar.start_s - step.start_s for bar in row]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [name] * len(row),
        "base": [round(start * 1e3, 5) for start in starts],
        "x": [round(bar.seconds * 1e3, 5) for bar in row],
        # Plotly's %{x} of a bar with a base is where it ends, so its length is written out.
        "customdata": [
            [
                label(bar.name),
                label(bar.inside),
                f"{format.milliseconds(bar.seconds)} ms from {format.milliseconds(start)} ms on",
            ]
            for bar, start in zip(row, starts, strict=True)
        ],
        "text": [short(bar.name, 24) if bar.seconds >= least and name != OUTSIDE else "" for bar in row],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "#ffffff"},
        "marker": {
            "color": [palette.colour(bar.tint) if bar.tint in palette.ACCOUNTS else _BLANK for bar in row],
            "line": {"width": 0.5 if name.startswith("layers") else 0, "color": "#ffffff66"},
        },
        "hovertemplate": "%{customdata[0]}<br>%{customdata[2]}<br>%{customdata[1]}<extra></extra>",
    }


def _depths(kernels: Sequence[KernelTime]) -> list[tuple[KernelTime, int]]:
    """The nesting depth of each kernel or operator in its stream: operators call operators."""
    depths = []
    open_until: dict[int, list[float]] = {}
    for kernel in sorted(kernels, key=lambda kernel: (kernel.start_s, -kernel.seconds)):
        ends = open_until.setdefault(kernel.stream, [])
        while ends and ends[-1] <= kernel.start_s + _DUST:
            ends.pop()
        depths.append((kernel, len(ends)))
        ends.append(kernel.start_s + kernel.seconds)
    return depths


def memory(step: OneStep, workload: Workload | None) -> Figure:
    """Mebibytes over milliseconds, measured and estimated."""
    traces: list[Trace] = []
    told = []
    # A GPU's allocator knows all that it gave out; on the CPU a trace counts from its own start.
    whole = not step.device.startswith("cpu")
    if rows := [row for row in step.layers if row.memory_bytes is not None]:
        told.append(
            "Measured: the most that was allocated while a layer ran, "
            + ("as the allocator counts it." if whole else "beyond what was there when the trace began.")
        )
        traces.append(
            scatter(
                "measured",
                "%{y:,.4g} MiB in %{customdata}<extra>measured</extra>",
                line={"shape": "hv", "color": palette.colour("backward"), "width": 1.6},
                fill="tozeroy",
                fillcolor=palette.colour("backward") + "22",
                x=packed([(row.start_s - step.start_s) * 1e3 for row in rows]),
                y=packed([(row.memory_bytes or 0) / _MIB for row in rows]),
                customdata=[label(f"{row.layer}, {row.phase}") for row in rows],
            )
        )
    if workload is not None:
        static = sum(getattr(workload.memory, name) for name in _STATIC)
        told.append(
            "Estimated: tensors alive at each operation of the step as it was read, "
            + ("with" if whole else "without")
            + f" {format.memory(static)} of parameters, buffers, optimizer state and inputs; libraries' "
            f"workspaces are not counted. {format.memory(workload.memory.peak)} in all at the peak."
        )
        traces += _estimated(step, workload, static if whole else 0)
    within = axis("ms", range=[0, step.wall_s * 1e3])
    return Figure(
        name="memory",
        title="Memory over a step",
        caption=" ".join(told),
        traces=traces,
        layout=layout(within, axis("MiB", rangemode="tozero"), hovermode="closest"),
    )


def _estimated(step: OneStep, workload: Workload, below: int) -> list[Trace]:
    """Operations spread evenly over the time that their layer took in this step."""
    spans = {(row.layer, row.phase): (row.start_s - step.start_s, row.seconds) for row in step.layers}
    at: list[float] = []
    size: list[float] = []
    names: list[str] = []
    now = 0.0
    for (layer, phase), group in groupby(workload.operations, key=lambda op: (op.layer, op.phase)):
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
    ends = {"x": packed(np.maximum.accumulate(at)), "y": packed(size), "customdata": names}
    stairs = {"shape": "hv", "color": palette.colour("forward"), "width": 1.4}
    return [
        scatter("estimated", "%{y:,.4g} MiB at %{customdata}<extra>estimated</extra>", line=stairs, **ends)
    ]
