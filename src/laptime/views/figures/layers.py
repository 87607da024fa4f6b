"""Layers: side by side, forward against backward, and over the iterations on each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from laptime.model import LayerSeconds, Phase
from laptime.runs import LayerSummary
from laptime.views import palette
from laptime.views.figures.figure import (
    Choice,
    Figure,
    Trace,
    apart,
    axis,
    label,
    milliseconds,
    packed,
    short,
)
from laptime.views.figures.steps import by, line, of, step_axis
from laptime.views.step_bins import Digest, Rows

PHASES = tuple(phase.value for phase in Phase)
_MOST_BARS = 60
_MOST_LINES = 12
_FEW = 60  # points of a line that are marked one by one: more would run into each other


def layers_together(layers: Sequence[LayerSeconds], unit: str, *, how: str = "Mean") -> Figure | None:
    """Every layer with its phases end to end, the largest first; measured or predicted."""
    timed = sorted((layer for layer in layers if layer.total_s), key=lambda layer: -layer.total_s)
    if not timed:
        return None
    shown = timed[:_MOST_BARS]
    whole = sum(layer.total_s for layer in layers)
    names = apart([layer.layer for layer in shown])
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase.value,
            "y": names,
            "x": milliseconds(layer.seconds(phase) or np.nan for layer in shown),
            "customdata": [[label(layer.layer), layer.total_s / whole * 100] for layer in shown],
            "marker": {"color": palette.colour(phase)},
            "hovertemplate": "%{customdata[0]}: %{x} ms, the layer %{customdata[1]:.1f} % of the compute"
            f"<extra>{phase}</extra>",
        }
        for phase in Phase
        if any(layer.seconds(phase) for layer in shown)
    ]
    more = f" The {len(shown)} largest of {len(timed)}." if len(timed) > len(shown) else ""
    return Figure(
        name="layers",
        title=f"All {unit}s together",
        caption=f"{how} milliseconds of each {unit} in a step, by phase; updates are split by parameter "
        f"bytes (allocated).{more}",
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": axis("ms"),
            "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
            "legend": {"traceorder": "normal"},  # as the bars, from left to right
        },
        height=140 + 22 * max(4, len(shown)),
    )


def forward_against_backward(layers: Sequence[LayerSummary], unit: str) -> Figure | None:
    """Two bars for each layer, in the order of the network, with the middle half of their steps."""
    both = [layer for layer in layers if layer.forward and layer.backward]
    if not both:
        return None
    largest = {layer.layer for layer in sorted(both, key=lambda layer: -layer.total_s)[:_MOST_BARS]}
    shown = [layer for layer in both if layer.layer in largest]
    traces = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        times = [summary for layer in shown if (summary := layer.phase(phase))]
        medians = np.array([summary.median for summary in times])
        traces.append(
            {
                "type": "bar",
                "name": phase.value,
                "x": apart([layer.layer for layer in shown]),
                "y": milliseconds(medians),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": milliseconds(np.array([summary.q3 for summary in times]) - medians),
                    "arrayminus": milliseconds(medians - np.array([summary.q1 for summary in times])),
                    "thickness": 1,
                    "width": 2,
                },
                "marker": {"color": palette.colour(phase)},
                "customdata": [label(layer.layer) for layer in shown],
                "hovertemplate": "%{customdata}: %{y} ms<extra>" + phase.value + "</extra>",
            }
        )
    more = f" The {len(shown)} largest of {len(both)}." if len(both) > len(shown) else ""
    return Figure(
        name="forward-backward",
        title="Forward against backward",
        caption=f"Median milliseconds of each {unit}, in the order of the network; the lines span the middle "
        f"half of the steps.{more}",
        traces=traces,
        layout={
            "barmode": "group",
            "xaxis": {"automargin": True, "type": "category", "tickangle": -40},
            "yaxis": axis("ms"),
        },
        height=400,
    )


def over_iterations(digest: Digest, order: Sequence[str], unit: str, marked: str = "") -> Figure | None:
    """Layer time over the iterations: a line for each layer, one device and phase at a time.

    `marked` says which steps have layer times.
    """
    rows = digest.layers
    if not len(rows["layer"]):
        return None
    largest = list(order)[:_MOST_LINES]
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    devices = _devices(digest, ranks)
    traces: list[Trace] = []
    choices: list[Choice] = []
    for rank in ranks:
        for phase in ("all phases", *PHASES):
            shows = []
            highest = []
            for place, layer in enumerate(largest):
                mine = of(rows, rank=rank, layer=layer)
                mine = _summed(mine) if phase == "all phases" else of(mine, phase=phase)
                if len(mine["step"]):
                    shows.append(len(traces))
                    traces.append(_line(mine, layer, palette.nth_colour(place)))
                    highest.append(_top(mine["seconds"]))
            shows += _slow(digest, rank, phase, largest, traces)
            if shows:
                words = f"{devices[rank]}, {phase}" if len(ranks) > 1 else phase
                yaxis = axis("ms", range=[0, max(highest) * 1.1])
                choices.append(Choice(name=words, shows=shows, layout={"yaxis": yaxis}))
    more = f"; the {len(largest)} largest of {len(order)}" if len(order) > len(largest) else ""
    return Figure(
        name="iterations",
        title=f"{unit.capitalize()} time over the iterations",
        caption=f"Median of neighbouring steps{more}. Crosses are single steps far beyond their neighbours. "
        f"A double click shows what reaches out of the frame.{_dotted(traces)}{marked and f' {marked}'}",
        traces=traces,
        layout={"xaxis": step_axis(digest), "hovermode": "closest"},
        height=420,
        choices=choices,
        asks="device and phase" if len(ranks) > 1 else "phase",
    )


def one_layer(digest: Digest, order: Sequence[str], unit: str) -> Figure | None:
    """Forward, backward and update of one layer over the iterations, on every device."""
    rows = digest.layers
    if not len(rows["layer"]):
        return None
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    devices = _devices(digest, ranks)
    traces: list[Trace] = []
    choices = []
    of_layer = by(rows, "layer")
    for layer in order:
        if layer not in of_layer:
            continue
        mine = of_layer[layer]
        shows = []
        highest = [0.0]
        for rank in ranks:
            for phase in PHASES:
                timed = of(mine, rank=rank, phase=phase)
                if len(timed["step"]):
                    shows.append(len(traces))
                    name = f"{devices[rank]}, {phase}" if len(ranks) > 1 else phase
                    drawn = _line(timed, name, palette.colour(phase))
                    drawn["line"]["dash"] = ("solid", "dot", "dash", "dashdot")[rank % 4]
                    traces.append(drawn)
                    highest.append(_top(timed["seconds"]))
        if shows:
            yaxis = axis("ms", range=[0, max(highest) * 1.1])
            choices.append(Choice(name=layer, shows=shows, layout={"yaxis": yaxis}))
    return Figure(
        name="one-layer",
        title=f"One {unit} over the iterations",
        caption="Median of neighbouring steps, by phase"
        + (" and device." if len(ranks) > 1 else ".")
        + _dotted(traces),
        traces=traces,
        layout={"xaxis": step_axis(digest), "hovermode": "x unified"},
        choices=choices,
        asks=unit,
    )


def by_time(layers: Sequence[LayerSeconds]) -> list[str]:
    """The names of the layers, the largest first."""
    return [layer.layer for layer in sorted(layers, key=lambda layer: -layer.total_s)]


def _devices(digest: Digest, ranks: Sequence[int]) -> dict[int, str]:
    rows = digest.steps
    names = {int(rank): str(device) for rank, device in zip(rows["rank"], rows["device"], strict=True)}
    return {rank: f"{names.get(rank, '')} rank {rank}".strip() for rank in ranks}


def _summed(rows: Rows) -> Rows:
    """Seconds of each bin summed over its phases."""
    bins, first, place = np.unique(rows["bin"], return_index=True, return_inverse=True)
    seconds = np.bincount(place, rows["seconds"], minlength=len(bins))
    return {name: column[first] for name, column in rows.items()} | {"seconds": seconds}


def _top(seconds: Any) -> float:
    """The upper end of the axis in ms, ignoring single slow steps such as the first."""
    usual = np.asarray(seconds) * 1e3
    return float(min(usual.max(), 2.5 * np.quantile(usual, 0.9))) or 1e-3


def _line(rows: Rows, name: str, tint: str) -> Trace:
    steps = rows["step"]
    return {
        "type": "scatter",
        "mode": "lines" if len(steps) > _FEW else "lines+markers" if len(steps) > 1 else "markers",
        "name": short(name),
        "meta": label(name),
        **line(rows, rows["seconds"] * 1e3),
        "line": {"color": tint, "width": 1.4 if len(steps) > _FEW else 0.8},
        "marker": {"color": tint, "size": 5},
        "hovertemplate": "step %{x}: %{y:,.4~r} ms<extra>%{meta}</extra>",
    }


def _dotted(traces: Sequence[Trace]) -> str:
    """A note for figures with dots: the lines between them were not measured."""
    drawn = any(trace["mode"] == "lines+markers" for trace in traces)
    return " Dots are the steps that were measured; nothing is known between them." if drawn else ""


def _slow(digest: Digest, rank: int, phase: str, layers: Sequence[str], traces: list[Trace]) -> list[int]:
    """Append the outliers of these layers as crosses; return their indices in `traces`."""
    if phase == "all phases":
        return []
    rows = of(digest.slow_layers, rank=rank, phase=phase)
    here = np.isin(rows["layer"].astype(str), list(layers))
    if not here.any():
        return []
    rows = {name: column[here] for name, column in rows.items()}
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "slow single steps",
            "x": packed(rows["step"]),
            "y": packed(rows["seconds"] * 1e3),
            "customdata": [label(name) for name in rows["layer"]],
            "marker": {
                "symbol": "x",
                "size": 6,
                "color": [palette.nth_colour(list(layers).index(name)) for name in rows["layer"]],
            },
            "hovertemplate": "step %{x}: %{y:,.4~r} ms<extra>%{customdata}</extra>",
        }
    )
    return [len(traces) - 1]
