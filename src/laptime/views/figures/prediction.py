"""Predictions: step times with intervals, throughput, layers and memory; and layers beside measured ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from laptime.model import LayerSeconds
from laptime.views import palette
from laptime.views.figures.comparison import NAMES_AXIS
from laptime.views.figures.figure import Figure, Trace, apart, axis, label, milliseconds
from laptime.views.figures.layers import layers_together

MOST_DEVICES = 60
_MOST_LAYERS = 40
_GIB = 2.0**30
_FIT = {True: palette.colour("data_wait"), False: palette.colour("unexplained"), None: palette.colour("host")}
_FITS = {True: "fits", False: "does not fit", None: "memory not known"}
_SIDES = {"measured": palette.colour("host"), "predicted": palette.colour("forward")}
_FURTHEST = 200.0  # % that an error is drawn at where it is larger

Row = Mapping[str, Any]


def titles(found: Sequence[Row]) -> list[str]:
    """What tells the predictions apart: the device, and of network, batch and GPUs those that differ."""
    parts: dict[str, Callable[[Row], str]] = {
        "network": lambda one: str(one["network"]),
        "precision": lambda one: str(one.get("precision") or ""),
        "batch": lambda one: f"batch {one['batch']}",
        "gpus": lambda one: f"{one['gpus']} GPU" + ("" if one["gpus"] == 1 else "s"),
    }
    differ = [read for key, read in parts.items() if len({str(one.get(key)) for one in found}) > 1]
    return [", ".join([str(one["device"]), *(read(one) for read in differ)]) for one in found]


def step_times(found: Sequence[Row]) -> Figure:
    """A dot for each prediction with its interval, coloured by whether it fits."""
    shown, names = found[:MOST_DEVICES], titles(found)[:MOST_DEVICES]
    labels = apart(names)
    traces: list[Trace] = []
    for fits, tint in _FIT.items():
        here = [place for place, one in enumerate(shown) if one.get("fits") is fits]
        if not here:
            continue
        steps = np.array([shown[place]["step_s"] for place in here])
        low, high = (np.array([shown[place]["interval_s"][end] for place in here]) for end in (0, 1))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _FITS[fits],
                "y": [labels[place] for place in here],
                "x": milliseconds(steps),
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": milliseconds(np.maximum(high - steps, 0)),
                    "arrayminus": milliseconds(np.maximum(steps - low, 0)),
                    "thickness": 1.4,
                },
                "marker": {"color": tint, "size": 10},
                "customdata": [
                    [label(names[place]), f"{shown[place]['samples_per_s']:,.0f}"] for place in here
                ],
                "hovertemplate": "%{customdata[0]}: %{x} ms, %{customdata[1]} samples/s<extra></extra>",
            }
        )
    return Figure(
        name="predicted-steps",
        title="Step time",
        caption="Nine in ten predictions of this kind stay within their interval." + _first_of(found),
        traces=traces,
        layout={
            "xaxis": axis("ms", **_scale([end for one in shown for end in one["interval_s"]])),
            "yaxis": NAMES_AXIS | {"categoryorder": "array", "categoryarray": labels},
        },
        height=140 + 26 * max(2, len(shown)),
    )


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic where a linear axis would press most of the values together."""
    known = [value for value in values if value > 0]
    far = known and max(known) / min(known) > 30
    return {"type": "log", "dtick": "D2"} if far else {"rangemode": "tozero"}


def _first_of(found: Sequence[Row]) -> str:
    return f" The first {MOST_DEVICES} of {len(found)}." if len(found) > MOST_DEVICES else ""


def throughput(found: Sequence[Row], over: str) -> Figure | None:
    """Samples a second over `batch` or `gpus`, a line for each of the others; None where it does not vary."""
    rest = "gpus" if over == "batch" else "batch"
    lines: dict[tuple[str, str, Any], list[Row]] = {}
    for one in found:
        lines.setdefault((str(one["network"]), str(one["device"]), one[rest]), []).append(one)
    lines = {key: rows for key, rows in lines.items() if len({row[over] for row in rows}) > 1}
    if not lines:
        return None
    names = apart(titles([{**rows[0], over: 0} for rows in lines.values()]))
    traces = []
    for place, (name, rows) in enumerate(zip(names, lines.values(), strict=True)):
        rows = sorted(rows, key=lambda row: row[over])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [row[over] for row in rows],
                "y": [float(f"{row['samples_per_s']:.5g}") for row in rows],
                "line": {"color": palette.nth_colour(place)},
                "hovertemplate": "%{y:,.0f} samples/s",
            }
        )
    word = {"batch": "batch size", "gpus": "GPUs of one node"}[over]
    return Figure(
        name=f"throughput-{over}",
        title=f"Samples a second over the {'batch size' if over == 'batch' else 'number of GPUs'}",
        caption="Predicted; of all GPUs together.",
        traces=traces,
        layout={
            "xaxis": axis(
                word,
                type="log" if over == "batch" else "linear",
                tickvals=sorted({row[over] for rows in lines.values() for row in rows}),
            ),
            "yaxis": axis("samples/s", rangemode="tozero"),
            "hovermode": "x unified",
        },
    )


def layers(one: Row, name: str) -> Figure | None:
    """The layers of one prediction with their phases end to end, the largest first."""
    rows = [
        LayerSeconds(**{key: layer[key] for key in ("layer", "forward_s", "backward_s", "update_s")})
        for layer in one["layer_times"]
    ]
    drawn = layers_together(rows, "layer", how="Predicted")
    if drawn is None:
        return None
    return replace(drawn, name="predicted-layers", title=f"Layers of a step on {name}")


def memory(found: Sequence[Row]) -> Figure:
    """What a step needs, beside what its device has."""
    shown, labels = found[:MOST_DEVICES], apart(titles(found)[:MOST_DEVICES])
    tensors = [one["peak_memory_bytes"] / _GIB for one in shown]
    rounding = [
        max(0.0, one["reserved_memory_bytes"] / _GIB - peak) for one, peak in zip(shown, tensors, strict=True)
    ]
    bars: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [round(value, 3) for value in values],
            "marker": {"color": tint},
            "hovertemplate": "%{y}: %{x:.1f} GiB<extra>" + name + "</extra>",
        }
        for name, values, tint in (
            ("tensors at the peak", tensors, palette.colour("forward")),
            ("the allocator's rounding", rounding, palette.colour("copy")),
        )
    ]
    known = [place for place, one in enumerate(shown) if one.get("device_memory_bytes")]
    bars.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "the device has",
            "y": [labels[place] for place in known],
            "x": [round(shown[place]["device_memory_bytes"] / _GIB, 2) for place in known],
            "marker": {
                "symbol": "line-ns",
                "size": 16,
                "line": {"width": 3, "color": palette.colour("unexplained")},
            },
            "hovertemplate": "%{y}: %{x:.0f} GiB<extra>the device has</extra>",
        }
    )
    return Figure(
        name="predicted-memory",
        title="Memory",
        caption="What must fit is what the allocator reserves." + _first_of(found),
        traces=bars,
        layout={"barmode": "stack", "xaxis": axis("GiB", rangemode="tozero"), "yaxis": NAMES_AXIS},
        height=140 + 26 * max(2, len(shown)),
    )


# -- beside a run ----------------------------------------------------------------------------------


def layers_beside(rows: Sequence[Row]) -> Figure | None:
    """Each layer measured and predicted; `rows` are the layers of `comparison_predicted.against`."""
    shown = _largest(rows)
    if not shown:
        return None
    labels = apart([row["layer"] for row in shown])
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": side,
            "y": labels,
            "x": milliseconds(np.nan if row["total"][side] is None else row["total"][side] for row in shown),
            "customdata": [label(row["layer"]) for row in shown],
            "marker": {"color": tint},
            "hovertemplate": "%{customdata}: %{x} ms<extra>" + side + "</extra>",
        }
        for side, tint in _SIDES.items()
    ]
    return Figure(
        name="measured-predicted",
        title="Layers, measured and predicted",
        caption="Milliseconds of each layer in a step, all phases together, in the order of the network."
        + _of(shown, rows),
        traces=traces,
        layout={"barmode": "group", "xaxis": axis("ms"), "yaxis": NAMES_AXIS, "bargap": 0.25},
        height=140 + 32 * max(3, len(shown)),
    )


def errors(rows: Sequence[Row]) -> Figure | None:
    """How far each layer's prediction is off, in per cent; the larger the dot, the longer it takes."""
    shown = [row for row in _largest(rows) if row["total"]["error"] is not None]
    if not shown:
        return None
    labels = apart([row["layer"] for row in shown])
    longest = max(row["total"]["measured"] for row in shown)
    off = [row["total"]["error"] * 100 for row in shown]
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 0, "x1": 0, "layer": "below"}
    return Figure(
        name="layer-errors",
        title="Error of each layer",
        caption="Predicted over measured, less one: left of 0 the layer was predicted too fast. The larger "
        "the dot, the longer the layer takes." + _of(shown, rows),
        traces=[
            {
                "type": "scatter",
                "mode": "markers",
                "y": labels,
                "x": [round(min(one, _FURTHEST), 2) for one in off],
                "marker": {
                    "color": [palette.colour("forward" if one < 0 else "backward") for one in off],
                    "size": [round(7 + 17 * (row["total"]["measured"] / longest) ** 0.5) for row in shown],
                    "opacity": 0.85,
                },
                "customdata": [
                    [label(row["layer"]), f"{one:+.1f}"] for row, one in zip(shown, off, strict=True)
                ],
                "hovertemplate": "%{customdata[0]}: %{customdata[1]} %<extra></extra>",
            }
        ],
        layout={
            "xaxis": axis("% off"),
            "yaxis": NAMES_AXIS,
            "showlegend": False,
            "shapes": [line | {"line": {"color": palette.colour("host"), "width": 1.5}}],
        },
        height=140 + 24 * max(3, len(shown)),
    )


def _largest(rows: Sequence[Row]) -> list[Row]:
    def weight(row: Row) -> float:
        return max(row["total"]["measured"] or 0.0, row["total"]["predicted"] or 0.0)

    timed = [row for row in rows if weight(row)]
    kept = sorted(timed, key=lambda row: -weight(row))[:_MOST_LAYERS]
    return [row for row in timed if any(row is one for one in kept)]


def _of(shown: Sequence[Row], rows: Sequence[Row]) -> str:
    return f" The {len(shown)} largest of {len(rows)}." if len(rows) > _MOST_LAYERS else ""
