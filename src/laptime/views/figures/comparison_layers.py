"""The layers of several runs: side by side, and as ratios to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from laptime.files.text import one_line
from laptime.model import Stage
from laptime.views.figures.comparison import NAMES_AXIS, VERDICTS, Compared
from laptime.views.figures.figure import COLOURS, Figure, Trace, apart, axis, colour, label, milliseconds

_MOST_BARS = 20
_MOST_RATIOS = 40
_MOST_SIDES = 6  # runs with bars beside each other; more are told by the ratios alone
_FEWEST_SHARED = 0.2  # of all layers; of fewer, a figure would be mostly empty
_HIGHEST = 20.0  # a ratio beyond it is drawn at the frame

Row = Mapping[str, Any]


def layers_beside(runs: Sequence[Compared], stage: Stage, unit: str) -> Figure | None:
    """The largest layers of all runs, a bar for each run; a layer that a run lacks has none."""
    times = [_totals(run, stage) for run in runs[:_MOST_SIDES]]
    names = _largest(times, _MOST_BARS)
    if not names or unlike(runs, stage):
        return None
    labels = apart(names)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": run_name,
            "y": labels,
            "x": milliseconds(mine.get(name, np.nan) for name in names),
            "customdata": [label(name) for name in names],
            "marker": {"color": colour(place)},
            "hovertemplate": "%{customdata}: %{x} ms<extra>" + run_name + "</extra>",
        }
        for place, (run_name, mine) in enumerate(zip(apart([run.name for run in runs]), times, strict=False))
    ]
    every = {name for mine in times for name in mine}
    more = f" The {len(names)} largest of {len(every)}." if len(every) > len(names) else ""
    left = f" The first {_MOST_SIDES} of {len(runs)} runs." if len(runs) > _MOST_SIDES else ""
    return Figure(
        name="layers",
        title=f"{unit.capitalize()}s side by side",
        caption=f"Median milliseconds of a {unit} in a step, all phases together.{more}{left}",
        traces=traces,
        layout={"barmode": "group", "xaxis": axis("ms"), "yaxis": NAMES_AXIS, "bargap": 0.25},
        height=140 + max(4, len(names)) * (14 + 9 * len(traces)),
    )


def layer_ratios(rows: Sequence[Row], unit: str) -> Figure | None:
    """B over A of each layer with its interval, coloured by verdict; the largest layers, in network order.

    `rows` are the layers of a comparison.
    """
    known = [row for row in rows if row["total"] and row["total"]["ratio"] is not None]
    if not known:
        return None
    kept = sorted(known, key=lambda row: -_weight(row))[:_MOST_RATIOS]
    kept = [row for row in known if any(row is one for one in kept)]
    labels = dict(zip((row["layer"] for row in kept), apart([row["layer"] for row in kept]), strict=True))
    traces = [
        _dots([row for row in kept if row["total"]["verdict"] == verdict], labels, str(verdict), tint)
        for verdict, tint in VERDICTS.items()
        if any(row["total"]["verdict"] == verdict for row in kept)
    ]
    ends = [min(row["total"][end], _HIGHEST) for row in kept for end in ("low", "high", "ratio")]
    low, high = min(1.0, *ends), max(1.0, *ends)
    far = high / max(low, 1e-3) > 4  # a scale on which a half and a double are as far from 1
    reach = [np.log10(max(low, 1e-3)) - 0.05, np.log10(high) + 0.05] if far else _around(low, high)
    more = f" The {len(kept)} largest of {len(known)}." if len(known) > len(kept) else ""
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 1, "x1": 1, "layer": "below"}
    return Figure(
        name="layer-ratios",
        title=f"{unit.capitalize()}s of B over those of A",
        caption=f"Ratio of the median times with its 95 % interval: left of 1, B is faster.{more}",
        traces=traces,
        layout={
            "xaxis": axis("B / A", range=reach, type="log" if far else "linear"),
            # Traces are by verdict: without its order given, the axis would be sorted by trace.
            "yaxis": NAMES_AXIS | {"categoryorder": "array", "categoryarray": list(labels.values())},
            "shapes": [line | {"line": {"color": COLOURS["host"], "width": 1.5}}],
        },
        height=140 + 24 * max(3, len(kept)),
    )


def _around(low: float, high: float) -> list[float]:
    edge = max(0.02, (high - low) * 0.06)
    return [low - edge, high + edge]


def _dots(rows: Sequence[Row], labels: Mapping[str, str], verdict: str, tint: str) -> Trace:
    ratios = np.array([row["total"]["ratio"] for row in rows])
    low, high = (np.array([row["total"][end] for row in rows]) for end in ("low", "high"))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": verdict,
        "y": [labels[row["layer"]] for row in rows],
        "x": [round(float(ratio), 4) for ratio in np.minimum(ratios, _HIGHEST)],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [round(float(one), 4) for one in np.maximum(high - ratios, 0)],
            "arrayminus": [round(float(one), 4) for one in np.maximum(ratios - low, 0)],
            "thickness": 1.4,
        },
        "marker": {"color": tint, "size": 9},
        "customdata": [
            [label(row["layer"]), *(f"{row['total'][key]:.3g}" for key in ("ratio", "low", "high"))]
            for row in rows
        ],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]} (%{customdata[2]} to %{customdata[3]})"
        f"<extra>{verdict}</extra>",
    }


def layer_map(runs: Sequence[Compared], stage: Stage, unit: str) -> Figure | None:
    """Every layer of every run as its ratio to the first run's: blue took less, orange more."""
    times = [_totals(run, stage) for run in runs]
    names = [name for name in _largest(times[:1], _MOST_RATIOS) if any(name in one for one in times[1:])]
    if not names or len(runs) < 3 or unlike(runs, stage):
        return None
    others = [place for place in range(1, len(runs)) if times[place]]
    ratios = [
        [times[place][name] / times[0][name] if name in times[place] else None for place in others]
        for name in names
    ]
    scale = [[0, COLOURS["forward"]], [0.5, "#e8e8e8"], [1, COLOURS["backward"]]]
    columns = apart([runs[place].name for place in others])
    return Figure(
        name="layer-map",
        title=f"{unit.capitalize()}s against the baseline",
        caption=f"Median time of each {unit} over its time in {one_line(runs[0].name)}: 2 is twice as long. "
        f"A {unit} that a run lacks is left blank. The {len(names)} largest of the baseline.",
        traces=[
            {
                "type": "heatmap",
                "x": columns,
                "y": apart(names),
                "z": [[_log(ratio) for ratio in row] for row in ratios],
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


def unlike(runs: Sequence[Compared], stage: Stage) -> tuple[int, int] | None:
    """How many layers two runs or more have, and of how many, where these are too few to draw together."""
    found = [set(_modules(run, stage)) for run in runs]
    every = set().union(*found)
    shared = {name for name in every if sum(name in one for one in found) > 1}
    timed = sum(bool(one) for one in found)
    return (len(shared), len(every)) if timed > 1 and len(shared) < _FEWEST_SHARED * len(every) else None


def _modules(run: Compared, stage: Stage) -> list[str]:
    part = run.found[stage.value]
    return [one["layer"] for one in part["layers"] if one["total_s"] and one["module"]] if part else []


def _log(ratio: float | None) -> float | None:
    return None if not ratio else round(float(np.log2(ratio)), 4)


def _totals(run: Compared, stage: Stage) -> dict[str, float]:
    part = run.found[stage.value]
    return {one["layer"]: one["total_s"] for one in part["layers"] if one["total_s"]} if part else {}


def _largest(times: Sequence[Mapping[str, float]], most: int) -> list[str]:
    """Names by the most that any run spent in them."""
    longest: dict[str, float] = {}
    for mine in times:
        for name, seconds in mine.items():
            longest[name] = max(seconds, longest.get(name, 0.0))
    return sorted(longest, key=lambda name: -longest[name])[:most]


def _weight(row: Row) -> float:
    return max(row["total"]["a"] or 0.0, row["total"]["b"] or 0.0)
