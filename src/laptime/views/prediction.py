"""Predictions and what else was asked of them, and their tables.

`PredictionView.document` is what `laptime predict --json` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.dataflow import DataFlow
from laptime.estimate.explain import Explanation
from laptime.estimate.largest_batch import Largest
from laptime.files.parse import build, mapping, sequence
from laptime.files.read import read_json
from laptime.files.text import first_line, one_line
from laptime.files.write import plain
from laptime.model import Phase
from laptime.model.prediction import ROUNDING, Prediction
from laptime.views import format
from laptime.views.format import cells, figures, step_unit, training_unit
from laptime.views.table import Cells, Column, Table, share_cell, table_of, titled

SHOWN = 12  # rows of a terminal, unless all are asked for
MOST_ROWS = 400  # of a page
_GIB = 2.0**30
_FITS = {True: "yes", False: "no", None: "?"}
_MARK = "*"
_MEMORY_MEANING = (
    f"needs GiB: what the allocator reserves, on GPUs about {ROUNDING:g} times what tensors take at the "
    "peak; it decides what fits"
)
_DERIVED = ("samples_per_s", "fits", "epoch_s", "training_s", "dollars", "kilowatt_hours")
_PICKED = ("chosen", "runner_up", "closest")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionView:
    """Predictions in their order. With data flow, they are those of steps that wait for their data."""

    predictions: tuple[Prediction, ...]
    flows: tuple[DataFlow, ...] = ()  # of each
    largest: tuple[Largest, ...] = ()  # of each device and number of GPUs
    choices: tuple[DeviceChoice, ...] = ()
    explanation: Explanation | None = None

    @property
    def first(self) -> Prediction:
        """The one that details are shown of: what was chosen, or the first."""
        return (self.choices[0].chosen if self.choices else None) or self.predictions[0]

    @property
    def samples_per_s(self) -> list[float]:
        """Throughput; GPUs that are parts of one model share their samples."""
        return [flow.times.samples_per_s for flow in self.flows] or [
            made.samples_per_s for made in self.predictions
        ]

    def largest_of(self, made: Prediction) -> Largest | None:
        """The largest batch of a prediction's device and number of GPUs."""
        of_device = [largest for largest in self.largest if largest.device == made.device]
        exact = [
            largest for largest in of_device if largest.prediction and largest.prediction.gpus == made.gpus
        ]
        return next(iter(exact or of_device), None)

    def document(self) -> dict[str, Any]:
        """As `laptime predict --json` writes it."""
        made: dict[str, Any] = {
            "predictions": [
                {**(_document(each) or {}), "samples_per_s": speed}
                for each, speed in zip(self.predictions, self.samples_per_s, strict=True)
            ]
        }
        if self.flows:
            made["data_flow"] = [flow.document() for flow in self.flows]
        if self.largest:
            made["largest"] = [
                plain(each) | {"samples_per_s": each.samples_per_s, "prediction": _document(each.prediction)}
                for each in self.largest
            ]
        if self.choices:
            made["choices"] = [
                plain(choice) | {name: _document(getattr(choice, name)) for name in _PICKED}
                for choice in self.choices
            ]
        if self.explanation is not None:
            made["explanation"] = {"constants": self.explanation.constants, "kinds": self.explanation.kinds}
        return made

    @classmethod
    def of(cls, document: Any) -> PredictionView:
        """From a document; ValueError where that has another form."""
        given = mapping(document)
        predictions = [Prediction.of(made) for made in sequence(given.get("predictions"))]
        flows = [DataFlow.of(flow) for flow in sequence(given.get("data_flow") or [])]
        if flows and len(flows) != len(predictions):
            raise ValueError(f"{len(flows)} data flows stand beside {len(predictions)} predictions")
        others = {
            name: [_with_predictions(each) for each in sequence(given.get(name) or [])]
            for name in ("largest", "choices")
        }
        explained = given.get("explanation") if predictions else None
        if explained:
            explained = {key: mapping(explained).get(key) or () for key in ("constants", "kinds")}
        return build(
            cls, {"predictions": predictions, "flows": flows, "explanation": explained or None, **others}
        )


def _document(made: Prediction | None) -> dict[str, Any] | None:
    """A prediction as JSON has it, with what follows from it."""
    return None if made is None else plain(made) | {name: getattr(made, name) for name in _DERIVED}


def read_view(paths: Sequence[Path]) -> PredictionView:
    """The files of `laptime predict --json` as one view, their predictions in their order.

    What else was asked for is kept of one file alone: it is said of its own predictions.
    """
    views = []
    for path in paths:
        save = "save one: laptime predict … --json > it"
        try:
            views.append(PredictionView.of(read_json(path)))
        except (OSError, ValueError) as error:
            raise PredictionError(
                f"{one_line(path)} is no prediction ({first_line(error)}); {save}"
            ) from None
        if not views[-1].predictions:
            raise PredictionError(f"{one_line(path)} holds no prediction; {save}")
    if len(views) == 1:
        return views[0]
    return PredictionView(predictions=tuple(made for view in views for made in view.predictions))


def _with_predictions(document: Any) -> dict[str, Any]:
    """The document with the predictions that it names read."""
    return {
        key: Prediction.of(value) if key in ("prediction", *_PICKED) and value is not None else value
        for key, value in mapping(document).items()
    }


# -- tables ----------------------------------------------------------------------------------------


def predictions_table(view: PredictionView, *, rows: Sequence[int] | None = None) -> Table:
    """A row for each prediction, or for those of `rows`; a column only for what differs or is known.

    In a terminal, what was asked for is left out last.
    """
    places = range(len(view.predictions))[:MOST_ROWS] if rows is None else rows
    made = [view.predictions[place] for place in places]
    speeds = [view.samples_per_s[place] for place in places]
    choice = view.choices[0] if view.choices else None
    several = len(view.predictions) > 1  # one alone has its interval and its memory in words
    unit = step_unit([each.step_s for each in made])
    columns: list[Cells] = []

    def add(title: str, cells: Iterable[str], **how: Any) -> None:
        columns.append((Column(title=title, **how), list(cells)))

    add("device", (one_line(each.device) for each in made), words=True)
    if choice is not None:
        order = "cheapest" if choice.by == "dollars" else "fastest"
        meaning = f"{_MARK} fits, and trains {choice.limits}; the {order} first"
        add("", (_MARK if choice.qualifies(each) else "" for each in made), meaning=meaning)
    for name, title in {"network": "network", "precision": "precision", "gpus": "GPUs"}.items():
        if len({getattr(each, name) for each in view.predictions}) > 1:
            add(title, [one_line(getattr(each, name)) for each in made], words=name != "gpus")
    add("batch", (str(each.batch) for each in made))
    add(f"step {unit.name}", (figures(each.step_s / unit.seconds) for each in made))
    reach = (f"{(each.interval_s[1] / each.step_s - 1) * 100:.0f} %" for each in made)
    add("±", reach, priority=9, meaning="± is what nine in ten stay within" if several else "")
    add("samples/s", cells(speeds, 0), priority=8)
    needs = (f"{each.reserved_memory_bytes / _GIB:,.1f}" for each in made)
    add("needs GiB", needs, priority=7, meaning=_MEMORY_MEANING if several else "")
    has = [each.device_memory_bytes for each in made]
    gib = (format.UNKNOWN if size is None else f"{size / _GIB:,.0f}" for size in has)
    add("has GiB", gib, priority=12, optional=True)
    add("fits", (_FITS[each.fits] for each in made), priority=6)
    # Of the whole training; where its epochs were not said, of one.
    whole, epoch = [each.training_s for each in made], [each.epoch_s for each in made]
    title, seconds = ("training", whole) if any(value is not None for value in whole) else ("epoch", epoch)
    if known := [value for value in seconds if value is not None]:
        long = training_unit(known)
        add(f"{title}, {long.name}", cells(seconds, 2, over=long.seconds), priority=1)
    for title, values, least, priority in (
        ("$", [each.dollars for each in made], 2, 2),
        ("kWh", [each.kilowatt_hours for each in made], 1, 10),
    ):
        if any(value is not None for value in values):
            add(title, cells(values, least), priority=priority)
    if view.flows:
        flows = [view.flows[place] for place in places]
        alone = (figures(flow.times.stages["device"] / unit.seconds) for flow in flows)
        meaning = "without data: the step if nothing had to be waited for"
        add("without data", alone, priority=11, meaning=meaning)
        add("waits for", (one_line(flow.waits_for) for flow in flows), priority=4, words=True)
    if view.largest:
        largest = [view.largest_of(each) for each in made]
        rates = (each.samples_per_s if each else None for each in largest)
        add("largest batch", map(_batch, largest), priority=3)
        add("samples/s there", ("" if rate is None else f"{rate:,.0f}" for rate in rates), priority=5)
    limits = (one_line(each.bottleneck.partition(":")[0]) for each in made)
    add("bottleneck", limits, words=True, priority=13, optional=True)
    notes = []
    if len(places) < len(view.predictions):
        notes.append(f"{len(view.predictions) - len(places)} more are left out; --all shows them")
    if several:
        notes.append(f"times rest on: {', '.join(sorted({one_line(each.basis) for each in made}))}")
    bold = [row for row, each in enumerate(made) if choice is not None and each is choice.chosen]
    return table_of("predictions", columns, bold=bold, notes=notes)


def _batch(largest: Largest | None) -> str:
    if largest is None or largest.batch is None:
        return "?"
    more = "" if largest.exact else " or more"
    return "not even 1" if largest.batch == 0 else f"{largest.batch:,}{more}"


def ranked_rows(view: PredictionView, *, every: bool) -> list[int]:
    """Which predictions a terminal shows: in the order of the choice, or all as they are."""
    places = list(range(len(view.predictions)))
    if not view.choices:
        return places
    choice = view.choices[0]
    ranked = sorted(places, key=lambda place: choice.rank(view.predictions[place]))
    if every:
        return ranked
    second = [place for place in ranked[SHOWN:] if view.predictions[place] is choice.runner_up]
    return ranked[: SHOWN - len(second)] + second


def layers_table(made: Prediction, *, every: bool) -> Table:
    """The layers of a step in the order of the network; the longest of them, unless all are asked for."""
    timed = [layer for layer in made.layers() if layer.total_s]
    shown = timed
    if not every and len(timed) > SHOWN:
        longest = {layer.layer for layer in sorted(timed, key=lambda layer: -layer.total_s)[:SHOWN]}
        shown = [layer for layer in timed if layer.layer in longest]
    unit = step_unit([layer.total_s for layer in shown])
    columns: list[Cells] = [(Column(title="layer", words=True), [one_line(layer.layer) for layer in shown])]
    phases = [phase for phase in Phase if any(layer.seconds(phase) for layer in timed)]
    for phase in phases:
        allocated = phase is Phase.UPDATE
        column = Column(
            title="update*" if allocated else phase.value,
            word=phase.value,
            meaning="* allocated: the optimizer's time, split by parameter bytes" if allocated else "",
        )
        columns.append((column, [f"{layer.seconds(phase) / unit.seconds:,.3f}" for layer in shown]))
    if len(phases) > 1:
        columns.append((Column(title="total"), [f"{layer.total_s / unit.seconds:,.3f}" for layer in shown]))
    columns.append((Column(title="share"), [format.percent(layer.total_s / made.step_s) for layer in shown]))
    left = len(timed) - len(shown)
    notes = [f"{left} smaller layers are left out; --all shows them"] if left else []
    return table_of("layers", columns, title=f"Layers of a step, in {unit.name}", notes=notes)


def flows_table(flows: Sequence[DataFlow]) -> Table:
    """What each stage of the data flow takes for a step of each device, and what is waited for."""
    stages = [
        stage
        for stage in dict.fromkeys(stage for flow in flows for stage in flow.times.stages)
        if any(flow.times.stages.get(stage) for flow in flows)
    ]
    unit = step_unit([seconds for flow in flows for seconds in flow.times.stages.values()])
    rows = [
        [
            one_line(f"{flow.device}, batch {flow.batch}, {format.plural(flow.gpus, 'GPU')}"),
            *(figures(flow.times.stages.get(stage, 0.0) / unit.seconds) for stage in stages),
            figures(flow.times.step_s / unit.seconds),
            one_line(flow.waits_for),
        ]
        for flow in flows[:MOST_ROWS]
    ]
    head = ("", *map(one_line, stages), "step", "waits for")
    return Table(name="flow", title=f"Stages of a step, {unit.name}", columns=titled(head), rows=rows)


def stages_table(flow: DataFlow) -> Table:
    """The stages of one step's data flow, a row for each."""
    stages = [(one_line(stage), took) for stage, took in flow.times.stages.items() if took]
    unit = step_unit([took for _, took in stages])
    rows = [[stage, figures(took / unit.seconds)] for stage, took in stages]
    return Table(name="stages", columns=titled(("stage", unit.name)), rows=rows)


def kinds_table(explanation: Explanation, *, most: int = 60) -> Table:
    """Where the device's time goes, by kind of operation."""
    kinds, rest = explanation.kinds[:most], explanation.kinds[most:]
    names = [one_line(f"{kind.kind} ({kind.phase})") for kind in kinds]
    columns: list[Cells] = [
        (Column(title="operations", words=True, narrows=1), names),
        (Column(title="count"), [f"{kind.count:,}" for kind in kinds]),
        (Column(title="ms"), [format.milliseconds(kind.seconds, 3) for kind in kinds]),
        (Column(title="share"), [share_cell(format.percent(kind.share), kind.share) for kind in kinds]),
        (Column(title="of roofline"), [format.percent(kind.of_bound, 0) for kind in kinds]),
    ]
    notes = [f"{len(rest)} more kinds: {format.percent(sum(kind.share for kind in rest))}"] if rest else []
    return table_of("kinds", columns, title="Where the device's time goes", notes=notes)


def constants_table(explanation: Explanation, source: Callable[[str], str] = one_line) -> Table:
    """Every constant with its source, as `source` writes it."""
    constants = explanation.constants[:MOST_ROWS]
    values = [f"{each.value:,}" if isinstance(each.value, int) else each.value for each in constants]
    texts = [one_line(value) if isinstance(value, str) else f"{value:,.6g}" for value in values]
    columns: list[Cells] = [
        (Column(title="constant", words=True, narrows=3), [one_line(each.name) for each in constants]),
        (Column(title="value", narrows=2), texts),
        (Column(title="unit", words=True, narrows=1), [one_line(each.unit) for each in constants]),
        (Column(title="source", words=True), [source(each.source) for each in constants]),
    ]
    return table_of("constants", columns, title="Constants")
