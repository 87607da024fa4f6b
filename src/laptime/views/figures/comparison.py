"""Several runs side by side: step times with intervals, step breakdowns, and steps one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from laptime.model import ACCOUNTS, Stage
from laptime.model.comparison import block_medians
from laptime.model.statistics import CONFIDENCE
from laptime.runs.select import Samples
from laptime.views import palette
from laptime.views.comparison.several import SeveralRuns
from laptime.views.comparison.sides import ComparedRun, ProfilingCost
from laptime.views.figures.figure import (
    Choice,
    Figure,
    Trace,
    apart,
    axis,
    interval_dots,
    label,
    milliseconds,
    packed,
)
from laptime.views.figures.steps import frame, of, step_axis
from laptime.views.step_bins import Digest

NAMES_AXIS = {"autorange": "reversed", "automargin": True, "type": "category"}
_BOX = (0.05, 0.25, 0.5, 0.75, 0.95)


def vertical_line(at: float, word: str, **more: Any) -> dict[str, Any]:
    """A line over the whole height of a figure."""
    line = {"color": palette.colour(word), "width": 1.5, **more}
    return {
        "type": "line",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": at,
        "x1": at,
        "layer": "below",
        "line": line,
    }


def _shown(view: SeveralRuns) -> list[tuple[int, str, ComparedRun, Samples]]:
    """Runs that have steps: their place, which gives their colour, and their seconds by step."""
    names = apart([run.name for run in view.runs])
    numbered = zip(range(len(names)), names, view.runs, strict=True)
    return [
        (place, name, run, wall) for place, name, run in numbered if (wall := run.wall_s(view.stage)).size
    ]


def median_interval(wall_s: Samples) -> tuple[float, float, float]:
    """The median of a run's steps with its 95 % interval, drawn in blocks since neighbours are alike."""
    medians = block_medians(wall_s, np.random.default_rng(0))
    low, high = np.quantile(medians, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(np.median(wall_s)), float(low), float(high)


def step_intervals(view: SeveralRuns, noun: str) -> Figure | None:
    """A dot for each run with the interval of its median; a line through the first, which is the baseline."""
    shown = _shown(view)
    if not shown:
        return None
    intervals = [median_interval(wall) for _, _, _, wall in shown]
    medians, low, high = (np.array(column) for column in zip(*intervals, strict=True))
    trace = interval_dots(
        [name for _, name, _, _ in shown],
        medians,
        low,
        high,
        milliseconds,
        marker={"color": [palette.nth_colour(place) for place, *_ in shown], "size": 11},
        customdata=[[label(run.name), wall.size] for _, _, run, wall in shown],
        hovertemplate="%{customdata[0]}: %{x} ms, %{customdata[1]:,} steps<extra></extra>",
    )
    first = shown[0][0] == 0
    line = vertical_line(float(medians[0]) * 1e3, "host", color=palette.nth_colour(0), dash="dot")
    return Figure(
        name="step-intervals",
        title=f"A {noun} step of each run" if noun else "A step of each run",
        caption="Median with its 95 % interval over steps"
        + ("; the dotted line is the baseline." if first else ".")
        + " Runs of the same code differ by more than such an interval.",
        traces=[trace],
        layout={
            "xaxis": axis("ms", rangemode="tozero"),
            "yaxis": NAMES_AXIS,
            "showlegend": False,
            "shapes": [line] if first else [],
        },
        height=130 + 30 * max(2, len(shown)),
    )


def spreads(view: SeveralRuns) -> Figure | None:
    """A box for each run: the middle half of its steps, and whiskers from the 5th to the 95th percentile."""
    traces: list[Trace] = []
    for place, name, _, wall in _shown(view):
        low, q1, median, q3, high = (float(quantile) * 1e3 for quantile in np.quantile(wall, _BOX))
        box = {"lowerfence": [low], "q1": [q1], "median": [median], "q3": [q3], "upperfence": [high]}
        shape = {"type": "box", "orientation": "h", "name": name, "y": [name]}
        traces.append({**shape, **box, "marker": {"color": palette.nth_colour(place)}})
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


def breakdowns(view: SeveralRuns) -> Figure | None:
    """The accounts of each run's step, stacked: in milliseconds, or in shares of the step."""
    names = apart([run.name for run in view.runs])
    accounts = [run.account_s(view.stage) for run in view.runs]
    means = {name: mine for name, mine in zip(names, accounts, strict=True) if mine}
    traces: list[Trace] = []
    scales: dict[str, list[int]] = {"ms": [], "%": []}
    wholes = np.array([sum(mine.values()) or 1.0 for mine in means.values()])
    for account in ACCOUNTS:
        seconds = np.array([mine.get(account, 0.0) for mine in means.values()])
        if not seconds.any():
            continue
        for unit, values in (("ms", seconds * 1e3), ("%", seconds / wholes * 100)):
            scales[unit].append(len(traces))
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": account.value,
                    "y": list(means),
                    "x": [float(f"{value:.4g}") for value in values],
                    "marker": {"color": palette.colour(account.value)},
                    "hovertemplate": "%{y}: %{x:.4g} " + unit + f"<extra>{account.value}</extra>",
                }
            )
    if not traces:
        return None
    return Figure(
        name="books",
        title="Step breakdowns side by side",
        caption="Mean milliseconds of every account in a step; they add up to the wall time.",
        traces=traces,
        layout={"barmode": "stack", "yaxis": NAMES_AXIS, "legend": {"traceorder": "normal"}},
        height=150 + 34 * max(2, len(means)),
        choices=[
            Choice(name="milliseconds", shows=scales["ms"], layout={"xaxis": axis("ms")}),
            Choice(name="shares of the step", shows=scales["%"], layout={"xaxis": axis("% of the step")}),
        ],
        asks="in",
    )


def step_times(digests: Sequence[tuple[str, Digest]], stage: Stage) -> Figure | None:
    """The step time over the training, a line for each run: the median of neighbouring steps."""
    traces: list[Trace] = []
    highest = [0.0]
    names = apart([name for name, _ in digests])
    for place, (name, (_, digest)) in enumerate(zip(names, digests, strict=True)):
        rows = of(digest.steps, stage=stage.value)
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
    plain = axis("step")
    axes = [step_axis(digest) for _, digest in digests]  # one run with validation is enough to say so
    return Figure(
        name="step-times",
        title="Step time over the training",
        caption="Median of neighbouring steps, of the lowest rank. A double click shows what reaches out of "
        "the frame, such as first steps.",
        traces=traces,
        layout={
            "xaxis": next((each for each in axes if each != plain), plain),
            "yaxis": axis("ms", range=[0, max(highest) or 1.0]),
            "hovermode": "closest",
        },
    )


def profiling_cost(cost: ProfilingCost, names: Sequence[str]) -> Figure | None:
    """A step with the profiler and one without, and what it adds. `names` are those of A and B."""
    if math.isnan(cost.slowdown):
        return None
    sides = list(names) if cost.profiled == "b" else list(reversed(names))  # without profiling, with it
    added = f"{cost.slowdown * 100:+.1f} %"
    return Figure(
        name="profiling-cost",
        title="With and without profiling",
        caption=f"Median step: {added} with profiling.",
        traces=[
            {
                "type": "bar",
                "orientation": "h",
                "y": ["without profiling", "with profiling"],
                "x": milliseconds([cost.times.a, cost.times.b]),
                "text": ["", added],
                "textposition": "auto",
                "customdata": [label(name) for name in sides],
                "marker": {"color": [palette.colour("host"), palette.colour("instrument")]},
                "hovertemplate": "%{customdata}: %{x} ms<extra></extra>",
            }
        ],
        layout={"xaxis": axis("ms", rangemode="tozero"), "yaxis": NAMES_AXIS, "showlegend": False},
        height=210,
    )
