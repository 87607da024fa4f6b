"""One step from its start to its end: layers by phase, what is between them, and the kernels or operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laptime.files.text import one_line
from laptime.model import KernelTime, LayerTime
from laptime.views import format, palette
from laptime.views.figures.figure import Figure, Trace, axis, label, short
from laptime.views.one_step import OneStep

_MOST_KERNELS = 1500
_MOST_NAMES = 300  # written into their bars; Plotly measures each, a second for 3,000
OUTSIDE = "not in a layer"
_LAYERED = ("forward", "loss", "backward", "update", "idle")  # what layers divide, idle time inside them too
_BLANK = "#7b8794"  # of what has no account's colour, since it is of several
_DUST = 1e-9
_GAP = 1e-3  # of the step; shorter ones would not be seen
_DEEPEST = 3  # operators inside operators inside operators; more would be thin lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A layer, a gap between layers, a kernel or an operator."""

    name: str
    inside: str  # its layer and phase
    tint: str
    start_s: float
    seconds: float


def timeline(one: OneStep) -> Figure:
    """Bars over milliseconds since the step began."""
    lanes: dict[str, list[_Bar]] = {}
    for layer in one.layers:
        lanes.setdefault(f"layers {layer.phase}", []).append(_bar(layer, layer.layer, layer.phase))
    if gaps := _gaps(one):
        lanes[OUTSIDE] = gaps
    kernels = sorted(one.kernels, key=lambda kernel: -kernel.seconds)[:_MOST_KERNELS]
    streams = sorted({kernel.stream for kernel in kernels})
    for kernel, depth in _depths(kernels):
        if depth < _DEEPEST:
            kind = "operators" if kernel.kind == "operator" else "kernels"
            many = f" {streams.index(kernel.stream)}" if len(streams) > 1 else ""
            deep = f" ({depth})" if depth else ""
            tint = kernel.phase if kernel.phase in palette.ACCOUNTS else "host"
            lanes.setdefault(f"{kind}{many}{deep}", []).append(_bar(kernel, kernel.name, tint))
    left = len(one.kernels) - len(kernels)
    more = f" The {len(kernels)} longest kernels; {left} shorter ones are left out." if left else ""
    traced = (
        ""
        if one.kernels
        else " Kernels are known of traced steps only: record(kernels=[100]) traces step 100."
    )
    return Figure(
        name="timeline",
        title=f"Step {one.step}, from its start to its end",
        caption=f"{format.milliseconds(one.wall_s)} ms of {one_line(one.device)}. Drag to look closer, "
        f"double-click to go back.{_told(one)}{more}{traced}",
        traces=[_lane(one, name, bars, _least(lanes)) for name, bars in lanes.items()],
        layout={
            "barmode": "overlay",
            "xaxis": axis("ms", range=[0, one.wall_s * 1e3]),
            "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True, "type": "category"},
            "showlegend": False,
            "bargap": 0.15,
            "uniformtext": {"mode": "hide", "minsize": 9},
        },
        height=120 + 48 * len(lanes),
    )


def _bar(row: LayerTime | KernelTime, name: str, tint: str) -> _Bar:
    inside = f"{row.layer}, {row.phase}"
    return _Bar(name=name, inside=inside, tint=tint, start_s=row.start_s, seconds=row.seconds)


def _outside(one: OneStep) -> str:
    """The accounts outside all layers, as `data_wait 0.24 ms, host 3.1 ms`."""
    return ", ".join(
        f"{account} {format.milliseconds(seconds)} ms"
        for account, seconds in one.accounts.items()
        if account not in _LAYERED and seconds > _DUST
    )


def _told(one: OneStep) -> str:
    if not (outside := _outside(one)):
        return ""
    return f" Outside the layers: {outside}; how long these took is known, where in the gaps each was is not."


def _gaps(one: OneStep) -> list[_Bar]:
    """Gaps between the layers, from the start of the step to its end."""
    until, end = one.start_s, one.start_s + one.wall_s
    inside = f"of the whole step, {_outside(one) or 'no account'}"
    gaps = []
    spans = [*((layer.start_s, layer.seconds) for layer in one.layers), (end, 0.0)]
    for start_s, seconds in sorted(spans):
        if start_s - until > _GAP * one.wall_s:
            gaps.append(_Bar(name=OUTSIDE, inside=inside, tint="", start_s=until, seconds=start_s - until))
        until = max(until, start_s + seconds)
    return gaps


def _least(lanes: Mapping[str, Sequence[_Bar]]) -> float:
    """The least seconds of a bar that is labelled."""
    longest = sorted(
        (bar.seconds for lane, bars in lanes.items() if lane != OUTSIDE for bar in bars), reverse=True
    )
    return longest[_MOST_NAMES - 1] if len(longest) > _MOST_NAMES else 0.0


def _lane(one: OneStep, name: str, bars: Sequence[_Bar], least: float) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [name] * len(bars),
        "base": [_round((bar.start_s - one.start_s) * 1e3) for bar in bars],
        "x": [_round(bar.seconds * 1e3) for bar in bars],
        # Plotly's %{x} of a bar with a base is where it ends, so its length is written out.
        "customdata": [
            [
                label(bar.name),
                label(bar.inside),
                f"{format.milliseconds(bar.seconds)} ms from "
                f"{format.milliseconds(bar.start_s - one.start_s)} ms on",
            ]
            for bar in bars
        ],
        "text": [short(bar.name, 24) if bar.seconds >= least and name != OUTSIDE else "" for bar in bars],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "#ffffff"},
        "marker": {
            "color": [palette.colour(bar.tint) if bar.tint in palette.ACCOUNTS else _BLANK for bar in bars],
            "line": {"width": 0.5 if name.startswith("layers") else 0, "color": "#ffffff66"},
        },
        "hovertemplate": "%{customdata[0]}<br>%{customdata[2]}<br>%{customdata[1]}<extra></extra>",
    }


def _round(value: float) -> float:
    return round(value, 5)


def _depths(kernels: Sequence[KernelTime]) -> list[tuple[KernelTime, int]]:
    """The nesting depth of each kernel or operator in its stream: operators call operators."""
    depths = []
    open_until: dict[int, list[float]] = {}
    for kernel in sorted(kernels, key=lambda kernel: (kernel.start_s, -kernel.seconds)):
        ends = open_until.setdefault(kernel.stream, [])
        while ends and ends[-1] <= kernel.start_s + _DUST:
            ends.pop()
        depths.append((kernel, len(ends)))
        ends.append(kernel.start_s + kernel.seconds)
    return depths
