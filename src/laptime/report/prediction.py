"""Predictions as terminal tables: devices and batch sizes side by side, and one step layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from laptime.predict.choosing import Choice
from laptime.predict.dataflow_step import Fed, waited
from laptime.predict.explaining import Explanation
from laptime.predict.largest import Largest
from laptime.predict.prediction import Prediction
from laptime.report.columns import Column, paragraph, table
from laptime.report.prediction_parts import (
    choice_lines,
    explanation_lines,
    flow_lines,
    largest_columns,
    waits_for,
)

_GIB = 2.0**30
_SHOWN = 12  # layers, unless all are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Predictions, and what else was asked of them."""

    predictions: Sequence[Prediction]
    fed: Sequence[Fed] = ()  # the data flow of each
    largest: Sequence[Largest] = ()  # of each device and number of GPUs
    choices: Sequence[Choice] = ()
    explanation: Explanation | None = None


def lines(shown: Shown, width: int, *, every_layer: bool = False) -> list[Any]:
    """A table of all; for one alone, its layers and its bottleneck too; then what else was asked for."""
    found = shown.predictions
    first = found[0]
    what = "forward pass" if first.mode == "inference" else "training step"
    together = {one.gpus for one in found} == {first.gpus} and first.gpus > 1
    many = f" on {first.gpus} GPUs of one node, each with its own batch" if together else ""
    head = f"{first.network}: a {what} in {first.precision}{many}, predicted"
    rows = _ranked(shown, every_layer)
    made: list[Any] = [head, "", *_overview(shown, rows, width)]
    if len(rows) < len(found):
        made.append(f"  {len(found) - len(rows)} more are left out; --all shows them")
    if len(found) == 1:
        made += ["", *_layers(first, width, every_layer), "", *_words(first, width)]
    else:
        bases = sorted({one.basis for one in found})
        words = f"± is what nine in ten stay within; times rest on: {', '.join(bases)}"
        made += ["", *paragraph(words, width)]
    unknown = sorted({one.device for one in found if one.fits is None})
    if unknown:
        named = ", ".join(unknown[:4]) + (" …" if unknown[4:] else "")
        words = f"?: the memory of {named} is not known; memory_gib in a device's file would tell what fits"
        made += paragraph(words, width)
    made += choice_lines(shown.choices, width)
    made += flow_lines(shown.fed, width)
    return made + (explanation_lines(shown.explanation, width) if shown.explanation else [])


def _ranked(shown: Shown, every: bool) -> list[int]:
    """Which predictions to show: those that a choice would look at first, or all in their order."""
    places = list(range(len(shown.predictions)))
    if not shown.choices or every:
        return places
    by_price = shown.choices[0].by == "dollars"
    told = [
        one for choice in shown.choices for one in (choice.chosen, choice.runner_up, choice.closest) if one
    ]
    first = {(one.device, one.batch, one.gpus): place for place, one in reversed(list(enumerate(told)))}
    after, predictions = len(told), _as_fed(shown)

    def rank(place: int) -> tuple[int, bool, float]:
        one = predictions[place]
        named = first.get((one.device, one.batch, one.gpus), after)
        return named, one.fits is not True, (one.dollars if by_price else one.training_s) or math.inf

    return sorted(places, key=rank)[:_SHOWN]


def _as_fed(shown: Shown) -> Sequence[Prediction]:
    """With the hours and dollars that the data flow lets be."""
    return [waited(one) for one in shown.fed] or shown.predictions


def _overview(shown: Shown, rows: Sequence[int], width: int) -> list[Any]:
    found = [shown.predictions[place] for place in rows]
    trained = [_as_fed(shown)[place] for place in rows]
    several = len({one.gpus for one in shown.predictions}) > 1
    columns: list[tuple[str, int, Callable[[Prediction], str]]] = [
        ("GPUs", 0, lambda one: str(one.gpus) if several else ""),
        ("batch", 0, lambda one: str(one.batch)),
        ("step ms", 0, lambda one: f"{one.step_s * 1e3:.4g}"),
        ("±", 1, lambda one: f"{(one.interval_s[1] / one.step_s - 1) * 100:.0f} %"),
        ("samples/s", 1, lambda one: f"{one.samples_per_s:,.0f}"),
        ("GiB", 0, lambda one: f"{one.reserved_memory_bytes / _GIB:.1f}"),
        ("fits", 0, lambda one: {True: "yes", False: "no", None: "?"}[one.fits]),
    ]
    training: list[tuple[str, int, Callable[[Prediction], str]]] = [
        ("hours", 2, lambda one: _number(one.training_s, 2, over=3600)),
        ("$", 3, lambda one: _number(one.dollars, 2)),
        ("kWh", 4, lambda one: _number(one.kilowatt_hours, 1)),
    ]
    made = [Column(title="device", cells=[one.device for one in found], words=True)]
    for these, them in ((columns, found), (training, trained)):
        for title, needed, read in these:
            cells = [read(one) for one in them]
            if any(cells):
                made.append(Column(title=title, cells=cells, needed=needed))
    if shown.fed:
        fed = [shown.fed[place] for place in rows]
        made.append(Column(title="with data", cells=[f"{one.times.step_s * 1e3:.4g}" for one in fed]))
        made.append(Column(title="waits for", cells=[waits_for(one) for one in fed], words=True))
    if shown.largest:
        made += largest_columns(found, shown.largest)
    return list(table(made, width))


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
