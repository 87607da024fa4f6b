"""Plans of a search: what a training costs against how long it takes, and those that no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.simulate.search import Search, highest_price, latest_s
from laptime.simulate.training import Simulation
from laptime.views import palette
from laptime.views.figures.figure import Figure, Trace, apart, axis, label, layout, scatter
from laptime.views.format import figures, long_duration, plural, training_unit
from laptime.views.plan_search import picked

MOST_DOTS = 2000
_WIDE = 8  # times the smallest value: from there on an axis is logarithmic
_HOVER = "%{customdata[0]}: %{customdata[1]}, %{customdata[2]}<extra></extra>"


def plan_frontier(found: Search) -> Figure:
    """A dot for each plan with a price, in the colour of its cluster; a line joins the frontier."""
    shown = [made for made in found.plans if made.dollars is not None][:MOST_DOTS]
    best = {id(made) for made in found.frontier}
    unit = training_unit([latest_s(made) for made in shown])
    traces: list[Trace] = []
    if len(best) > 1:
        line = {"color": palette.colour("host"), "width": 1.5, "shape": "hv"}
        ends = _places(found.frontier, unit.seconds)
        traces.append(scatter("the frontier", "", line=line, hoverinfo="skip", **ends))
    clusters = list(dict.fromkeys(made.cluster.name for made in shown))
    for place, (name, title) in enumerate(zip(clusters, apart(clusters), strict=True)):
        here = [made for made in shown if made.cluster.name == name]
        marker: dict[str, Any] = {
            "color": palette.nth_colour(place),
            "symbol": ["circle" if id(made) in best else "circle-open" for made in here],
            "size": [11 if id(made) in best else 8 for made in here],
        }
        traces.append(_dots(title, here, unit.seconds, "markers", marker=marker))
    chosen = _chosen(found)
    if chosen:
        marker = {"size": 17, "symbol": "circle-open", "color": palette.colour("host")}
        names = {"text": [name for name, _ in chosen], "textposition": "top center", "textfont": {"size": 11}}
        picks = [made for _, made in chosen]
        traces.append(_dots("chosen", picks, unit.seconds, "markers+text", marker=marker, **names))
    return Figure(
        name="frontier",
        title="Time and money",
        caption="The best plans of each cluster and number of nodes, at the unfavourable end of their "
        "intervals. Full dots: no other plan is both faster and cheaper.",
        traces=traces,
        layout=layout(
            axis(f"training, {unit.name}", **_scale([latest_s(made) for made in shown])),
            axis("dollars", tickprefix="$", **_scale([highest_price(made) for made in shown])),
            hovermode="closest",
        ),
        height=420,
    )


def _dots(name: str, simulations: Sequence[Simulation], over: float, mode: str, **how: Any) -> Trace:
    told = [
        [
            label(f"{made.plan.describe()} on {plural(made.plan.workers, 'device')} of {made.cluster.name}"),
            long_duration(latest_s(made)),
            f"${figures(highest_price(made))}",
        ]
        for made in simulations
    ]
    return scatter(name, _HOVER, mode, customdata=told, **_places(simulations, over), **how)


def _chosen(found: Search) -> list[tuple[str, Simulation]]:
    """What was looked for; names of one plan together."""
    names: dict[int, list[str]] = {}
    made = {id(each): each for each in picked(found).values() if each.dollars is not None}
    for name, each in picked(found).items():
        names.setdefault(id(each), []).append(name)
    return [(", ".join(names[key]), each) for key, each in made.items()]


def _places(made: Sequence[Simulation], over: float) -> dict[str, Any]:
    return {
        "x": [float(f"{latest_s(each) / over:.5g}") for each in made],
        "y": [float(f"{highest_price(each):.5g}") for each in made],
    }


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic where a linear axis would press most of the values together."""
    wide = bool(values) and max(values) > _WIDE * min(values)
    return {"type": "log"} if wide else {"rangemode": "tozero"}
