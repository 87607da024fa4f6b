"""Predictions: step times with intervals, throughput, layers and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from laptime.model.prediction import Prediction
from laptime.views import palette
from laptime.views.figures.comparison import NAMES_AXIS
from laptime.views.figures.figure import Figure, Trace, apart, axis, interval_dots, label, milliseconds
from laptime.views.figures.layers import layers_together
from laptime.views.prediction.view import PredictionView

MOST_DEVICES = 60
_GIB = 2.0**30
_FIT = {True: palette.colour("data_wait"), False: palette.colour("unexplained"), None: palette.colour("host")}
_FITS = {True: "fits", False: "does not fit", None: "memory not known"}


def titles(predictions: Sequence[Prediction]) -> list[str]:
    """What tells predictions apart: the device, and of network, precision, batch, GPUs what differs."""
    parts: dict[str, Callable[[Prediction], str]] = {
        "network": lambda made: made.network,
        "precision": lambda made: made.precision,
        "batch": lambda made: f"batch {made.batch}",
        "gpus": lambda made: f"{made.gpus} GPU" + ("" if made.gpus == 1 else "s"),
    }
    differ = [
        write for name, write in parts.items() if len({getattr(made, name) for made in predictions}) > 1
    ]
    return [", ".join([made.device, *(write(made) for write in differ)]) for made in predictions]


def step_times(view: PredictionView) -> Figure:
    """A dot for each prediction with its interval, coloured by whether it fits."""
    shown, names = view.predictions[:MOST_DEVICES], titles(view.predictions)[:MOST_DEVICES]
    speeds = view.samples_per_s
    labels = apart(names)
    traces: list[Trace] = []
    for fits, tint in _FIT.items():
        here = [place for place, made in enumerate(shown) if made.fits is fits]
        if not here:
            continue
        steps = np.array([shown[place].step_s for place in here])
        low, high = (np.array([shown[place].interval_s[end] for place in here]) for end in (0, 1))
        traces.append(
            interval_dots(
                [labels[place] for place in here],
                steps,
                low,
                high,
                milliseconds,
                name=_FITS[fits],
                marker={"color": tint, "size": 10},
                customdata=[[label(names[place]), f"{speeds[place]:,.0f}"] for place in here],
                hovertemplate="%{customdata[0]}: %{x} ms, %{customdata[1]} samples/s<extra></extra>",
            )
        )
    return Figure(
        name="predicted-steps",
        title="Step time",
        caption="Nine in ten predictions of this kind stay within their interval."
        + _first_of(view.predictions),
        traces=traces,
        layout={
            "xaxis": axis("ms", **_scale([end for made in shown for end in made.interval_s])),
            "yaxis": NAMES_AXIS | {"categoryorder": "array", "categoryarray": labels},
        },
        height=140 + 26 * max(2, len(shown)),
    )


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic where a linear axis would press most of the values together."""
    known = [value for value in values if value > 0]
    far = known and max(known) / min(known) > 30
    return {"type": "log", "dtick": "D2"} if far else {"rangemode": "tozero"}


def _first_of(found: Sequence[Prediction]) -> str:
    return f" The first {MOST_DEVICES} of {len(found)}." if len(found) > MOST_DEVICES else ""


def throughput(view: PredictionView, over: Literal["batch", "gpus"]) -> Figure | None:
    """Samples a second over `batch` or `gpus`, a line for each of the others; None where it does not vary."""
    rest = "gpus" if over == "batch" else "batch"
    lines: dict[tuple[str, str, int], dict[int, float]] = {}
    firsts: list[Prediction] = []
    for made, speed in zip(view.predictions, view.samples_per_s, strict=True):
        key = (made.network, made.device, getattr(made, rest))
        if key not in lines:
            firsts.append(replace(made, batch=0) if over == "batch" else replace(made, gpus=0))
        lines.setdefault(key, {})[getattr(made, over)] = speed
    varying = [(first, line) for first, line in zip(firsts, lines.values(), strict=True) if len(line) > 1]
    if not varying:
        return None
    names = apart(titles([first for first, _ in varying]))
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": sorted(line),
            "y": [float(f"{line[value]:.5g}") for value in sorted(line)],
            "line": {"color": palette.nth_colour(place)},
            "hovertemplate": "%{y:,.0f} samples/s",
        }
        for place, (name, (_, line)) in enumerate(zip(names, varying, strict=True))
    ]
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
                tickvals=sorted({value for _, line in varying for value in line}),
            ),
            "yaxis": axis("samples/s", rangemode="tozero"),
            "hovermode": "x unified",
        },
    )


def layers(made: Prediction, name: str) -> Figure | None:
    """The layers of one prediction with their phases end to end, the largest first."""
    drawn = layers_together(made.layers(), "layer", how="Predicted")
    if drawn is None:
        return None
    return replace(drawn, name="predicted-layers", title=f"Layers of a step on {name}")


def memory(predictions: Sequence[Prediction]) -> Figure:
    """What a step needs, beside what its device has."""
    shown, labels = predictions[:MOST_DEVICES], apart(titles(predictions)[:MOST_DEVICES])
    tensors = [made.peak_memory_bytes / _GIB for made in shown]
    rounding = [
        max(0.0, made.reserved_memory_bytes / _GIB - peak) for made, peak in zip(shown, tensors, strict=True)
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
    known = [(place, has) for place, made in enumerate(shown) if (has := made.device_memory_bytes)]
    bars.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "the device has",
            "y": [labels[place] for place, _ in known],
            "x": [round(has / _GIB, 2) for _, has in known],
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
        caption="What must fit is what the allocator reserves." + _first_of(predictions),
        traces=bars,
        layout={"barmode": "stack", "xaxis": axis("GiB", rangemode="tozero"), "yaxis": NAMES_AXIS},
        height=140 + 26 * max(2, len(shown)),
    )
