"""The tables of predictions: side by side, layer by layer, data flow, kinds of operations and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.explain import Explanation
from laptime.estimate.largest_batch import Largest
from laptime.files.text import one_line
from laptime.model.prediction import ROUNDING, Prediction
from laptime.views import format
from laptime.views.prediction.view import DataFlow, PredictionView
from laptime.views.table import Cell, Column, Table, share_cell, table_of, titled
from laptime.views.time_units import cells, figures, step_unit, training_unit

SHOWN = 12  # rows of a terminal, unless all are asked for
MOST_ROWS = 400  # of a page
_GIB = 2.0**30
_FITS = {True: "yes", False: "no", None: "?"}
_MARK = "*"

Cells = tuple[Column, Sequence[str | Cell]]


def predictions_table(view: PredictionView, *, rows: Sequence[int] | None = None) -> Table:
    """A row for each prediction, or for those of `rows`; a column only for what differs or is known.

    In a terminal, what was asked for is left out last.
    """
    places = list(range(len(view.predictions)))[:MOST_ROWS] if rows is None else rows
    made = [view.predictions[place] for place in places]
    flows = [view.flows[place] for place in places] if view.flows else []
    speeds = [view.samples_per_s[place] for place in places]
    choice = view.choices[0] if view.choices else None
    several = len(view.predictions) > 1  # one alone has its interval and its memory in words
    unit = step_unit([each.step_s for each in made])
    columns: list[Cells] = [(Column(title="device", words=True), [one_line(each.device) for each in made])]
    if choice is not None:
        column = Column(title="", meaning=_choice_meaning(choice))
        columns.append((column, [_MARK if choice.qualifies(each) else "" for each in made]))
    columns += _differing(view.predictions, made)
    columns += [
        (Column(title="batch"), [str(each.batch) for each in made]),
        (Column(title=f"step {unit.name}"), [figures(each.step_s / unit.seconds) for each in made]),
        (
            Column(title="±", priority=9, meaning="± is what nine in ten stay within" if several else ""),
            [f"{(each.interval_s[1] / each.step_s - 1) * 100:.0f} %" for each in made],
        ),
        (Column(title="samples/s", priority=8), cells(speeds, 0)),
        (
            Column(title="needs GiB", priority=7, meaning=_MEMORY_MEANING if several else ""),
            [f"{each.reserved_memory_bytes / _GIB:,.1f}" for each in made],
        ),
        (
            Column(title="has GiB", priority=12, optional=True),
            [
                format.UNKNOWN
                if each.device_memory_bytes is None
                else f"{each.device_memory_bytes / _GIB:,.0f}"
                for each in made
            ],
        ),
        (Column(title="fits", priority=6), [_FITS[each.fits] for each in made]),
        *_training(made),
    ]
    if flows:
        column = Column(
            title="without data",
            priority=11,
            meaning="without data: the step if nothing had to be waited for",
        )
        columns.append((column, [figures(flow.times.stages["device"] / unit.seconds) for flow in flows]))
        column = Column(title="waits for", priority=4, words=True)
        columns.append((column, [one_line(flow.waits_for) for flow in flows]))
    columns += _largest(view, made)
    column = Column(title="bottleneck", words=True, priority=13, optional=True)
    columns.append((column, [one_line(each.bottleneck.partition(":")[0]) for each in made]))
    notes = []
    if len(places) < len(view.predictions):
        notes.append(f"{len(view.predictions) - len(places)} more are left out; --all shows them")
    if several:
        notes.append(f"times rest on: {', '.join(sorted({one_line(each.basis) for each in made}))}")
    bold = [row for row, each in enumerate(made) if choice is not None and each is choice.chosen]
    return table_of("predictions", columns, bold=bold, notes=notes)


_MEMORY_MEANING = (
    f"needs GiB: what the allocator reserves, on GPUs about {ROUNDING:g} times what tensors take at the "
    "peak; it decides what fits"
)


def _choice_meaning(choice: DeviceChoice) -> str:
    order = "cheapest" if choice.by == "dollars" else "fastest"
    return f"{_MARK} fits, and trains {choice.limits}; the {order} first"


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


def _differing(every: Sequence[Prediction], made: Sequence[Prediction]) -> list[Cells]:
    """Network, precision and GPUs, where they are not all the same."""
    titles = {"network": "network", "precision": "precision", "gpus": "GPUs"}
    return [
        (Column(title=title, words=name != "gpus"), [one_line(getattr(each, name)) for each in made])
        for name, title in titles.items()
        if len({getattr(each, name) for each in every}) > 1
    ]


def _training(made: Sequence[Prediction]) -> list[Cells]:
    """Of the whole training; where its epochs were not said, of one."""
    columns: list[Cells] = []
    for title, seconds in (
        ("training", [each.training_s for each in made]),
        ("epoch", [each.epoch_s for each in made]),
    ):
        known = [value for value in seconds if value is not None]
        if known:
            unit = training_unit(known)
            column = Column(title=f"{title}, {unit.name}", priority=1)
            columns.append((column, cells(seconds, 2, over=unit.seconds)))
            break
    for title, values, least, priority in (
        ("$", [each.dollars for each in made], 2, 2),
        ("kWh", [each.kilowatt_hours for each in made], 1, 10),
    ):
        if any(value is not None for value in values):
            columns.append((Column(title=title, priority=priority), cells(values, least)))
    return columns


def _largest(view: PredictionView, made: Sequence[Prediction]) -> list[Cells]:
    """The largest batch that fits each device and its throughput, where that was asked for."""
    if not view.largest:
        return []
    largest = [view.largest_of(each) for each in made]
    speeds = [each.samples_per_s if each else None for each in largest]
    return [
        (Column(title="largest batch", priority=3), [_batch(each) for each in largest]),
        (
            Column(title="samples/s there", priority=5),
            ["" if speed is None else f"{speed:,.0f}" for speed in speeds],
        ),
    ]


def _batch(found: Largest | None) -> str:
    if found is None or found.batch is None:
        return "?"
    return "not even 1" if found.batch == 0 else f"{found.batch:,}" + ("" if found.exact else " or more")


def layers_table(made: Prediction, *, every: bool) -> Table:
    """The layers of a step in the order of the network; the longest of them, unless all are asked for."""
    timed = [layer for layer in made.layers() if layer.total_s]
    shown = timed
    if not every and len(timed) > SHOWN:
        longest = {layer.layer for layer in sorted(timed, key=lambda layer: -layer.total_s)[:SHOWN]}
        shown = [layer for layer in timed if layer.layer in longest]
    unit = step_unit([layer.total_s for layer in shown])

    def column(title: str, seconds: Sequence[float], word: str = "", meaning: str = "") -> Cells:
        how = Column(title=title, word=word, meaning=meaning)
        return how, [f"{value / unit.seconds:,.3f}" for value in seconds]

    allocated = "* allocated: the optimizer's time, split by parameter bytes"
    phases = [
        column("forward", [layer.forward_s for layer in shown], "forward"),
        column("backward", [layer.backward_s for layer in shown], "backward"),
        column("update*", [layer.update_s for layer in shown], "update", allocated),
    ]
    used = (
        any(layer.forward_s for layer in timed),
        any(layer.backward_s for layer in timed),
        any(layer.update_s for layer in timed),
    )
    phases = [phase for phase, has in zip(phases, used, strict=True) if has]
    total = [column("total", [layer.total_s for layer in shown])] if len(phases) > 1 else []
    shares = [format.percent(layer.total_s / made.step_s) for layer in shown]
    names = [one_line(layer.layer) for layer in shown]
    left = len(timed) - len(shown)
    return table_of(
        "layers",
        [(Column(title="layer", words=True), names), *phases, *total, (Column(title="share"), shares)],
        title=f"Layers of a step, in {unit.name}",
        notes=[f"{left} smaller layers are left out; --all shows them"] if left else [],
    )


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
    stages: Mapping[str, float] = {str(stage): took for stage, took in flow.times.stages.items() if took}
    unit = step_unit(list(stages.values()))
    rows = [[one_line(stage), figures(took / unit.seconds)] for stage, took in stages.items()]
    return Table(name="stages", columns=titled(("stage", unit.name)), rows=rows)


def kinds_table(explanation: Explanation, *, most: int = 60) -> Table:
    """Where the device's time goes, by kind of operation."""
    kinds, rest = explanation.kinds[:most], explanation.kinds[most:]
    columns: list[Cells] = [
        (
            Column(title="operations", words=True, narrows=1),
            [one_line(f"{kind.kind} ({kind.phase})") for kind in kinds],
        ),
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
    columns: list[Cells] = [
        (Column(title="constant", words=True, narrows=3), [one_line(each.name) for each in constants]),
        (Column(title="value", narrows=2), [_value(each.value) for each in constants]),
        (Column(title="unit", words=True, narrows=1), [one_line(each.unit) for each in constants]),
        (Column(title="source", words=True), [source(each.source) for each in constants]),
    ]
    return table_of("constants", columns, title="Constants")


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return one_line(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
