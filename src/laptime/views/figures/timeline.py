"""One step from its start to its end: layers by phase, what is between them, and the kernels or operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from laptime.files.text import one_line
from laptime.model import ACCOUNTS
from laptime.views.figures.figure import COLOURS, Figure, Trace, axis, label, short
from laptime.views.one_step import OneStep

_MOST_KERNELS = 1500
_MOST_NAMES = 300  # written into their bars; Plotly measures each, a second for 3,000
OUTSIDE = "not in a layer"
_LAYERED = ("forward", "loss", "backward", "update", "idle")  # what layers divide, idle time inside them too
_BLANK = "#7b8794"  # of what has no account's colour, since it is of several
_DUST = 1e-9
_GAP = 1e-3  # of the step; shorter ones would not be seen
_DEEPEST = 3  # operators inside operators inside operators; more would be thin lines


def timeline(one: OneStep) -> Figure:
    """Bars over milliseconds since the step began."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    for row in one.layers:
        lanes.setdefault(f"layers {row['phase']}", []).append(
            row | {"name": row["layer"], "tint": row["phase"]}
        )
    if gaps := _gaps(one):
        lanes[OUTSIDE] = gaps
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
        f"double-click to go back.{_told(one)}{more}{traced}",
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


def _outside(one: OneStep) -> str:
    """The accounts that no layer has a part of, `data_wait 0.24 ms, host 3.1 ms`."""
    lengths = {account.value: one.step.get(account.column) or 0.0 for account in ACCOUNTS}
    found = {word: seconds for word, seconds in lengths.items() if word not in _LAYERED}
    return ", ".join(f"{word} {seconds * 1e3:.3g} ms" for word, seconds in found.items() if seconds > _DUST)


def _told(one: OneStep) -> str:
    if not (found := _outside(one)):
        return ""
    return f" Outside the layers: {found}; how long these took is known, where in the gaps each was is not."


def _gaps(one: OneStep) -> list[dict[str, Any]]:
    """What lies between the layers' times, from the start of the step to its end."""
    until = one.start_s
    end = one.start_s + one.step["wall_s"]
    what = {"name": OUTSIDE, "layer": "of the whole step", "phase": _outside(one) or "no account", "tint": ""}
    found = []
    for row in [*sorted(one.layers, key=lambda row: row["start_s"]), {"start_s": end, "seconds": 0.0}]:
        if row["start_s"] - until > _GAP * one.step["wall_s"]:
            found.append(what | {"start_s": until, "seconds": row["start_s"] - until})
        until = max(until, row["start_s"] + row["seconds"])
    return found


def _least(lanes: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Seconds that a bar must last to bear its name."""
    longest = sorted(
        (row["seconds"] for lane, rows in lanes.items() if lane != OUTSIDE for row in rows), reverse=True
    )
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
        "text": [
            short(row["name"], 24) if row["seconds"] >= least and name != OUTSIDE else "" for row in rows
        ],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "#ffffff"},
        "marker": {
            "color": [COLOURS.get(row["tint"], _BLANK) for row in rows],
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
