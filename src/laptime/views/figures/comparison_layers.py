"""The layers of several runs, or measured and predicted: side by side, and as ratios to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laptime.files.text import one_line
from laptime.model import LOSS_LAYER, OTHER_LAYER, Stage
from laptime.model.comparison import Comparison
from laptime.model.prediction import PredictedTime
from laptime.views import palette
from laptime.views.comparison.sides import ComparedRun, LayerComparison, largest_layers
from laptime.views.figures.comparison import NAMES_AXIS, vertical_line
from laptime.views.figures.figure import Figure, Trace, apart, axis, interval_dots, label, milliseconds

_MOST_BARS = 20
_MOST_ROWS = 40
_MOST_SIDES = 6  # runs with bars beside each other; more are told by the ratios alone
_FEWEST_SHARED = 0.2  # of all layers; of fewer, a figure would be mostly empty
_HIGHEST = 20.0  # a ratio beyond it is drawn at the frame
_FURTHEST = 200.0  # % that an error is drawn at where it is larger
_SIDES = {"measured": "host", "predicted": "forward"}


def _of_all(shown: int, every: int, whose: str = "") -> str:
    return f" The {shown} largest of {every}{whose}." if every > shown else ""


def _bars(name: str, names: Sequence[str], seconds: Sequence[float | None], colour: str) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": apart(names),
        "x": milliseconds(seconds),
        "customdata": [label(layer) for layer in names],
        "marker": {"color": colour},
        "hovertemplate": "%{customdata}: %{x} ms<extra>" + name + "</extra>",
    }


def _beside(name: str, title: str, caption: str, traces: Sequence[Trace], layers: int) -> Figure:
    return Figure(
        name=name,
        title=title,
        caption=caption,
        traces=traces,
        layout={"barmode": "group", "xaxis": axis("ms"), "yaxis": NAMES_AXIS, "bargap": 0.25},
        height=140 + max(4, layers) * (14 + 9 * len(traces)),
    )


def layers_beside(runs: Sequence[ComparedRun], stage: Stage, unit: str) -> Figure | None:
    """The largest layers of all runs, a bar for each run; a layer that a run lacks has none."""
    times = [run.layer_s(stage) for run in runs[:_MOST_SIDES]]
    names = _largest(times, _MOST_BARS)
    if not names or few_shared(runs, stage):
        return None
    traces = [
        _bars(run_name, names, [mine.get(name) for name in names], palette.nth_colour(place))
        for place, (run_name, mine) in enumerate(zip(apart([run.name for run in runs]), times, strict=False))
    ]
    every = {name for mine in times for name in mine}
    left = f" The first {_MOST_SIDES} of {len(runs)} runs." if len(runs) > _MOST_SIDES else ""
    caption = f"Mean milliseconds of a {unit} in a step, all phases together."
    caption += _of_all(len(names), len(every)) + left
    return _beside("layers", f"{unit.capitalize()}s side by side", caption, traces, len(names))


def predicted_layers_beside(layers: Sequence[LayerComparison[PredictedTime]]) -> Figure | None:
    """Each layer measured and predicted."""
    timed = [row for row in layers if row.total.largest]
    shown = largest_layers(timed, _MOST_ROWS)
    if not shown:
        return None
    names = [row.layer for row in shown]
    sides = {
        "measured": [row.total.measured for row in shown],
        "predicted": [row.total.predicted for row in shown],
    }
    traces = [_bars(side, names, seconds, palette.colour(_SIDES[side])) for side, seconds in sides.items()]
    caption = "Milliseconds of each layer in a step, all phases together, in the order of the network."
    caption += _of_all(len(shown), len(timed))
    return _beside("measured-predicted", "Layers, measured and predicted", caption, traces, len(shown))


def layer_ratios(layers: Sequence[LayerComparison[Comparison]], unit: str) -> Figure | None:
    """B over A of each layer with its interval, coloured by verdict; the largest layers, in network order."""
    known = [row for row in layers if row.total.known]
    shown = largest_layers(known, _MOST_ROWS)
    if not shown:
        return None
    labels = dict(zip((row.layer for row in shown), apart([row.layer for row in shown]), strict=True))
    traces = []
    for verdict in palette.VERDICTS:
        rows = [row for row in shown if row.total.verdict == verdict]
        if rows:
            traces.append(_dots(rows, labels, verdict))
    ends = [min(end, _HIGHEST) for row in shown for end in (row.total.low, row.total.high, row.total.ratio)]
    low, high = min(1.0, *ends), max(1.0, *ends)
    far = high / max(low, 1e-3) > 4  # a scale on which a half and a double are as far from 1
    edge = max(0.02, (high - low) * 0.06)
    reach = [np.log10(max(low, 1e-3)) - 0.05, np.log10(high) + 0.05] if far else [low - edge, high + edge]
    return Figure(
        name="layer-ratios",
        title=f"{unit.capitalize()}s of B over those of A",
        caption="Ratio of the median times with its 95 % interval: left of 1, B is faster."
        + _of_all(len(shown), len(known)),
        traces=traces,
        layout={
            "xaxis": axis("B / A", range=reach, type="log" if far else "linear"),
            # Traces are by verdict: without its order given, the axis would be sorted by trace.
            "yaxis": NAMES_AXIS | {"categoryorder": "array", "categoryarray": list(labels.values())},
            "shapes": [vertical_line(1, "host")],
        },
        height=140 + 24 * max(3, len(shown)),
    )


def _dots(rows: Sequence[LayerComparison[Comparison]], labels: Mapping[str, str], verdict: str) -> Trace:
    ends = np.array([(row.total.ratio, row.total.low, row.total.high) for row in rows])
    ratios, low, high = np.minimum(ends, _HIGHEST).T
    hover = "%{customdata[0]}: %{customdata[1]} (%{customdata[2]} to %{customdata[3]})"
    return interval_dots(
        [labels[row.layer] for row in rows],
        ratios,
        low,
        high,
        lambda values: values.round(4).tolist(),
        name=verdict,
        marker={"color": palette.colour(verdict), "size": 9},
        customdata=[
            [label(row.layer), *(f"{value:.3g}" for value in three)]
            for row, three in zip(rows, ends, strict=True)
        ],
        hovertemplate=f"{hover}<extra>{verdict}</extra>",
    )


def layer_errors(layers: Sequence[LayerComparison[PredictedTime]]) -> Figure | None:
    """How far each layer's prediction is off, in per cent; the larger the dot, the longer it takes."""
    shown = [
        (row.layer, row.total.measured, row.total.error * 100)
        for row in largest_layers([row for row in layers if row.total.largest], _MOST_ROWS)
        if row.total.measured and row.total.error is not None
    ]
    if not shown:
        return None
    names, measured, off = zip(*shown, strict=True)
    return Figure(
        name="layer-errors",
        title="Error of each layer",
        caption="Predicted over measured, less one: left of 0 the layer was predicted too fast. The larger "
        "the dot, the longer the layer takes." + _of_all(len(shown), len(layers)),
        traces=[
            {
                "type": "scatter",
                "mode": "markers",
                "y": apart(names),
                "x": [round(min(error, _FURTHEST), 2) for error in off],
                "marker": {
                    "color": [palette.colour("forward" if error < 0 else "backward") for error in off],
                    "size": [round(7 + 17 * (seconds / max(measured)) ** 0.5) for seconds in measured],
                    "opacity": 0.85,
                },
                "customdata": [
                    [label(name), f"{error:+.1f}"] for name, error in zip(names, off, strict=True)
                ],
                "hovertemplate": "%{customdata[0]}: %{customdata[1]} %<extra></extra>",
            }
        ],
        layout={
            "xaxis": axis("% off"),
            "yaxis": NAMES_AXIS,
            "showlegend": False,
            "shapes": [vertical_line(0, "host")],
        },
        height=140 + 24 * max(3, len(shown)),
    )


def layer_map(runs: Sequence[ComparedRun], stage: Stage, unit: str) -> Figure | None:
    """Every layer of every run as its ratio to the first run's: blue took less, orange more."""
    times = [run.layer_s(stage) for run in runs]
    names = [name for name in _largest(times[:1], _MOST_ROWS) if any(name in mine for mine in times[1:])]
    if not names or len(runs) < 3 or few_shared(runs, stage):
        return None
    others = [place for place in range(1, len(runs)) if times[place]]
    ratios = [
        [times[place][name] / times[0][name] if name in times[place] else None for place in others]
        for name in names
    ]
    scale = [[0, palette.colour("forward")], [0.5, "#e8e8e8"], [1, palette.colour("backward")]]
    return Figure(
        name="layer-map",
        title=f"{unit.capitalize()}s against the baseline",
        caption=f"Mean time of each {unit} over its time in {one_line(runs[0].name)}: 2 is twice as long. "
        f"A {unit} that a run lacks is left blank. The {len(names)} largest of the baseline.",
        traces=[
            {
                "type": "heatmap",
                "x": apart([runs[place].name for place in others]),
                "y": apart(names),
                "z": [
                    [round(float(np.log2(ratio)), 4) if ratio else None for ratio in row] for row in ratios
                ],
                "text": [["" if ratio is None else f"{ratio:.3g}" for ratio in row] for row in ratios],
                "zmin": -1,
                "zmax": 1,
                "colorscale": scale,
                "colorbar": {
                    "tickvals": [-1, 0, 1],
                    "ticktext": ["half", "same", "double"],
                    "thickness": 12,
                },
                "texttemplate": "%{text}" if len(others) <= 12 else "",
                "textfont": {"color": "#1d2329"},
                "hoverongaps": False,
                "hovertemplate": "%{y}: %{text} times<extra>%{x}</extra>",
                "xgap": 2,
                "ygap": 2,
            }
        ],
        layout={"xaxis": {"type": "category", "automargin": True, "tickangle": -30}, "yaxis": NAMES_AXIS},
        height=170 + 24 * max(3, len(names)),
    )


def few_shared(runs: Sequence[ComparedRun], stage: Stage) -> tuple[int, int] | None:
    """How many layers two runs or more have, and of how many, where these are too few to draw together."""
    modules = [{name for name in run.layer_s(stage) if name not in (LOSS_LAYER, OTHER_LAYER)} for run in runs]
    every = set().union(*modules)
    shared = {name for name in every if sum(name in mine for mine in modules) > 1}
    timed = sum(bool(mine) for mine in modules)
    return (len(shared), len(every)) if timed > 1 and len(shared) < _FEWEST_SHARED * len(every) else None


def _largest(times: Sequence[Mapping[str, float]], most: int) -> list[str]:
    """Names by the most that any run spent in them."""
    longest: dict[str, float] = {}
    for mine in times:
        for name, seconds in mine.items():
            longest[name] = max(seconds, longest.get(name, 0.0))
    return sorted(longest, key=lambda name: -longest[name])[:most]
