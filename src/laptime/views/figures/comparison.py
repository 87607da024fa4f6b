"""Several runs side by side: their step times with intervals, their books, and their steps one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laptime.model import ACCOUNTS, Stage
from laptime.model.comparison import block_medians
from laptime.model.statistics import CONFIDENCE
from laptime.runs.select import Samples
from laptime.views import palette
from laptime.views.figures.figure import Choice, Figure, Trace, apart, axis, label, milliseconds, packed
from laptime.views.figures.steps import frame, of, step_axis
from laptime.views.step_bins import Digest
from laptime.views.step_series import Series

NAMES_AXIS = {"autorange": "reversed", "automargin": True, "type": "category"}
_BOX = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run of several: what is said of it, and what is drawn of it."""

    name: str  # unlike the others'
    found: Mapping[str, Any]  # of `content`
    seen: Digest
    timed: Series | None  # its steps of the stage that is compared; None where it has none

    @property
    def wall_s(self) -> Samples:
        """Seconds of each step that counts."""
        return np.empty(0) if self.timed is None else self.timed.wall_s[~np.isnan(self.timed.wall_s)]


def median_interval(wall_s: Samples) -> tuple[float, float, float]:
    """The median of a run's steps with its 95 % interval, drawn in blocks since neighbours are alike."""
    drawn = block_medians(wall_s, np.random.default_rng(0))
    low, high = np.quantile(drawn, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(np.median(wall_s)), float(low), float(high)


def step_intervals(runs: Sequence[Compared], noun: str) -> Figure | None:
    """A dot for each run with the interval of its median; a line through the first, which is the baseline."""
    shown = [(name, run) for name, run in zip(_names(runs), runs, strict=True) if run.wall_s.size]
    if not shown:
        return None
    found = [median_interval(run.wall_s) for _, run in shown]
    medians, low, high = (np.array(column) for column in zip(*found, strict=True))
    trace = {
        "type": "scatter",
        "mode": "markers",
        "y": [name for name, _ in shown],
        "x": milliseconds(medians),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": milliseconds(np.maximum(high - medians, 0)),
            "arrayminus": milliseconds(np.maximum(medians - low, 0)),
            "color": palette.colour("host"),
        },
        "marker": {"color": [palette.nth_colour(_place(runs, run)) for _, run in shown], "size": 11},
        "customdata": [[label(run.name), run.wall_s.size] for _, run in shown],
        "hovertemplate": "%{customdata[0]}: %{x} ms, %{customdata[1]:,} steps<extra></extra>",
    }
    first = shown[0][1] is runs[0]
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    at = {"x0": float(medians[0]) * 1e3, "x1": float(medians[0]) * 1e3}
    dotted = {"line": {"color": palette.nth_colour(0), "width": 1.5, "dash": "dot"}}
    return Figure(
        name="step-intervals",
        title=f"A {noun} step".replace("A  step", "A step") + " of each run",
        caption="Median with its 95 % interval over steps"
        + ("; the dotted line is the baseline." if first else ".")
        + " Runs of the same code differ by more than such an interval.",
        traces=[trace],
        layout={
            "xaxis": axis("ms", rangemode="tozero"),
            "yaxis": NAMES_AXIS,
            "showlegend": False,
            "shapes": [line | at | dotted] if first else [],
        },
        height=130 + 30 * max(2, len(shown)),
    )


def spreads(runs: Sequence[Compared]) -> Figure | None:
    """A box for each run: the middle half of its steps, and whiskers from the 5th to the 95th percentile."""
    traces: list[Trace] = []
    for name, run in zip(_names(runs), runs, strict=True):
        if run.wall_s.size:
            low, q1, median, q3, high = (float(q) * 1e3 for q in np.quantile(run.wall_s, _BOX))
            traces.append(
                {
                    "type": "box",
                    "orientation": "h",
                    "name": name,
                    "y": [name],
                    "lowerfence": [low],
                    "q1": [q1],
                    "median": [median],
                    "q3": [q3],
                    "upperfence": [high],
                    "marker": {"color": palette.nth_colour(_place(runs, run))},
                }
            )
    if not traces:
        return None
    return Figure(
        name="spreads",
        title="Spread of step times",
        caption="The box is the middle half of a run's steps with their median, the whiskers reach from the "
        "5th to the 95th percentile. The first step and traced steps are left out.",
        traces=traces,
        layout={"xaxis": axis("ms", rangemode="tozero"), "yaxis": NAMES_AXIS, "showlegend": False},
        height=130 + 34 * max(2, len(traces)),
    )


def books_beside(runs: Sequence[Compared], stage: Stage) -> Figure | None:
    """The accounts of each run's step, stacked: in milliseconds, or in shares of the step."""
    parts = {
        name: run.found[stage.value]
        for name, run in zip(_names(runs), runs, strict=True)
        if run.found[stage.value] and run.found[stage.value]["accounted"]
    }
    if not parts:
        return None
    traces: list[Trace] = []
    scales: dict[str, list[int]] = {"ms": [], "%": []}
    means = {name: _means(part) for name, part in parts.items()}
    for account in ACCOUNTS:
        if not any(one.get(account.value) for one in means.values()):
            continue
        seconds = np.array([one.get(account.value, 0.0) for one in means.values()])
        wholes = np.array([sum(one.values()) or 1.0 for one in means.values()])
        for unit, values in (("ms", seconds * 1e3), ("%", seconds / wholes * 100)):
            scales[unit].append(len(traces))
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": account.value,
                    "y": list(parts),
                    "x": [float(f"{value:.4g}") for value in values],
                    "marker": {"color": palette.colour(account.value)},
                    "hovertemplate": "%{y}: %{x:.4g} " + unit + f"<extra>{account.value}</extra>",
                }
            )
    return Figure(
        name="books",
        title="The books side by side",
        caption="Mean milliseconds of every account in a step; they add up to the wall time.",
        traces=traces,
        layout={"barmode": "stack", "yaxis": NAMES_AXIS, "legend": {"traceorder": "normal"}},
        height=150 + 34 * max(2, len(parts)),
        choices=[
            Choice(name="milliseconds", shows=scales["ms"], layout={"xaxis": axis("ms")}),
            Choice(name="shares of the step", shows=scales["%"], layout={"xaxis": axis("% of the step")}),
        ],
        asks="in",
    )


def _means(part: Mapping[str, Any]) -> dict[str, float]:
    """Mean seconds by account; idle time is left out where it is known from traced steps alone."""
    return {
        one["account"]: max(0.0, float(one["seconds"]["mean"]))
        for one in part["accounts"]
        if one["seconds"] and not one["traced"]
    }


def step_times(runs: Sequence[Compared], stage: Stage) -> Figure | None:
    """The step time over the training, a line for each run: the median of neighbouring steps."""
    traces: list[Trace] = []
    highest = [0.0]
    for place, (name, run) in enumerate(zip(_names(runs), runs, strict=True)):
        rows = of(run.seen.steps, stage=stage.value)
        if not len(rows["step"]):
            continue
        rows = of(rows, rank=rows["rank"].min())
        reach = frame(rows).get("range")
        highest.append(reach[1] if reach else float(np.nanmax(rows["median_s"])) * 1.15e3)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(rows["step"]) > 1 else "markers",
                "name": name,
                "x": packed(rows["step"]),
                "y": packed(rows["median_s"] * 1e3),
                "line": {"color": palette.nth_colour(place), "width": 1.5},
                "hovertemplate": "step %{x}: %{y:,.4~r} ms",
            }
        )
    if not traces:
        return None
    axes = [axis("step"), *(step_axis(run.seen) for run in runs)]  # one validation is enough to say so
    return Figure(
        name="step-times",
        title="Step time over the training",
        caption="Median of neighbouring steps, of the lowest rank. A double click shows what reaches out of "
        "the frame, such as first steps.",
        traces=traces,
        layout={
            "xaxis": next((one for one in axes if one != axes[0]), axes[0]),
            "yaxis": axis("ms", range=[0, max(highest) or 1.0]),
            "hovermode": "closest",
        },
    )


def profiling_cost(found: Mapping[str, Any], names: Sequence[str]) -> Figure | None:
    """The thesis' first figure: a step with the profiler and one without, and what it adds.

    `found` is `profiling` of a comparison, `names` are those of its A and B.
    """
    if found["slowdown"] is None:
        return None
    walls = (found["a"], found["b"])  # of `profiling`, a is without and b with, whatever the sides are called
    sides = [dict(zip("ab", names, strict=True))[found[key]] for key in ("without", "with")]
    labels = [f"{how} profiling" for how in ("without", "with")]
    added = f"{found['slowdown'] * 100:+.1f} %"
    return Figure(
        name="profiling-cost",
        title="With against without profiling",
        caption=f"Median step: {added} with profiling. In the thesis the profiler added 245 % (AlexNet) "
        "and 235 % (VGG-11), drawn dotted for a step of the unprofiled length.",
        traces=[
            {
                "type": "bar",
                "orientation": "h",
                "y": labels,
                "x": milliseconds(walls),
                "text": ["", added],
                "textposition": "auto",
                "customdata": [label(name) for name in sides],
                "marker": {"color": [palette.colour("host"), palette.colour("instrument")]},
                "hovertemplate": "%{customdata}: %{x} ms<extra></extra>",
            }
        ],
        layout={
            "xaxis": axis("ms", rangemode="tozero"),
            "yaxis": NAMES_AXIS,
            "showlegend": False,
            "shapes": [_thesis_line(walls[0] * 3.45e3)],
            "annotations": [
                {"x": walls[0] * 3.45e3, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
                | {"text": "the thesis: +245 %"}
            ],
            "margin": {"t": 30},
        },
        height=210,
    )


def _thesis_line(at_ms: float) -> dict[str, Any]:
    line = {"color": palette.colour("unexplained"), "width": 1.5, "dash": "dot"}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at_ms, "x1": at_ms, "line": line}


def _names(runs: Sequence[Compared]) -> list[str]:
    return apart([run.name for run in runs])


def _place(runs: Sequence[Compared], wanted: Compared) -> int:
    """The same run has the same colour in every figure."""
    return next(place for place, run in enumerate(runs) if run is wanted)
