"""Layers: side by side, forward against backward, by module, and over the iterations on each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from laptime.model import LayerSeconds, Phase
from laptime.runs import LayerSummary
from laptime.views import format, palette
from laptime.views.figures.figure import (
    NAMES_AXIS,
    Choice,
    Figure,
    Trace,
    apart,
    axis,
    bars,
    label,
    largest_of,
    layout,
    line,
    milliseconds,
    packed,
    scatter,
    short,
    step_axis,
    usual_top,
)
from laptime.views.step_bins import Digest, Rows, by, of

_MOST_BARS = 60
_MOST_LINES = 12
_FEW = 60  # points of a line that are marked one by one: more would run into each other
_ALL_PHASES = "all phases"


def layers_together(layers: Sequence[LayerSeconds], unit: str, *, how: str = "Mean") -> Figure:
    """Every layer with its phases end to end, the largest first; measured or predicted."""
    timed = sorted((layer for layer in layers if layer.total_s), key=lambda layer: -layer.total_s)
    shown = timed[:_MOST_BARS]
    whole = sum(layer.total_s for layer in layers)
    names = apart([layer.layer for layer in shown])
    shares = [[label(layer.layer), layer.total_s / whole * 100] for layer in shown]
    hover = "%{customdata[0]}: %{x} ms, the layer %{customdata[1]:.1f} % of the compute"
    traces = []
    for phase in Phase:
        if any(layer.seconds(phase) for layer in shown):
            ms = milliseconds(layer.seconds(phase) or np.nan for layer in shown)
            traces.append(bars(phase.value, names, ms, palette.colour(phase), hover, customdata=shares))
    return Figure(
        name="layers",
        title=f"All {unit}s together",
        caption=f"{how} milliseconds of each {unit} in a step, by phase; updates are split by parameter "
        f"bytes (allocated).{largest_of(len(shown), len(timed))}",
        traces=traces,
        # The legend is in the order of the bars, from left to right.
        layout=layout(axis("ms"), NAMES_AXIS, barmode="stack", legend={"traceorder": "normal"}),
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
        medians, q1, q3 = np.array([(summary.median, summary.q1, summary.q3) for summary in times]).T
        half: Trace = {"type": "data", "symmetric": False, "thickness": 1, "width": 2}
        half |= {"array": milliseconds(q3 - medians), "arrayminus": milliseconds(medians - q1)}
        traces.append(
            {
                "type": "bar",
                "name": phase.value,
                "x": apart([layer.layer for layer in shown]),
                "y": milliseconds(medians),
                "error_y": half,
                "marker": {"color": palette.colour(phase)},
                "customdata": [label(layer.layer) for layer in shown],
                "hovertemplate": "%{customdata}: %{y} ms<extra>" + phase.value + "</extra>",
            }
        )
    return Figure(
        name="forward-backward",
        title="Forward against backward",
        caption=f"Median milliseconds of each {unit}, in the order of the network; the lines span the middle "
        f"half of the steps.{largest_of(len(shown), len(both))}",
        traces=traces,
        layout=layout(
            {"automargin": True, "type": "category", "tickangle": -40}, axis("ms"), barmode="group"
        ),
        height=400,
    )


def over_iterations(digest: Digest, order: Sequence[str], unit: str, marked: str = "") -> Figure | None:
    """Layer time over the iterations: a line for each layer, one device and phase at a time.

    `marked` says which steps have layer times.
    """
    devices = _devices(digest)
    largest = list(order)[:_MOST_LINES]
    groups: dict[str, list[Drawn]] = {}
    for rank, device in devices.items():
        for phase in (_ALL_PHASES, *Phase):
            drawn = []
            for place, layer in enumerate(largest):
                mine = of(digest.layers, rank=rank, layer=layer)
                mine = _summed(mine) if phase == _ALL_PHASES else of(mine, phase=phase)
                drawn += _line(mine, layer, palette.nth_colour(place))
            if phase != _ALL_PHASES:
                drawn += _slow(of(digest.slow_layers, rank=rank, phase=phase), largest)
            groups[f"{device}, {phase}" if len(devices) > 1 else str(phase)] = drawn
    more = f"; the {len(largest)} largest of {len(order)}" if len(order) > len(largest) else ""
    figure = Figure(
        name="iterations",
        title=f"{unit.capitalize()} time over the iterations",
        caption=f"Median of neighbouring steps{more}. Crosses are single steps far beyond their neighbours. "
        "A double click shows what reaches out of the frame.",
        traces=(),
        layout={"xaxis": step_axis(digest), "hovermode": "closest"},
        height=420,
        asks="device and phase" if len(devices) > 1 else "phase",
    )
    return _chosen(figure, groups, marked) if devices else None


def one_layer(digest: Digest, order: Sequence[str], unit: str) -> Figure | None:
    """Forward, backward and update of one layer over the iterations, on every device."""
    devices = _devices(digest)
    groups: dict[str, list[Drawn]] = {}
    of_layer = by(digest.layers, "layer")
    for layer in filter(of_layer.__contains__, order):
        groups[layer] = []
        for rank, device in devices.items():
            for phase in Phase:
                name = f"{device}, {phase}" if len(devices) > 1 else phase.value
                dash = ("solid", "dot", "dash", "dashdot")[rank % 4]
                mine = of(of_layer[layer], rank=rank, phase=phase)
                groups[layer] += _line(mine, name, palette.colour(phase), dash=dash)
    figure = Figure(
        name="one-layer",
        title=f"One {unit} over the iterations",
        caption="Median of neighbouring steps, by phase" + (" and device." if len(devices) > 1 else "."),
        traces=(),
        layout={"xaxis": step_axis(digest), "hovermode": "x unified"},
        asks=unit,
    )
    return _chosen(figure, groups) if devices else None


Drawn = tuple[Trace, float]
"""A trace, and the milliseconds that its axis should reach to."""


def _chosen(figure: Figure, groups: Mapping[str, Sequence[Drawn]], more: str = "") -> Figure:
    """The figure with a choice for each group of traces that has any, and an axis that suits them."""
    traces: list[Trace] = []
    choices = []
    for name, drawn in groups.items():
        if drawn:
            yaxis = axis("ms", range=[0, max(top for _, top in drawn) * 1.1])
            shows = range(len(traces), len(traces) + len(drawn))
            choices.append(Choice(name=name, shows=shows, layout={"yaxis": yaxis}))
            traces += [trace for trace, _ in drawn]
    caption = figure.caption
    if any(trace["mode"] == "lines+markers" for trace in traces):
        caption += " Dots are the steps that were measured; nothing is known between them."
    caption += more and f" {more}"
    return replace(figure, caption=caption, traces=traces, choices=choices)


def _devices(digest: Digest) -> dict[int, str]:
    """What each rank that has layer times is called."""
    names = {
        int(rank): str(device)
        for rows in digest.steps.values()
        for rank, device in zip(rows["rank"], rows["device"], strict=True)
    }
    ranks = [int(rank) for rank in np.unique(digest.layers["rank"])]
    return {rank: f"{names.get(rank, '')} rank {rank}".strip() for rank in ranks}


def _summed(rows: Rows) -> Rows:
    """Seconds of each bin summed over its phases."""
    bins, first, place = np.unique(rows["bin"], return_index=True, return_inverse=True)
    seconds = np.bincount(place, rows["seconds"], minlength=len(bins))
    return {name: column[first] for name, column in rows.items()} | {"seconds": seconds}


def _line(rows: Rows, name: str, tint: str, **shape: str) -> list[Drawn]:
    """A line over the steps; none where there are none."""
    count = len(rows["step"])
    if not count:
        return []
    mode = "lines" if count > _FEW else "lines+markers" if count > 1 else "markers"
    hover = "step %{x}: %{y:,.4~r} ms<extra>%{meta}</extra>"
    stroke = {"color": tint, "width": 1.4 if count > _FEW else 0.8, **shape}
    ends = line(rows, rows["seconds"] * 1e3) | {"meta": label(name), "marker": {"color": tint, "size": 5}}
    return [(scatter(short(name), hover, mode, line=stroke, **ends), usual_top(rows["seconds"]) or 1e-3)]


def _slow(rows: Rows, layers: Sequence[str]) -> list[Drawn]:
    """The outliers of these layers as crosses, for which no axis is made longer."""
    here = np.isin(rows["layer"].astype(str), list(layers))
    if not here.any():
        return []
    names = list(rows["layer"][here])
    colours = [palette.nth_colour(layers.index(name)) for name in names]
    crosses = scatter(
        "slow single steps",
        "step %{x}: %{y:,.4~r} ms<extra>%{customdata}</extra>",
        "markers",
        x=packed(rows["step"][here]),
        y=packed(rows["seconds"][here] * 1e3),
        customdata=[label(name) for name in names],
        marker={"symbol": "x", "size": 6, "color": colours},
    )
    return [(crosses, 0.0)]


Path = tuple[str, ...]  # of a module, part by part


def treemap(layers: Sequence[LayerSummary], paths: Mapping[str, str]) -> Figure | None:
    """The network as nested rectangles: layers in the modules that hold them; `paths` are by layer name."""
    seconds: dict[Path, float] = defaultdict(float)
    own: dict[Path, float] = defaultdict(float)  # of the layer itself: one may stand inside another
    back: dict[Path, float] = defaultdict(float)
    for layer in layers:
        name = paths.get(layer.layer) or layer.layer
        path = tuple(name.split(".")) if layer.is_module else (layer.layer,)
        own[path] += layer.total_s
        for end in range(len(path) + 1):
            seconds[path[:end]] += layer.total_s
            back[path[:end]] += layer.backward_s
    if len(seconds) < 2:
        return None
    parents = _joined(seconds, own)
    nodes = list(parents)
    ids = {node: str(place) for place, node in enumerate(nodes)}
    times = [seconds[node] for node in nodes]
    shares = [back[node] / seconds[node] for node in nodes]
    hover = "%{customdata[0]}: %{customdata[1]:,.4~r} ms, %{customdata[2]:.1f} % of the compute"
    scale = [[0, palette.colour("forward")], [0.5, "#8f8f8f"], [1, palette.colour("backward")]]
    ticks = {"tickvals": [0.2, 0.5, 0.8], "ticktext": ["≤ 20 %", "half", "≥ 80 %"]}
    return Figure(
        name="treemap",
        title="Time by module",
        caption="The area is the mean time of a module's layers in a step; a click opens a module. The "
        "colour is the share of it that is backward.",
        traces=[
            {
                "type": "treemap",
                "branchvalues": "remainder",
                "ids": list(ids.values()),
                "labels": [short(".".join(node[len(parents[node]) :])) if node else "step" for node in nodes],
                "parents": [ids[parents[node]] if node else "" for node in nodes],
                "values": [own.get(node, 0.0) * 1e3 for node in nodes],
                "text": [f"{format.milliseconds(took)} ms" for took in times],
                "customdata": [
                    [label(".".join(node) or "step"), took * 1e3, took / seconds[()] * 100, share * 100]
                    for node, took, share in zip(nodes, times, shares, strict=True)
                ],
                "hovertemplate": hover + ", %{customdata[3]:.0f} % of it backward<extra></extra>",
                "textinfo": "label+text",
                "marker": {
                    "colors": shares,
                    "colorscale": scale,
                    "cmin": 0.2,  # few layers are beyond these: all shades for those that there are
                    "cmax": 0.8,
                    "showscale": True,
                    "colorbar": {"title": {"text": "backward"}, **ticks, "thickness": 12},
                    "line": {"width": 1, "color": "#ffffff88"},
                },
                "tiling": {"pad": 2},
                "pathbar": {"visible": True},
            }
        ],
        layout={"margin": {"l": 4, "r": 4, "t": 4, "b": 4}},
        height=420,
    )


def _joined(seconds: Mapping[Path, float], own: Mapping[Path, float]) -> dict[Path, Path]:
    """The parent of each node; a module with a single child and no time of its own is replaced by it."""
    children: dict[Path, list[Path]] = defaultdict(list)
    for node in filter(None, seconds):
        children[node[:-1]].append(node)
    parents: dict[Path, Path] = {(): ()}

    def add(node: Path, parent: Path) -> None:
        while len(children[node]) == 1 and node not in own:
            node = children[node][0]
        parents[node] = parent
        for child in children[node]:
            add(child, node)

    for child in children[()]:
        add(child, ())
    return parents
