"""Steps over the training: their time, what is in it, and how much of it the layers explain."""

from __future__ import annotations

from typing import Any

import numpy as np

from laptime.model import ACCOUNTS, COMPUTE, Statistics
from laptime.views import palette
from laptime.views.figures.figure import Figure, Trace, axis, label, milliseconds, packed
from laptime.views.step_bins import Column, Digest, Rows
from laptime.views.time_units import figures

_COMPUTING = "compute accounts"
_EDGE = 0.01  # of a step
_DUST = 1e-6  # of the time: what rounding leaves of sums


def of(rows: Rows, **wanted: Any) -> Rows:
    """The rows whose columns have these values."""
    size = len(next(iter(rows.values())))
    here = np.ones(size, dtype=bool)
    for name, value in wanted.items():
        here &= rows[name] == value
    return {name: column[here] for name, column in rows.items()}


def by(rows: Rows, name: str) -> dict[Any, Rows]:
    """The rows of each value of a column: one sort, however many values there are."""
    values, place = np.unique(rows[name], return_inverse=True)
    order = np.argsort(place, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(place[order])) + 1)
    return {
        value: {column: array[part] for column, array in rows.items()}
        for value, part in zip(values.tolist(), parts, strict=False)
    }


def line(rows: Rows, values: Column, scale: str = "step") -> Trace:
    """A line's `x` and `y`, broken where steps of the other stage lie between two points."""
    gaps = np.flatnonzero(rows["after_gap"])
    return {
        "x": packed(np.insert(rows[scale].astype(float), gaps, rows[scale][gaps])),
        "y": packed(np.insert(np.asarray(values, dtype=float), gaps, np.nan)),
    }


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


def frame(rows: Rows, column: str = "median_s") -> dict[str, Any]:
    """An axis in ms whose range ignores the warm-up step and single slow steps.

    A double click shows the whole range.
    """
    values = rows[column][~np.isnan(rows[column])] * 1e3
    if values.size < 5:
        return axis("ms", rangemode="tozero")
    top = float(min(values.max(), 2.5 * np.quantile(values, 0.9)))
    return axis("ms", range=[0, top * 1.15])


def step_axis(digest: Digest) -> dict[str, Any]:
    """Steps in the order they were taken: those of a validation have numbers too."""
    both = len(np.unique(digest.steps["stage"].astype(str))) > 1
    return axis("step, validation counted too" if both else "step")


def _beyond(rows: Rows, column: str = "median_s") -> str:
    """A sentence on points beyond the axis range and the largest of them; empty where there are none."""
    values = rows[column] * 1e3
    reach = frame(rows, column).get("range")
    out = int(np.count_nonzero(values > reach[1])) if reach else 0
    if not out:
        return ""
    most = float(np.nanmax(values))
    where = "one place" if out == 1 else f"{out} places"
    return f" The line leaves the frame in {where}, up to {figures(most)} ms: a double click shows all of it."


def _ranks(rows: Rows) -> list[int]:
    return [int(rank) for rank in np.unique(rows["rank"])]


def _lowest_rank(digest: Digest) -> Rows | None:
    """The steps of the lowest rank; None where they are too few for a line."""
    rows = of(digest.steps, stage=digest.stage.value)
    if len(rows["step"]):
        rows = of(rows, rank=_ranks(rows)[0])
    return rows if len(rows["step"]) > 1 else None


def step_time(digest: Digest) -> Figure | None:
    """The median of neighbouring steps with the middle half of them, and the steps far beyond."""
    rows = of(digest.steps, stage=digest.stage.value)
    if not len(rows["step"]):
        return None
    traces: list[Trace] = []
    yaxis = frame(rows)
    for place, rank in enumerate(_ranks(rows)):
        mine = of(rows, rank=rank)
        tint = palette.nth_colour(place)
        title = _device(mine, rank, alone=len(_ranks(rows)) == 1)
        band = {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": tint + "44"}
        group = {"legendgroup": f"{rank}", "type": "scatter"}
        traces += [
            {**group, **_band(mine), **band, "hoverinfo": "skip", "showlegend": False},
            {**group, **line(mine, mine["median_s"] * 1e3)}
            | {
                "mode": "lines" if len(mine["step"]) > 1 else "markers",
                "name": title,
                "line": {"color": tint, "width": 1.6},
                "hovertemplate": "step %{x}: %{y:,.4~r} ms",
            },
        ]
    slow = of(digest.slow_steps, stage=digest.stage.value)
    for traced, title in ((False, "slow step"), (True, "kernel-traced step")):
        mine = of(slow, traced=traced)
        if len(mine["step"]):
            walls = mine["wall_s"] * 1e3
            top = yaxis.get("range", [0, np.inf])[1]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": title,
                    "x": packed(mine["step"]),
                    "y": packed(np.minimum(walls, top * 0.98)),
                    "customdata": milliseconds(mine["wall_s"]),
                    "marker": {
                        "color": palette.colour("idle" if traced else "unexplained"),
                        "size": 7,
                        "symbol": ["triangle-up" if wall > top else "x" for wall in walls],
                    },
                    "hovertemplate": "step %{x}: %{customdata} ms<extra>" + title + "</extra>",
                }
            )
    return Figure(
        name="step-time",
        title="Step time over the training",
        caption="Median of neighbouring steps, the middle half of them shaded; steps far beyond their "
        "neighbours are marked one by one, with a triangle where they reach out of the frame."
        + _beyond(rows),
        traces=traces,
        layout={
            "xaxis": step_axis(digest),
            "yaxis": yaxis,
            "hovermode": "closest",
            "legend": {"traceorder": "normal"},  # Plotly turns it around where anything is filled
        },
    )


def accounts_over_steps(digest: Digest) -> Figure | None:
    """Where a step's time went, from the first step to the last, of the lowest rank."""
    rows = _lowest_rank(digest)
    if rows is None:
        return None
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "books",
            "name": account.value,
            **_stacked(rows, np.nan_to_num(rows[account.column]).clip(0) * 1e3),
            "line": {"width": 0.5, "color": palette.colour(account.value)},
            "hovertemplate": "%{y:,.4~r} ms",
        }
        for account in ACCOUNTS
        if np.nansum(rows[account.column]) > _DUST * np.nansum(rows["mean_s"])
    ]
    return Figure(
        name="accounts",
        title="The books over the training",
        caption="Mean of every account among neighbouring steps; the top of the stack is the wall time."
        + _beyond(rows, "mean_s"),
        traces=traces,
        layout={"xaxis": step_axis(digest), "yaxis": frame(rows, "mean_s"), "hovermode": "x unified"},
    )


def total_against_profiled(digest: Digest) -> Figure | None:
    """How long an iteration took, and how much of that is charged to something."""
    rows = _lowest_rank(digest)
    if rows is None or not len(digest.layers["layer"]):
        return None
    compute, explained = _charged(rows)
    lines = {
        "total (wall time)": (rows["mean_s"], "#6f7d8c", "solid"),
        "explained by accounts": (explained, palette.colour("data_wait"), "dot"),
        _COMPUTING: (compute, palette.colour("forward"), "solid"),
    }
    return Figure(
        name="total-profiled",
        title="Total against profiled time",
        caption="Of an iteration: its wall time, what the accounts explain (the two lie on each other where "
        "the books close), and its compute accounts: forward, loss, backward and update, which marks divide "
        "among the layers." + _beyond(rows, "mean_s"),
        traces=[
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                **line(rows, values * 1e3),
                "line": {"color": tint, "dash": dash, "width": 1.6},
                "hovertemplate": "%{y:,.4~r} ms",
            }
            for name, (values, tint, dash) in lines.items()
        ],
        layout={"xaxis": step_axis(digest), "yaxis": frame(rows, "mean_s"), "hovermode": "x unified"},
    )


def percentage_error(digest: Digest) -> Figure | None:
    """The share of an iteration that is in no account, and the share in which no layer computes."""
    rows = _lowest_rank(digest)
    if rows is None or not len(digest.layers["layer"]):
        return None
    compute, explained = _charged(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = {
            "in no account (unexplained)": ((rows["mean_s"] - explained) / rows["mean_s"], "unexplained"),
            f"not in {_COMPUTING}": ((rows["mean_s"] - compute) / rows["mean_s"], "forward"),
        }
    return Figure(
        name="percentage-error",
        title="Percentage error",
        caption="How far what is charged falls short of the iteration's time. Not in compute accounts: data, "
        "copies, communication, Python, the recorder.",
        traces=[
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                **line(rows, np.where(np.abs(share) < 1e-9, 0.0, share) * 100),
                "line": {"color": palette.colour(tint), "width": 1.6},
                "hovertemplate": "%{y:.2f} %",
            }
            for name, (share, tint) in shares.items()
        ],
        layout={
            "xaxis": step_axis(digest),
            "yaxis": axis("% of the iteration", range=[-2, 100]),
            "hovermode": "x unified",
        },
    )


def _charged(rows: Rows) -> tuple[Any, Any]:
    """Seconds in the accounts that layers and the loss compute in, and seconds in any account."""
    compute = np.sum([np.nan_to_num(rows[account.column]) for account in COMPUTE], axis=0)
    if not np.isnan(rows["idle_s"]).all():  # on traced steps idle time was taken out of the phases
        compute = compute + np.nan_to_num(rows["idle_s"])
    return compute, rows["mean_s"] - rows["unexplained_s"]


def spread(digest: Digest, wall: Statistics | None) -> Figure | None:
    """How often a step took how long, with the median and the middle half."""
    rows = digest.spread
    if not len(rows["bin"]) or wall is None or not wall.mean or wall.count < 2:
        return None
    low, high = float(rows["lo"][0]) * 1e3, float(rows["hi"][0]) * 1e3
    width = (high - low) / 80 or 1e-6
    counts = np.zeros(80)
    counts[rows["bin"].astype(int)] = rows["count"]
    half = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": wall.q1 * 1e3, "x1": wall.q3 * 1e3}
    middle = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": wall.median * 1e3}
    return Figure(
        name="spread",
        title="Spread of step times",
        caption=f"{wall.noise.capitalize()}: the line is the median, shaded is the middle half. "
        "The last bar counts all that were slower.",
        traces=[
            {
                "type": "bar",
                "x": packed(low + width * (np.arange(80) + 0.5)),
                "y": packed(counts),
                "width": width,
                "marker": {"color": palette.colour("forward")},
                "hovertemplate": "%{y} steps near %{x:,.4~r} ms<extra></extra>",
            }
        ],
        layout={
            "xaxis": axis("ms"),
            "yaxis": axis("steps"),
            "bargap": 0,
            "showlegend": False,
            "shapes": [
                half | {"fillcolor": "#e0a526", "opacity": 0.18, "line": {"width": 0}, "layer": "below"},
                middle | {"x1": wall.median * 1e3, "line": {"color": "#d9601a", "width": 2}},
            ],
        },
        height=260,
    )


def _device(rows: Rows, rank: int, *, alone: bool) -> str:
    device = label(str(rows["device"][0]))
    return f"{device}" if alone else f"{device} rank {rank}"
