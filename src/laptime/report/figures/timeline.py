"""One step from its start to its end: layers by phase, and the kernels or operators below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from laptime.report.figures.figure import COLOURS, Figure, Trace, axis, label, short
from laptime.report.one_step import OneStep
from laptime.store.files import one_line

_MOST_KERNELS = 1500
_MOST_NAMES = 300  # written into their bars; Plotly measures each, a second for 3,000
_DEEPEST = 3  # operators inside operators inside operators; more would be thin lines


def timeline(one: OneStep) -> Figure:
    """Bars over milliseconds since the step began."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    for row in one.layers:
        lanes.setdefault(f"layers {row['phase']}", []).append(
            row | {"name": row["layer"], "tint": row["phase"]}
        )
    kernels = sorted(one.kernels, key=lambda row: -row["seconds"])[:_MOST_KERNELS]
    streams = sorted({row["stream"] for row in kernels})
    for row, depth in _depths(kernels):
        if depth < _DEEPEST:
            kind = "operators" if row["kind"] == "operator" else "kernels"
            many = f" {streams.index(row['stream'])}" if len(streams) > 1 else ""
            deep = f" ({depth})" if depth else ""
            tint = row["phase"] if row["phase"] in COLOURS else "host"
            lanes.setdefault(f"{kind}{many}{deep}", []).append(row | {"tint": tint})
    left = len(one.kernels) - len(kernels)
    more = f" The {len(kernels)} longest kernels; {left} shorter ones are left out." if left else ""
    traced = (
        ""
        if one.kernels
        else " Kernels are known of traced steps only: record(kernels=[100]) traces step 100."
    )
    return Figure(
        name="timeline",
        title=f"Step {one.step['step']}, from its start to its end",
        caption=f"{one.step['wall_s'] * 1e3:.4g} ms of {one_line(one.step['device'])}. Drag to look closer, "
        f"double-click to go back.{more}{traced}",
        traces=[_lane(one, name, rows, _least(lanes)) for name, rows in lanes.items()],
        layout={
            "barmode": "overlay",
            "xaxis": axis("ms", range=[0, one.step["wall_s"] * 1e3]),
            "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True, "type": "category"},
            "showlegend": False,
            "bargap": 0.15,
            "uniformtext": {"mode": "hide", "minsize": 9},
        },
        height=120 + 48 * len(lanes),
    )


def _least(lanes: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Seconds that a bar must last to bear its name."""
    longest = sorted((row["seconds"] for rows in lanes.values() for row in rows), reverse=True)
    return float(longest[_MOST_NAMES - 1]) if len(longest) > _MOST_NAMES else 0.0


def _lane(one: OneStep, name: str, rows: Sequence[dict[str, Any]], least: float) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [name] * len(rows),
        "base": [_round((row["start_s"] - one.start_s) * 1e3) for row in rows],
        "x": [_round(row["seconds"] * 1e3) for row in rows],
        "customdata": [[label(row["name"]), label(f"{row['layer']}, {row['phase']}")] for row in rows],
        "text": [short(row["name"], 24) if row["seconds"] >= least else "" for row in rows],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "#ffffff"},
        "marker": {
            "color": [COLOURS[row["tint"]] for row in rows],
            "line": {"width": 0.5 if name.startswith("layers") else 0, "color": "#ffffff66"},
        },
        "hovertemplate": "%{customdata[0]}<br>%{x:.4g} ms from %{base:.4g} ms on<br>%{customdata[1]}"
        "<extra></extra>",
    }


def _round(value: float) -> float:
    return round(value, 5)


def _depths(kernels: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """How many others of its stream each one is inside of: an operator calls operators."""
    found = []
    open_until: dict[int, list[float]] = {}
    for row in sorted(kernels, key=lambda row: (row["start_s"], -row["seconds"])):
        ends = open_until.setdefault(row["stream"], [])
        while ends and ends[-1] <= row["start_s"] + 1e-9:
            ends.pop()
        found.append((row, len(ends)))
        ends.append(row["start_s"] + row["seconds"])
    return found
