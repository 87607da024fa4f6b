"""Predictions: step times with intervals, throughput, layers and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from laptime.model.prediction import Prediction
from laptime.views import palette
from laptime.views.figures.figure import (
    NAMES_AXIS,
    Figure,
    Trace,
    apart,
    axis,
    bars,
    interval_dots,
    label,
    layout,
    milliseconds,
    scatter,
)
from laptime.views.format import plural
from laptime.views.prediction import PredictionView

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
        "gpus": lambda made: plural(made.gpus, "GPU"),
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
        traces.append(
            interval_dots(
                [labels[place] for place in here],
                [(shown[place].step_s, *shown[place].interval_s) for place in here],
                milliseconds,
                name=_FITS[fits],
                marker={"color": tint, "size": 10},
                customdata=[[label(names[place]), f"{speeds[place]:,.0f}"] for place in here],
                hovertemplate="%{customdata[0]}: %{x} ms, %{customdata[1]} samples/s<extra></extra>",
            )
        )
    ends = [end for made in shown for end in made.interval_s if end > 0]
    # Logarithmic where a linear axis would press most of the values together.
    far = ends and max(ends) / min(ends) > 30
    scale = {"type": "log", "dtick": "D2"} if far else {"rangemode": "tozero"}
    return Figure(
        name="predicted-steps",
        title="Step time",
        caption="Nine in ten predictions of this kind stay within their interval."
        + _first_of(view.predictions),
        traces=traces,
        layout=layout(
            axis("ms", **scale),
            NAMES_AXIS | {"categoryorder": "array", "categoryarray": labels},
        ),
        height=140 + 26 * max(2, len(shown)),
    )


def _first_of(made: Sequence[Prediction]) -> str:
    return f" The first {MOST_DEVICES} of {len(made)}." if len(made) > MOST_DEVICES else ""


def throughput(view: PredictionView, over: Literal["batch", "gpus"]) -> Figure:
    """Samples a second over `batch` or `gpus` where that varies, a line for each of the others."""
    rest = "gpus" if over == "batch" else "batch"
    lines: dict[tuple[str, str, int], dict[int, float]] = {}
    firsts: dict[tuple[str, str, int], Prediction] = {}
    for made, speed in zip(view.predictions, view.samples_per_s, strict=True):
        key = (made.network, made.device, getattr(made, rest))
        firsts.setdefault(key, replace(made, batch=0) if over == "batch" else replace(made, gpus=0))
        lines.setdefault(key, {})[getattr(made, over)] = speed
    varying = {key: line for key, line in lines.items() if len(line) > 1}
    names = apart(titles([firsts[key] for key in varying]))
    traces = []
    for place, (name, line) in enumerate(zip(names, varying.values(), strict=True)):
        ends = {"x": sorted(line), "y": [float(f"{line[value]:.5g}") for value in sorted(line)]}
        shape = {"color": palette.nth_colour(place)}
        traces.append(scatter(name, "%{y:,.0f} samples/s", "lines+markers", line=shape, **ends))
    ticks = sorted({value for line in varying.values() for value in line})
    word = {"batch": "batch size", "gpus": "GPUs of one node"}[over]
    return Figure(
        name=f"throughput-{over}",
        title=f"Samples a second over the {'batch size' if over == 'batch' else 'number of GPUs'}",
        caption="Predicted; of all GPUs together.",
        traces=traces,
        layout=layout(
            axis(word, type="log" if over == "batch" else "linear", tickvals=ticks),
            axis("samples/s", rangemode="tozero"),
            hovermode="x unified",
        ),
    )


def memory(predictions: Sequence[Prediction]) -> Figure:
    """What a step needs, beside what its device has."""
    shown, labels = predictions[:MOST_DEVICES], apart(titles(predictions)[:MOST_DEVICES])
    tensors = [made.peak_memory_bytes / _GIB for made in shown]
    rounding = [
        max(0.0, made.reserved_memory_bytes / _GIB - peak) for made, peak in zip(shown, tensors, strict=True)
    ]
    traces = [
        bars(name, labels, [round(value, 3) for value in values], tint, "%{y}: %{x:.1f} GiB")
        for name, values, tint in (
            ("tensors at the peak", tensors, palette.colour("forward")),
            ("the allocator's rounding", rounding, palette.colour("copy")),
        )
    ]
    known = [(place, has) for place, made in enumerate(shown) if (has := made.device_memory_bytes)]
    ends = {"y": [labels[place] for place, _ in known], "x": [round(has / _GIB, 2) for _, has in known]}
    edge = {"width": 3, "color": palette.colour("unexplained")}
    hover = "%{y}: %{x:.0f} GiB<extra>the device has</extra>"
    marker = {"symbol": "line-ns", "size": 16, "line": edge}
    traces.append(scatter("the device has", hover, "markers", marker=marker, **ends))
    return Figure(
        name="predicted-memory",
        title="Memory",
        caption="What must fit is what the allocator reserves." + _first_of(predictions),
        traces=traces,
        layout=layout(axis("GiB", rangemode="tozero"), NAMES_AXIS, barmode="stack"),
        height=140 + 26 * max(2, len(shown)),
    )
