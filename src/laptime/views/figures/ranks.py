"""Ranks: their steps side by side, who waits for whom, and how old their updates are."""

from __future__ import annotations

import numpy as np

from laptime.views import palette
from laptime.views.figures.figure import Choice, Figure, Trace, axis, layout, packed, step_axis
from laptime.views.ranks import RanksView
from laptime.views.step_bins import Column, Digest

_SCALE = "Viridis"  # the colour-blind can read it, and so can a printer
_CHOICES = {"step time": "mean_s", "communication": "communication_s", "bubbles": "bubble_s"}
_OWN = "work, without waiting"  # of ranks that wait for each other: their steps are equally long
_USUAL = (0.02, 0.98)  # the colours are of these quantiles: the warm-up would make all others look alike
_HEIGHT, _HIGHEST = 130, 700
_WRITTEN = 12  # ranks; the cells of more have no room for numbers


def steps_by_rank(digest: Digest) -> Figure | None:
    """A line for each rank, a column for each bin of steps, coloured by step time or communication."""
    rows = digest.steps[digest.stage]
    ranks, line = np.unique(rows["rank"], return_inverse=True)
    if len(ranks) < 2:
        return None
    bins, first, column = np.unique(rows["bin"], return_index=True, return_inverse=True)
    traces: list[Trace] = []
    choices = []
    shown = {name: rows[source] for name, source in _CHOICES.items()}
    if not np.isfinite(rows["staleness"]).any():
        waited = np.nan_to_num(rows["communication_s"]) + np.nan_to_num(rows["bubble_s"])
        shown = {_OWN: rows["mean_s"] - waited} | shown if waited.any() else shown
    for name, values in shown.items():
        known = values[~np.isnan(values)]
        if known.size and known.max() > 0:
            cells = np.full((len(ranks), len(bins)), np.nan)
            cells[line, column] = values * 1e3
            hover = f"rank %{{y}}, step %{{x}}: %{{z:,.4~r}} ms<extra>{name}</extra>"
            heat = _heat_map(cells, [str(rank) for rank in ranks], hover)
            low, high = np.quantile(known, _USUAL) * 1e3
            heat |= {
                "x": packed(rows["step"][first]),
                "zmin": float(low),
                "zmax": float(max(high, 1.01 * low)),
            }
            choices.append(Choice(name=name, shows=[len(traces)]))
            traces.append(heat)
    return Figure(
        name="ranks-steps",
        title="Steps of every rank",
        caption="Mean of neighbouring steps; single slow ones may be beyond the scale. Steps of ranks that "
        "wait for each other are equally long: a slow rank is the one that works longest.",
        traces=traces,
        layout=layout(step_axis(digest), axis("rank", type="category", autorange="reversed")),
        height=_height(len(ranks)),
        choices=choices,
        asks="shows",
    )


def who_waits_for_whom(view: RanksView) -> Figure | None:
    """A line for each rank that waits, a column for each rank that it waits for."""
    waiting = view.waiting
    if waiting is None:
        return None
    ranks = [str(pace.rank) for pace in view.paces]
    cells = np.array(waiting.for_whom_s) * 1e3
    np.fill_diagonal(cells, np.nan)
    heat = _heat_map(cells, ranks, "rank %{y} waits %{z:,.4~r} ms a step for rank %{x}<extra></extra>")
    heat |= {"x": ranks, "zmin": 0.0, "zmax": float(np.nanmax(cells))}
    if len(ranks) <= _WRITTEN:
        heat["texttemplate"] = "%{z:,.3~r}"
    return Figure(
        name="ranks-waiting",
        title="Who waits for whom",
        caption="Milliseconds a step. In each step the rank that waited least came last; what "
        "another rank waited longer, it waited for this one.",
        traces=[heat],
        layout=layout(
            axis("waits for rank", type="category"), axis("rank", type="category", autorange="reversed")
        ),
        height=_height(len(ranks)),
    )


def staleness(view: RanksView) -> Figure | None:
    """How many updates were how old."""
    traces = [
        {
            "type": "bar",
            "name": f"rank {pace.rank}",
            "x": list(pace.staleness.counts),
            "y": list(pace.staleness.counts.values()),
            "marker": {"color": palette.nth_colour(place)},
            "hovertemplate": f"%{{y}} updates with staleness %{{x}}<extra>rank {pace.rank}</extra>",
        }
        for place, pace in enumerate(view.paces)
        if pace.staleness
    ]
    return Figure(
        name="staleness",
        title="Staleness of updates",
        caption="How many updates the other workers made between reading the parameters and sending the "
        "gradient that was computed with them.",
        traces=traces,
        layout=layout(
            axis("staleness", tickformat="d"),
            axis("updates"),
            barmode="stack",
            legend={"traceorder": "normal"},
        ),
        height=300,
    )


def _heat_map(cells: Column, ranks: list[str], hover: str) -> Trace:
    shape = {"shape": ", ".join(map(str, cells.shape))}
    bar = {"title": {"text": "ms"}, "thickness": 12}
    looks = {"colorscale": _SCALE, "colorbar": bar, "hovertemplate": hover, "hoverongaps": False}
    return {"type": "heatmap", "y": ranks, "z": packed(cells) | shape, **looks}


def _height(ranks: int) -> int:
    return min(_HIGHEST, _HEIGHT + max(120, 24 * ranks))
