"""Predictions as terminal tables: devices and batch sizes side by side, and one step layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from laptime.predict.prediction import Prediction
from laptime.report.columns import Column, paragraph, table

_GIB = 2.0**30
_SHOWN = 12  # layers, unless all are asked for


def lines(found: Sequence[Prediction], width: int, *, every_layer: bool = False) -> list[Any]:
    """A table of all; for one alone, its layers and its bottleneck too."""
    first = found[0]
    what = "forward pass" if first.mode == "inference" else "training step"
    many = f" on {first.gpus} GPUs of one node, each with its own batch" if first.gpus > 1 else ""
    head = f"{first.network}: a {what} in {first.precision}{many}, predicted"
    made: list[Any] = [head, "", *_overview(found, width)]
    if len(found) == 1:
        made += ["", *_layers(first, width, every_layer), "", *_words(first, width)]
    else:
        bases = sorted({one.basis for one in found})
        made += [
            "",
            *paragraph(f"± is what nine in ten stay within; times rest on: {', '.join(bases)}", width),
        ]
    return made


def _overview(found: Sequence[Prediction], width: int) -> list[Any]:
    columns: list[tuple[str, int, Callable[[Prediction], str]]] = [
        ("batch", 0, lambda one: str(one.batch)),
        ("step ms", 0, lambda one: f"{one.step_s * 1e3:.4g}"),
        ("±", 1, lambda one: f"{(one.interval_s[1] / one.step_s - 1) * 100:.0f} %"),
        ("samples/s", 1, lambda one: f"{one.samples_per_s:,.0f}"),
        ("GiB", 0, lambda one: f"{one.reserved_memory_bytes / _GIB:.1f}"),
        ("fits", 0, lambda one: {True: "yes", False: "no", None: "?"}[one.fits]),
        ("hours", 2, lambda one: _number(one.training_s, 2, over=3600)),
        ("$", 3, lambda one: _number(one.dollars, 2)),
        ("kWh", 4, lambda one: _number(one.kilowatt_hours, 1)),
    ]
    shown = [Column(title="device", cells=[one.device for one in found], words=True)]
    for title, needed, read in columns:
        cells = [read(one) for one in found]
        if any(cells):
            shown.append(Column(title=title, cells=cells, needed=needed))
    return list(table(shown, width))


def _number(value: float | None, digits: int, *, over: float = 1.0) -> str:
    return "" if value is None else f"{value / over:,.{digits}f}"


def _layers(one: Prediction, width: int, every_layer: bool) -> list[Any]:
    ranked = [layer for layer in one.layers() if layer.total_s]
    if not every_layer and len(ranked) > _SHOWN:
        kept = sorted(ranked, key=lambda layer: -layer.total_s)[:_SHOWN]
        ranked = [layer for layer in ranked if layer in kept]
    names = [layer.layer or "(loss)" for layer in ranked]

    def column(title: str, read: Callable[[Any], float]) -> Column:
        return Column(title=title, cells=[f"{read(layer) * 1e3:.3f}" for layer in ranked])

    made = [
        Column(title="layer", cells=names, words=True),
        column("forward", lambda layer: layer.forward_s),
        column("backward", lambda layer: layer.backward_s),
        column("update*", lambda layer: layer.update_s),
        column("total", lambda layer: layer.total_s),
        Column(title="share", cells=[f"{layer.total_s / one.step_s * 100:.1f} %" for layer in ranked]),
    ]
    left = len([layer for layer in one.layers() if layer.total_s]) - len(ranked)
    more = ["  * allocated: the optimizer's time, split by parameter bytes"] if one.mode == "training" else []
    more += [f"  {left} smaller layers are left out; --all shows them"] if left else []
    return ["Layers of a step, in ms", *table(made, width), *more]


def _words(one: Prediction, width: int) -> list[Any]:
    found = [f"bottleneck: {one.bottleneck}", f"times rest on: {one.basis}"]
    if one.gpus > 1:
        found.append(
            f"the exchange of gradients adds {one.communication_s * 1e3:.3g} ms; layers are those of one GPU"
        )
    low, high = (end * 1e3 for end in one.interval_s)
    found.append(
        f"nine in ten predictions of this kind stay within their interval, here {low:.4g} to {high:.4g} ms"
    )
    if one.uncovered:
        named = ", ".join(f"{name} ({share:.1%})" for name, share in list(one.uncovered.items())[:5])
        found.append(f"without a formula, counted by their bytes alone: {named}")
    return [line for text in (*found, *one.notes) for line in paragraph(text, width, bullet="  - ")]
