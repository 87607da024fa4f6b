"""The page of predictions: fresh ones, or read from files of `laptime predict --json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from laptime.files.text import one_line
from laptime.model.prediction import Prediction
from laptime.render.html.page import Page, Section, Tile
from laptime.views import format
from laptime.views.figures import prediction as figures
from laptime.views.figures.layers import layers_together
from laptime.views.format import duration, long_duration
from laptime.views.prediction import (
    PredictionView,
    constants_table,
    flows_table,
    kinds_table,
    predictions_table,
)

_GIB = 2.0**30
_TONES = {True: "good", False: "bad", None: ""}  # by whether it fits


def prediction_page(view: PredictionView) -> Page:
    """Everything that is known of predictions, of one device or of many."""
    predictions, first = view.predictions, view.first
    name = figures.titles([*predictions, first])[-1]
    what = "forward pass" if first.mode == "inference" else "training step"
    networks = list(dict.fromkeys(made.network for made in predictions))
    drawn = layers_together(first.layers(), "layer", how="Predicted")
    drawn = replace(drawn, name="predicted-layers", title=f"Layers of a step on {one_line(name)}")
    told = None if drawn else "This prediction names no layers."
    if drawn and first.gpus > 1:
        told = f"Layers of one GPU; the exchange of gradients adds {duration(first.communication_s)}."
    explained = []
    if view.explanation is not None:
        explained = [kinds_table(view.explanation), replace(constants_table(view.explanation), folded=True)]
    sections = [
        Section.of("first", "What to know first", bullets=_answers(view)),
        Section.of(
            "devices",
            "Devices" if len({made.device for made in predictions}) > 1 else "Predictions",
            figures.step_times(view) if len(predictions) > 1 else None,
            figures.throughput(view, "batch"),
            figures.throughput(view, "gpus"),
            predictions_table(view),
        ),
        Section.of("layers", "Layers", told, drawn),
        Section.of("memory", "Memory", figures.memory(predictions)),
        Section.of(
            "flow",
            "Data flow",
            flows_table(view.flows),
            bullets=dict.fromkeys(line for flow in view.flows for line in flow.rests_on),
        ),
        Section.of("limits", "What it rests on", bullets=_limits(predictions)[:60]),
        Section.of("explanation", "Explanation", *explained),
    ]
    about = []
    for key, title in (("precision", "{}"), ("batch", "batch {}"), ("gpus", "{} GPUs of one node")):
        values = list(dict.fromkeys(str(getattr(made, key)) for made in predictions))
        if values != ["1"] or key == "batch":
            about.append(one_line(title.format(", ".join(values))))
    return Page(
        title=f"{one_line(', '.join(networks))}: a {what}, predicted",
        subtitle=f"{format.plural(len(predictions), 'prediction')}; nothing here was measured",
        about=about,
        tiles=list(_tiles(view, first, name)),
        sections=[section for section in sections if not section.empty],
    )


def _tiles(view: PredictionView, made: Prediction, name: str) -> Iterator[Tile]:
    low, high = (duration(end) for end in made.interval_s)
    note = f"nine in ten: {low} to {high}"
    yield Tile(name=f"a step on {one_line(name)}", value=duration(made.step_s), note=note)
    speeds = dict(zip(map(id, view.predictions), view.samples_per_s, strict=True))
    yield Tile(name="samples a second", value=f"{speeds.get(id(made), made.samples_per_s):,.0f}")
    if made.training_s is not None:
        note = format.plural(made.epochs or 0, "epoch")
        yield Tile(name="training", value=long_duration(made.training_s), note=note)
    elif made.epoch_s is not None:
        yield Tile(name="an epoch", value=long_duration(made.epoch_s))
    if made.dollars is not None:
        note = f"at ${made.price_per_hour:,.2f} an hour for each GPU"
        yield Tile(name="money", value=f"${made.dollars:,.2f}", note=note)
    if made.kilowatt_hours is not None:
        yield Tile(name="energy", value=f"{made.kilowatt_hours:,.1f} kWh", note="at full power")
    room = made.device_memory_bytes
    note = "" if not room else f"of {room / _GIB:,.0f} GiB"
    if made.fits is not None:
        note += ": it fits" if made.fits else ": it does not fit"
    needed = f"{made.reserved_memory_bytes / _GIB:,.1f} GiB"
    yield Tile(name="memory", value=needed, note=note.strip(": "), tone=_TONES[made.fits])
    cause, _, share = made.bottleneck.partition(": ")
    yield Tile(name="bottleneck", value=one_line(cause), note=one_line(share))


def _answers(view: PredictionView) -> Iterator[str]:
    """What was chosen, where that was asked for."""
    for choice in view.choices:
        yield from (f"{choice.wanted}: {choice.why}", *choice.left_out)
    if view.choices:
        yield "every batch size is taken to need the same epochs"
    names = figures.titles(view.predictions)
    unfit = [name for name, made in zip(names, view.predictions, strict=True) if made.fits is False]
    if unfit and len(names) > 1:
        yield f"does not fit: {format.listed(unfit, 6)}"


def _limits(predictions: Sequence[Prediction]) -> list[str]:
    """What the times rest on, what was assumed and what is not covered; what holds for all is said once."""
    said: dict[str, list[str]] = {}
    for name, made in zip(figures.titles(predictions), predictions, strict=True):
        uncovered = [
            f"without a formula, counted by its bytes alone: {operation} ({share:.1%} of the bytes)"
            for operation, share in made.uncovered.items()
        ]
        for line in (f"times rest on: {made.basis}", *made.notes, *uncovered):
            said.setdefault(line, []).append(name)
    bullets = [
        line if len(names) == len(predictions) else f"{format.listed(names, 4)}: {line}"
        for line, names in said.items()
    ]
    if not any(made.uncovered for made in predictions):
        bullets.append("every operation of the step has a formula: nothing is left uncovered")
    return bullets
