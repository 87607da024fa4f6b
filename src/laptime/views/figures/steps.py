"""Steps: where the time of one goes, all of them over the training, and how much of them is explained."""

from __future__ import annotations

from typing import Any

import numpy as np

from laptime.model import ACCOUNTS, COMPUTE, Statistics
from laptime.views import palette
from laptime.views.figures.figure import (
    Figure,
    Trace,
    axis,
    bars,
    box,
    label,
    layout,
    line,
    milliseconds,
    packed,
    scatter,
    step_axis,
    usual_top,
    vertical,
)
from laptime.views.format import figures
from laptime.views.run_view import RunView
from laptime.views.step_bins import Column, Digest, Rows, histogram, of

_COMPUTING = "compute accounts"
_EDGE = 0.01  # of a step
_DUST = 1e-6  # of the time: what rounding leaves of sums
_FEWEST_BARE = 5  # bare steps; fewer say nothing


def books(view: RunView) -> Figure:
    """The step breakdown: a bar for a training step and one for a validation step, in mean milliseconds."""
    parts = [part for part in (view.validation, view.train) if part is not None and part.accounted]
    traces = []
    for account in ACCOUNTS:
        rows = [part.accounts[account] for part in parts]
        # Idle time that is known from traced steps alone stands beside the accounts.
        means = [0.0 if row.traced or not row.seconds.count else max(0.0, row.seconds.mean) for row in rows]
        if any(mean > _DUST * part.wall_s.mean for mean, part in zip(means, parts, strict=True)):
            steps = [f"{part.noun or 'a'} step" for part in parts]
            ms = [mean * 1e3 for mean in means]
            traces.append(bars(account.value, steps, ms, palette.colour(account.value), "%{x:,.4~r} ms"))
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    return Figure(
        name="books",
        title="The closed books of a step",
        caption="Mean milliseconds of every account. They add up to the wall time; what no account explains "
        "would be drawn as `unexplained`.",
        traces=traces,
        layout=layout(axis("ms"), {"automargin": True}, barmode="stack", legend=legend),
        height=160 + 60 * len(parts),
    )


def frame(rows: Rows, column: str = "median_s") -> dict[str, Any]:
    """An axis in ms whose range ignores the warm-up step and single slow steps."""
    values = rows[column][~np.isnan(rows[column])]
    if values.size < 5:
        return axis("ms", rangemode="tozero")
    return axis("ms", range=[0, usual_top(values) * 1.15])


def _beyond(rows: Rows, column: str = "median_s") -> str:
    """A sentence on points beyond the axis range and the largest of them; empty where there are none."""
    values = rows[column] * 1e3
    reach = frame(rows, column).get("range")
    out = int(np.count_nonzero(values > reach[1])) if reach else 0
    if not out:
        return ""
    most = figures(float(np.nanmax(values)))
    where = "one place" if out == 1 else f"{out} places"
    return f" The line leaves the frame in {where}, up to {most} ms: a double click shows all of it."


def _lowest_rank(digest: Digest) -> Rows:
    """The steps of the lowest rank; none where they are too few for a line."""
    rows = digest.steps[digest.stage]
    rows = of(rows, rank=rows["rank"].min(initial=2**31 - 1))
    return rows if len(rows["step"]) > 1 else of(rows, rank=-1)


def step_time(digest: Digest) -> Figure:
    """The median of neighbouring steps with the middle half of them, and the steps far beyond."""
    rows = digest.steps[digest.stage]
    traces: list[Trace] = []
    yaxis = frame(rows)
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    for place, rank in enumerate(ranks):
        mine = of(rows, rank=rank)
        tint = palette.nth_colour(place)
        device = label(str(mine["device"][0]))
        name = device if len(ranks) == 1 else f"{device} rank {rank}"
        band = {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": tint + "44"}
        group = {"legendgroup": f"{rank}", "type": "scatter"}
        mode = "lines" if len(mine["step"]) > 1 else "markers"
        median = line(mine, mine["median_s"] * 1e3) | {"line": {"color": tint, "width": 1.6}}
        traces += [
            {**group, **_band(mine), **band, "hoverinfo": "skip", "showlegend": False},
            scatter(name, "step %{x}: %{y:,.4~r} ms", mode, **median) | group,
        ]
    top = yaxis.get("range", [0, np.inf])[1]
    for traced, title in ((False, "slow step"), (True, "kernel-traced step")):
        mine = of(digest.slow_steps, traced=traced)
        if len(mine["step"]):
            walls = mine["wall_s"] * 1e3
            marker = {
                "color": palette.colour("idle" if traced else "unexplained"),
                "size": 7,
                "symbol": ["triangle-up" if wall > top else "x" for wall in walls],
            }
            ends = {"x": packed(mine["step"]), "y": packed(np.minimum(walls, top * 0.98))}
            hover = "step %{x}: %{customdata} ms<extra>" + title + "</extra>"
            times = milliseconds(mine["wall_s"])
            traces.append(scatter(title, hover, "markers", **ends, customdata=times, marker=marker))
    return Figure(
        name="step-time",
        title="Step time over the training",
        caption="Median of neighbouring steps, the middle half of them shaded; steps far beyond their "
        "neighbours are marked one by one, with a triangle where they reach out of the frame."
        + _beyond(rows),
        traces=traces,
        # Plotly turns the legend around where anything is filled.
        layout=layout(step_axis(digest), yaxis, hovermode="closest", legend={"traceorder": "normal"}),
    )


def _band(rows: Rows) -> Trace:
    """The middle half of the steps as one closed shape between two gaps."""
    x: list[float] = []
    y: list[float] = []
    for part in np.split(np.arange(len(rows["step"])), np.flatnonzero(rows["after_gap"])):
        x += [*rows["step"][part], *rows["step"][part][::-1], np.nan]
        y += [*rows["q1_s"][part], *rows["q3_s"][part][::-1], np.nan]
    return {"x": packed(np.array(x)), "y": packed(np.array(y) * 1e3)}


def _stacked(rows: Rows, values: Column) -> Trace:
    """A stacked area, set to 0 where steps of the other stage lie between: Plotly's stacks have no gaps."""
    gaps = np.flatnonzero(rows["after_gap"])
    edges = np.stack([rows["step"][gaps - 1] + _EDGE, rows["step"][gaps] - _EDGE], axis=1).ravel()
    twice = np.repeat(gaps, 2)
    return {
        "x": packed(np.insert(rows["step"].astype(float), twice, edges)),
        "y": packed(np.insert(np.asarray(values, dtype=float), twice, 0.0)),
    }


def accounts_over_steps(digest: Digest) -> Figure:
    """Where a step's time went, from the first step to the last, of the lowest rank."""
    rows = _lowest_rank(digest)
    traces = []
    for account in ACCOUNTS:
        if np.nansum(rows[account.column]) > _DUST * np.nansum(rows["mean_s"]):
            area = _stacked(rows, np.nan_to_num(rows[account.column]).clip(0) * 1e3)
            edge = {"width": 0.5, "color": palette.colour(account.value)}
            traces.append(scatter(account.value, "%{y:,.4~r} ms", stackgroup="books", **area, line=edge))
    return Figure(
        name="accounts",
        title="The books over the training",
        caption="Mean of every account among neighbouring steps; the top of the stack is the wall time."
        + _beyond(rows, "mean_s"),
        traces=traces,
        layout=layout(step_axis(digest), frame(rows, "mean_s"), hovermode="x unified"),
    )


def closure(digest: Digest) -> list[Figure]:
    """How long an iteration took, how much of that is charged to something, and the share that is not."""
    rows = _lowest_rank(digest)
    if not len(rows["step"]) or not len(digest.layers["layer"]):
        return []
    # Seconds in the accounts that layers and the loss compute in, and seconds in any account.
    compute = np.sum([np.nan_to_num(rows[account.column]) for account in COMPUTE], axis=0)
    if not np.isnan(rows["idle_s"]).all():  # on traced steps idle time was taken out of the phases
        compute = compute + np.nan_to_num(rows["idle_s"]) - np.nan_to_num(rows["bubble_s"])
    wall, explained = rows["mean_s"], rows["mean_s"] - rows["unexplained_s"]
    lines = {
        "total (wall time)": (wall, "#6f7d8c", "solid"),
        "explained by accounts": (explained, palette.colour("data_wait"), "dot"),
        _COMPUTING: (compute, palette.colour("forward"), "solid"),
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = {
            "in no account (unexplained)": ((wall - explained) / wall, "unexplained"),
            f"not in {_COMPUTING}": ((wall - compute) / wall, "forward"),
        }
    total = Figure(
        name="total-profiled",
        title="Total against profiled time",
        caption="Of an iteration: its wall time, what the accounts explain (the two lie on each other where "
        "the books close), and its compute accounts: forward, loss, backward and update, which marks divide "
        "among the layers." + _beyond(rows, "mean_s"),
        traces=[
            scatter(name, "%{y:,.4~r} ms", **line(rows, values * 1e3))
            | {"line": {"color": tint, "dash": dash, "width": 1.6}}
            for name, (values, tint, dash) in lines.items()
        ],
        layout=layout(step_axis(digest), frame(rows, "mean_s"), hovermode="x unified"),
    )
    error = Figure(
        name="percentage-error",
        title="Percentage error",
        caption="How far what is charged falls short of the iteration's time. Not in compute accounts: data, "
        "copies, communication, Python, the recorder.",
        traces=[
            scatter(name, "%{y:.2f} %", **line(rows, np.where(np.abs(share) < 1e-9, 0.0, share) * 100))
            | {"line": {"color": palette.colour(tint), "width": 1.6}}
            for name, (share, tint) in shares.items()
        ],
        layout=layout(step_axis(digest), axis("% of the iteration", range=[-2, 100]), hovermode="x unified"),
    )
    return [total, error]


def spread(digest: Digest, wall: Statistics | None) -> Figure | None:
    """How often a step took how long, with the median and the middle half."""
    if wall is None or not wall.mean or wall.count < 2:
        return None
    low, high, counts = histogram(digest.wall_s)
    width = (high - low) * 1e3 / len(counts) or 1e-6
    shade = {"fillcolor": "#e0a526", "opacity": 0.18, "line": {"width": 0}, "layer": "below"}
    half = vertical(wall.q1 * 1e3, wall.q3 * 1e3, **shade)
    middle = vertical(wall.median * 1e3, line={"color": "#d9601a", "width": 2})
    return Figure(
        name="spread",
        title="Spread of step times",
        caption=f"{wall.noise.capitalize()}: the line is the median, shaded is the middle half. "
        "The last bar counts all that were slower.",
        traces=[
            {
                "type": "bar",
                "x": packed(low * 1e3 + width * (np.arange(len(counts)) + 0.5)),
                "y": packed(counts),
                "width": width,
                "marker": {"color": palette.colour("forward")},
                "hovertemplate": "%{y} steps near %{x:,.4~r} ms<extra></extra>",
            }
        ],
        layout=layout(axis("ms"), axis("steps"), bargap=0, showlegend=False, shapes=[half, middle]),
        height=260,
    )


def profiling(digest: Digest) -> Figure | None:
    """With against without profiling, inside one run; None where there are not enough steps of both kinds."""
    if min(map(len, digest.marked.values())) < _FEWEST_BARE:
        return None
    traces = []
    for marked, seconds in digest.marked.items():
        which, tint = ("with", "instrument") if marked else ("without", "host")
        steps = f"{which} ({len(seconds):,} steps)"
        traces.append(box(f"{which} layer marks", steps, seconds, palette.colour(tint)))
    return Figure(
        name="profiling",
        title="With against without profiling",
        caption="All steps with layer marks and all bare steps of the training, wherever they fell: the box "
        "is the middle half, the whiskers reach from the 5th to the 95th percentile. Where steps change over "
        "the training, the boxes differ by that as well.",
        traces=traces,
        layout=layout(axis("ms"), {"automargin": True}, showlegend=False),
        height=220,
    )
