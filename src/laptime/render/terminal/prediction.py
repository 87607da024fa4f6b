"""Predictions as terminal tables: devices and batch sizes side by side, and one step layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.dataflow_step import Fed
from laptime.estimate.explain import Explanation
from laptime.estimate.largest_batch import Largest
from laptime.model.prediction import Prediction
from laptime.render.terminal.columns import Column, fitting, left_out, paragraph, table
from laptime.render.terminal.prediction_explanation import explanation_lines
from laptime.render.terminal.prediction_overview import legend, overview_columns
from laptime.render.terminal.prediction_parts import choice_lines, flow_lines
from laptime.views.time_units import duration, step_unit

_GIB = 2.0**30
_SHOWN = 12  # layers, unless all are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Predictions, and what else was asked of them. With data flow, they are those of steps that wait."""

    predictions: Sequence[Prediction]
    fed: Sequence[Fed] = ()  # the data flow of each
    largest: Sequence[Largest] = ()  # of each device and number of GPUs
    choices: Sequence[DeviceChoice] = ()
    explanation: Explanation | None = None


def lines(shown: Shown, width: int, *, every_layer: bool = False) -> list[Any]:
    """A table of all; for one alone, its layers and its bottleneck too; then what else was asked for."""
    found = shown.predictions
    first = found[0]
    what = "forward pass" if first.mode == "inference" else "training step"
    together = {one.gpus for one in found} == {first.gpus} and first.gpus > 1
    many = f" on {first.gpus} GPUs of one node, each with its own batch" if together else ""
    head = f"{first.network}: a {what} in {first.precision}{many}, predicted"
    made: list[Any] = [*paragraph(head, width), "", *_overview(shown, width, every_layer)]
    if len(found) == 1:
        made += ["", *_layers(first, width, every_layer), "", *_words(first, shown.fed, width)]
    unknown = sorted({one.device for one in found if one.fits is None})
    if unknown:
        named = ", ".join(unknown[:4]) + (" …" if unknown[4:] else "")
        words = f"?: the memory of {named} is not known; memory_gib in a device's file would tell what fits"
        made += paragraph(words, width)
    made += choice_lines(shown.choices, width)
    made += flow_lines(shown.fed, width)
    return made + (explanation_lines(shown.explanation, width) if shown.explanation else [])


def _overview(shown: Shown, width: int, every: bool) -> list[Any]:
    """The table, what it had no room for, and what its columns mean."""
    found = shown.predictions
    rows = _ranked(shown, every)
    fed = [shown.fed[place] for place in rows] if shown.fed else []
    choice = shown.choices[0] if shown.choices else None
    several = len({one.gpus for one in found}) > 1
    columns = overview_columns([found[place] for place in rows], fed, shown.largest, choice, several)
    best = [rows.index(place) for place in rows if choice and found[place] is choice.chosen]
    made: list[Any] = list(table(columns, width, bold=best))
    if len(rows) < len(found):
        words = f"{len(found) - len(rows)} more are left out; --all shows them"
        made += paragraph(words, width, bullet="  ")
    if gone := left_out(columns, width):
        words = f"no room for {', '.join(gone)}: a wider terminal or --json has them"
        made += paragraph(words, width, bullet="  ")
    told = legend({one.title for one in fitting(columns, width)}, choice, alone=len(found) == 1)
    if len(found) > 1:
        told.append(f"times rest on: {', '.join(sorted({one.basis for one in found}))}")
    return made + (["", *(line for text in told for line in paragraph(text, width))] if told else [])


def _ranked(shown: Shown, every: bool) -> list[int]:
    """Which predictions to show: in the order of the choice, or all as they are."""
    places = list(range(len(shown.predictions)))
    if not shown.choices:
        return places
    choice, found = shown.choices[0], shown.predictions
    ranked = sorted(places, key=lambda place: choice.rank(found[place]))
    if every:
        return ranked
    named = [place for place in ranked[_SHOWN:] if found[place] is choice.runner_up]
    return ranked[: _SHOWN - len(named)] + named


def _layers(one: Prediction, width: int, every_layer: bool) -> list[Any]:
    timed = [layer for layer in one.layers() if layer.total_s]
    ranked = timed
    if not every_layer and len(timed) > _SHOWN:
        kept = sorted(timed, key=lambda layer: -layer.total_s)[:_SHOWN]
        ranked = [layer for layer in timed if layer in kept]
    unit = step_unit([layer.total_s for layer in ranked])

    def column(title: str, read: Callable[[Any], float]) -> Column:
        return Column(title=title, cells=[f"{read(layer) / unit.seconds:,.3f}" for layer in ranked])

    phases: dict[str, Callable[[Any], float]] = {
        "forward": lambda layer: layer.forward_s,
        "backward": lambda layer: layer.backward_s,
        "update*": lambda layer: layer.update_s,
    }
    phases = {title: read for title, read in phases.items() if any(read(layer) for layer in timed)}
    made = [
        Column(title="layer", cells=[layer.layer for layer in ranked], words=True),
        *(column(title, read) for title, read in phases.items()),
        *([column("total", lambda layer: layer.total_s)] if len(phases) > 1 else []),
        Column(title="share", cells=[f"{layer.total_s / one.step_s * 100:.1f} %" for layer in ranked]),
    ]
    more = ["* allocated: the optimizer's time, split by parameter bytes"] if "update*" in phases else []
    if len(timed) > len(ranked):
        more.append(f"{len(timed) - len(ranked)} smaller layers are left out; --all shows them")
    told = [line for text in more for line in paragraph(text, width, bullet="  ")]
    return [f"Layers of a step, in {unit.name}", *table(made, width), *told]


def _words(one: Prediction, fed: Sequence[Fed], width: int) -> list[Any]:
    found = [f"bottleneck: {one.bottleneck}", f"times rest on: {one.basis}", _memory(one)]
    if fed and fed[0].starves:
        found.append(f"computing alone takes {duration(fed[0].prediction.step_s)}; in the rest it waits")
    if one.gpus > 1:
        added = duration(one.communication_s)
        found.append(f"the exchange of gradients adds {added}; layers are those of one GPU")
    low, high = (duration(end) for end in one.interval_s)
    found.append(f"nine in ten predictions of this kind stay within their interval, here {low} to {high}")
    if one.uncovered:
        named = ", ".join(f"{name} ({share:.1%})" for name, share in list(one.uncovered.items())[:5])
        found.append(f"without a formula, counted by their bytes alone: {named}")
    return [line for text in (*found, *one.notes) for line in paragraph(text, width, bullet="  - ")]


def _memory(one: Prediction) -> str:
    """The peak, and what the allocator makes of it."""
    peak, needs = one.peak_memory_bytes / _GIB, one.reserved_memory_bytes / _GIB
    words = f"memory: tensors take {peak:.1f} GiB at the peak"
    if one.reserved_memory_bytes > one.peak_memory_bytes:
        words += f"; the allocator reserves about {needs / peak:.2f} times that, {needs:.1f} GiB"
    if one.device_memory_bytes is not None:
        words += f"; the device has {one.device_memory_bytes / _GIB:.0f} GiB"
    return words
