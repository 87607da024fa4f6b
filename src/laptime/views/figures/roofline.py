"""Roofline (Williams, Waterman and Patterson 2009): what each layer reached, and what the device allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laptime.model import Phase, Workload
from laptime.runs import LayerSummary
from laptime.views import palette
from laptime.views.figures.figure import Figure, Trace, axis, label, layout, packed, scatter, short

_NAMED = 3  # points of each phase
_ROOM = (0.45, 0.12)  # decades beside and below a point that a name of twenty letters takes

Point = tuple[float, float, str, float]  # FLOPs a byte, FLOP/s, layer, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What a device offers: FLOP/s by type and bytes a second, and where the figures are from."""

    device: str
    flops: Mapping[str, float]
    bandwidth: float
    source: str


def roofline(layers: Sequence[LayerSummary], workload: Workload, ceiling: Ceiling | None) -> Figure:
    """A point for each layer and pass that computes: FLOP/s over FLOPs a byte."""
    work: dict[tuple[str, str], tuple[int, int]] = {}
    for operation in workload.operations:
        flops, moved = work.get((operation.layer, operation.phase.value), (0, 0))
        work[operation.layer, operation.phase.value] = (flops + operation.flops, moved + operation.moved)
    traces: list[Trace] = []
    reach: list[float] = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        points: list[Point] = []
        for layer in layers:
            flops, moved = work.get((layer.layer, phase.value), (0, 0))
            times = layer.phase(phase)
            if flops and moved and times and times.median:
                points.append((flops / moved, flops / times.median, layer.layer, times.median))
        if points:
            reach += [point[0] for point in points]
            traces.append(_points(points, phase.value))
    if ceiling is not None and traces:
        traces += _roofs(ceiling, min(reach) / 3, max(reach) * 3)
    bend = "Left of the bend, memory is the limit; right of it, arithmetic."
    source = (
        f"{bend} The roofs are those of {ceiling.device} ({ceiling.source})."
        if ceiling is not None and ceiling.flops
        else "No roof: the device is not in the catalog, and `laptime calibrate` has not measured it."
    )
    return Figure(
        name="roofline",
        title="Roofline per layer",
        caption="FLOPs and bytes as the step asks for them, over the measured median time. The size of a "
        f"point is its time, those that took longest bear their names. {source}",
        traces=traces,
        layout=layout(
            axis("FLOPs per byte", type="log"),
            axis("FLOP/s", type="log", exponentformat="SI"),
            hovermode="closest",
        ),
        height=420,
    )


def _apart(points: list[Point]) -> list[Point]:
    """The slowest points whose labels do not overlap."""
    labelled: list[Point] = []
    for point in sorted(points, key=lambda point: -point[3]):
        far = [np.abs(np.log10([point[0] / other[0], point[1] / other[1]])) for other in labelled]
        if len(labelled) < _NAMED and all(x > _ROOM[0] or y > _ROOM[1] for x, y in far):
            labelled.append(point)
    return labelled


def _points(points: list[Point], phase: str) -> Trace:
    longest = max(point[3] for point in points)
    named = _apart(points)
    sizes = [6 + 16 * float(np.sqrt(point[3] / longest)) for point in points]
    hover = "%{customdata[0]}: %{y:.3s}FLOP/s at %{x:.3g} FLOPs a byte, %{customdata[1]:,.4~r} ms"
    return scatter(
        phase,
        f"{hover}<extra>{phase}</extra>",
        "markers+text",
        text=[short(point[2], 20) if point in named else "" for point in points],
        # Forward and backward of a layer lie close to each other.
        textposition="top center" if phase == "forward" else "bottom center",
        textfont={"size": 11, "color": palette.colour(phase)},
        x=packed([point[0] for point in points], "f8"),
        y=packed([point[1] for point in points], "f8"),
        customdata=[[label(point[2]), point[3] * 1e3] for point in points],
        marker={"color": palette.colour(phase), "size": sizes, "opacity": 0.75},
    )


def _roofs(ceiling: Ceiling, low: float, high: float) -> list[Trace]:
    traces = []
    for place, (dtype, peak) in enumerate(sorted(ceiling.flops.items(), key=lambda item: item[1])):
        places = sorted({low, max(low, min(peak / ceiling.bandwidth, high)), high})
        ends = {"x": places, "y": [min(peak, x * ceiling.bandwidth) for x in places]}
        shape = {"color": "#6f7d8c", "width": 1.4, "dash": ("solid", "dash", "dot")[place % 3]}
        hover = "%{y:.3s}FLOP/s<extra>" + dtype + "</extra>"
        traces.append(scatter(f"at most, {dtype}", hover, line=shape, **ends))
    return traces
