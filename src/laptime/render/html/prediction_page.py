"""The page of predictions: fresh ones, or read from files of `laptime predict --json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from laptime.files.text import one_line
from laptime.model.prediction import Prediction
from laptime.render.html.page import Page, Section, Tile
from laptime.views import format
from laptime.views.figures import prediction as figures
from laptime.views.prediction.tables import constants_table, flows_table, kinds_table, predictions_table
from laptime.views.prediction.view import PredictionView
from laptime.views.time_units import duration, long_duration

_GIB = 2.0**30
_TONES = {True: "good", False: "bad", None: ""}  # by whether it fits


def prediction_page(view: PredictionView) -> Page:
    """Everything that is known of predictions, of one device or of many."""
    predictions, first = view.predictions, view.first
    name = figures.titles([*predictions, first])[-1]
    what = "forward pass" if first.mode == "inference" else "training step"
    networks = list(dict.fromkeys(made.network for made in predictions))
    sections = [
        _answers(view),
        _devices(view),
        _layers(first, name),
        Section(name="memory", title="Memory", figures=[figures.memory(predictions)]),
        _flow(view),
        _limits(predictions),
        _explanation(view),
    ]
    return Page(
        title=f"{one_line(', '.join(networks))}: a {what}, predicted",
        subtitle=f"{format.plural(len(predictions), 'prediction')}; nothing here was measured",
        about=_about(predictions),
        tiles=list(_tiles(view, first, name)),
        sections=[section for section in sections if not section.empty],
    )


def _about(predictions: Sequence[Prediction]) -> list[str]:
    told = []
    for key, title in (("precision", "{}"), ("batch", "batch {}"), ("gpus", "{} GPUs of one node")):
        values = list(dict.fromkeys(str(getattr(made, key)) for made in predictions))
        if values != ["1"] or key == "batch":
            told.append(one_line(title.format(", ".join(values))))
    return told


def _tiles(view: PredictionView, made: Prediction, name: str) -> Iterator[Tile]:
    low, high = (duration(end) for end in made.interval_s)
    yield Tile(
        name=f"a step on {one_line(name)}",
        value=duration(made.step_s),
        note=f"nine in ten: {low} to {high}",
    )
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


def _answers(view: PredictionView) -> Section:
    """What was chosen, where that was asked for."""
    told = []
    for choice in view.choices:
        told += [f"{choice.wanted}: {choice.why}", *choice.left_out]
    if told:
        told.append("every batch size is taken to need the same epochs")
    names = figures.titles(view.predictions)
    unfit = [name for name, made in zip(names, view.predictions, strict=True) if made.fits is False]
    if unfit and len(names) > 1:
        named = ", ".join(unfit[:6]) + (f" and {len(unfit) - 6} more" if len(unfit) > 6 else "")
        told.append(f"does not fit: {named}")
    return Section(name="first", title="What to know first", bullets=[one_line(line) for line in told])


def _devices(view: PredictionView) -> Section:
    drawn = [figures.step_times(view)] if len(view.predictions) > 1 else []
    more = [figures.throughput(view, "batch"), figures.throughput(view, "gpus")]
    return Section(
        name="devices",
        title="Devices" if len({made.device for made in view.predictions}) > 1 else "Predictions",
        figures=[*drawn, *(figure for figure in more if figure is not None)],
        tables=[predictions_table(view)],
    )


def _layers(made: Prediction, name: str) -> Section:
    drawn = figures.layers(made, one_line(name))
    told = [] if drawn else ["This prediction names no layers."]
    if drawn and made.gpus > 1:
        told = [f"Layers of one GPU; the exchange of gradients adds {duration(made.communication_s)}."]
    return Section(name="layers", title="Layers", sentences=told, figures=[drawn] if drawn else [])


def _flow(view: PredictionView) -> Section:
    told = dict.fromkeys(one_line(line) for flow in view.flows for line in flow.rests_on)
    tables = [flows_table(view.flows)] if view.flows else []
    return Section(name="flow", title="Data flow", tables=tables, bullets=list(told))


def _limits(predictions: Sequence[Prediction]) -> Section:
    """What the times rest on, what was assumed and what is not covered; what holds for all is said once."""
    said: dict[str, list[str]] = {}
    for name, made in zip(figures.titles(predictions), predictions, strict=True):
        lines = [f"times rest on: {made.basis}", *made.notes]
        lines += [
            f"without a formula, counted by its bytes alone: {operation} ({share:.1%} of the bytes)"
            for operation, share in made.uncovered.items()
        ]
        for line in lines:
            said.setdefault(line, []).append(name)
    bullets = []
    for line, names in said.items():
        whose = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        bullets.append(one_line(line if len(names) == len(predictions) else f"{whose}: {line}"))
    if not any(made.uncovered for made in predictions):
        bullets.append("every operation of the step has a formula: nothing is left uncovered")
    return Section(name="limits", title="What it rests on", bullets=bullets[:60])


def _explanation(view: PredictionView) -> Section:
    tables = []
    if view.explanation is not None:
        constants = replace(constants_table(view.explanation), folded=True)
        tables = [table for table in (kinds_table(view.explanation), constants) if table.rows]
    return Section(name="explanation", title="Explanation", tables=tables)
