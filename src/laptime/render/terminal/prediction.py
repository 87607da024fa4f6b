"""Predictions in a terminal: side by side, and one step layer by layer; then what else was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from laptime.estimate.choose_device import money
from laptime.estimate.dataflow import DataFlow
from laptime.estimate.explain import Explanation
from laptime.files.text import one_line
from laptime.model.prediction import Prediction
from laptime.render.terminal import bullets, paragraph
from laptime.render.terminal.table import table_lines
from laptime.views import prediction as tables
from laptime.views.format import duration, long_duration
from laptime.views.prediction import PredictionView

_GIB = 2.0**30
_KINDS = 12  # of operations that are shown


def prediction_lines(view: PredictionView, width: int, *, every_layer: bool = False) -> Iterator[Text]:
    """A table of all; for one alone, its layers and its bottleneck too; then what else was asked for."""
    first = view.predictions[0]
    what = "forward pass" if first.mode == "inference" else "training step"
    together = {made.gpus for made in view.predictions} == {first.gpus} and first.gpus > 1
    many = f" on {first.gpus} GPUs of one node, each with its own batch" if together else ""
    title = f"{one_line(first.network)}: a {what} in {one_line(first.precision)}{many}, predicted"
    yield from paragraph(title, width)
    yield Text()
    rows = tables.ranked_rows(view, every=every_layer)
    yield from table_lines(tables.predictions_table(view, rows=rows), width)
    if len(view.predictions) == 1:
        yield Text()
        yield from table_lines(tables.layers_table(first, every=every_layer), width)
        yield Text()
        yield from _bullets([*_words(first, view.flows), *first.notes], width)
    else:
        yield from _bullets(_shared_notes(view.predictions), width)
    unknown = sorted({one_line(made.device) for made in view.predictions if made.fits is None})
    if unknown:
        named = ", ".join(unknown[:4]) + (" …" if unknown[4:] else "")
        words = f"?: the memory of {named} is not known; memory_gib in a device's file would tell what fits"
        yield from paragraph(words, width)
    for choice in view.choices:
        yield Text()
        yield from paragraph(one_line(f"{choice.wanted}: {choice.why}"), width)
        considered = f"{choice.considered} configurations fit and have a price"
        epochs = "every batch size is taken to need the same epochs"
        picked = choice.chosen or choice.closest
        yield from _bullets([considered, *choice.left_out, epochs, *(picked.notes if picked else ())], width)
    yield from _flows(view.flows, width)
    if view.explanation is not None:
        yield from explanation_lines(view.explanation, width)


def _shared_notes(predictions: Sequence[Prediction]) -> list[str]:
    """What is said of each of several predictions."""
    return [note for note in predictions[0].notes if all(note in made.notes for made in predictions)]


def _bullets(texts: Iterable[str], width: int) -> list[Text]:
    return bullets(map(one_line, texts), width, "  - ")


def _words(made: Prediction, flows: Sequence[DataFlow]) -> Iterator[str]:
    yield f"bottleneck: {made.bottleneck}"
    yield f"times rest on: {made.basis}"
    peak, needs = made.peak_memory_bytes / _GIB, made.reserved_memory_bytes / _GIB
    memory = f"memory: tensors take {peak:.1f} GiB at the peak"
    if made.reserved_memory_bytes > made.peak_memory_bytes > 0:
        memory += f"; the allocator reserves about {needs / peak:.2f} times that, {needs:.1f} GiB"
    if made.device_memory_bytes is not None:
        memory += f"; the device has {made.device_memory_bytes / _GIB:.0f} GiB"
    yield memory
    if flows and flows[0].times.starves:
        yield f"computing alone takes {duration(flows[0].times.stages['device'])}; in the rest it waits"
    if made.gpus > 1:
        added = duration(made.communication_s)
        yield f"the exchange of gradients adds {added}; layers are those of one GPU"
    low, high = (duration(end) for end in made.interval_s)
    yield f"nine in ten predictions of this kind stay within their interval, here {low} to {high}"
    if made.uncovered:
        named = ", ".join(f"{name} ({share:.1%})" for name, share in list(made.uncovered.items())[:5])
        yield f"without a formula, counted by their bytes alone: {named}"


def _flows(flows: Sequence[DataFlow], width: int) -> Iterator[Text]:
    """The data flow of one step by its stages; of several, what all of them rest on."""
    if not flows:
        return
    flow = flows[0]
    shared = [words for words in flow.rests_on if all(words in other.rests_on for other in flows)]
    if len(shared) < len(flow.rests_on):
        shared.append("the rest as each device has it")
    yield Text()
    yield from paragraph(one_line("Data flow: " + "; ".join(shared)), width)
    if len(flows) == 1:
        yield from table_lines(tables.stages_table(flow), width)
        yield from _bullets(_flow_words(flow), width)


def _flow_words(flow: DataFlow) -> Iterator[str]:
    times = flow.times
    if times.starves:
        yield f"{times.starving} starves the others: the device waits {times.idle_share:.0%} of the time"
    else:
        yield "the device is never kept waiting by its data"
    step = f"a step takes {duration(times.step_s)}, {times.samples_per_s:,.0f} samples/s"
    if flow.epoch_s is not None:
        step += f", an epoch {long_duration(flow.epoch_s)}"
    if flow.training_s is not None:
        step += f", the training {long_duration(flow.training_s)}"
    yield step if flow.dollars is None else f"{step} and {money(flow.dollars)}"
    helping = [remedy for remedy in times.remedies if remedy.step_s < times.step_s * 0.999]
    yield from (f"with {remedy.name}: {duration(remedy.step_s)}" for remedy in helping)
    idle = [remedy.name for remedy in times.remedies if remedy not in helping]
    if idle:
        yield f"no gain by itself: {', '.join(idle)}"


def explanation_lines(explanation: Explanation, width: int) -> Iterator[Text]:
    """Where the time goes, then every constant with the number of its source."""
    yield Text()
    yield from table_lines(tables.kinds_table(explanation, most=_KINDS), width)
    every = dict.fromkeys(constant.source for constant in explanation.constants)
    marks = {source: f"[{place}]" for place, source in enumerate(every, 1)}
    yield Text()
    yield from table_lines(tables.constants_table(explanation, lambda source: marks[source]), width)
    yield Text()
    for source, mark in marks.items():
        yield from paragraph(one_line(source), width, bullet=f"{mark:<5}")
