"""The pages of comparisons: several runs beside a baseline, and a run beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from laptime.files.text import one_line
from laptime.model import Stage
from laptime.model.comparison import EQUIVALENT, RUN_TO_RUN
from laptime.model.statistics import FEWEST
from laptime.render.html.page import Page, Section, Tile
from laptime.runs import Run
from laptime.views import format
from laptime.views.comparison import tables
from laptime.views.comparison.notes import listed
from laptime.views.comparison.predicted import PredictedComparison
from laptime.views.comparison.several import SeveralRuns, side_by_side
from laptime.views.comparison.sides import ComparisonView, StageComparison, common_noun, common_unit
from laptime.views.figures import comparison as figures
from laptime.views.figures import comparison_layers
from laptime.views.figures.figure import Figure
from laptime.views.figures.learning import losses
from laptime.views.run_view import NOUNS
from laptime.views.step_bins import Digest, digest
from laptime.views.table import Table
from laptime.views.time_units import duration

_TONES = {"faster": "good", "slower": "bad", "cannot tell": "fair"}
_FIRST = "What to know first"
# The verdicts' definitions (docs/method.md), beside the tables that use their words.
_VERDICTS = (
    "`faster` or `slower`: the whole 95 % interval of the ratio lies further from 1 than run-to-run noise. "
    f"`no difference`: interval and noise together stay within {format.percent(EQUIVALENT, 0)} of 1. "
    f"`cannot tell`: anything else, and fewer than {FEWEST} steps. Run-to-run noise of one run each is taken "
    f"to be {format.percent(RUN_TO_RUN, 0)}, or half of the interquartile range of their steps if that "
    "is more; repetitions show it themselves."
)


def comparison_page(given: Sequence[Sequence[Run]], names: Sequence[str] | None = None) -> Page:
    """Everything there is to see of several runs side by side.

    given  the runs of each path that was named, or one list of runs that were picked one by one
    names  what the runs are called; by default what differs in their paths
    """
    view = side_by_side(given, names)
    digests = [(run.name, digest(run.recorded)) for run in view.runs]
    sections = [
        _first(view),
        _runs(view),
        _breakdown(view),
        _layers(view),
        Section(
            name="training",
            title="Over the training",
            figures=_drawn(figures.step_times(digests, view.stage), figures.spreads(view)),
        ),
        _learning(view, digests),
        _profiling(view),
        Section(name="differences", title="What differs", tables=tables.difference_tables(view.runs)),
    ]
    count = len(view.runs) + view.left_out
    devices = {tables.device_text(run, view.stage) for run in view.runs} - {format.UNKNOWN}
    return Page(
        title=_title(view),
        subtitle=f"{format.plural(count, 'run')}, the first is the baseline",
        about=[*_letters(view), *(devices if len(devices) == 1 else ())],
        tiles=list(_tiles_of_two(view.compared, view.stage) if view.compared else _tiles_of_many(view)),
        sections=[section for section in sections if not section.empty],
    )


def _title(view: SeveralRuns) -> str:
    if view.sides:
        return f"{one_line(view.sides[1].name)} against {one_line(view.sides[0].name)}"
    return f"{format.plural(len(view.runs), 'run')} side by side"


def _letters(view: SeveralRuns) -> Iterator[str]:
    """Who is A, the baseline, and who is B."""
    for letter, side in zip("AB", view.sides, strict=False):
        yield f"{letter}: {one_line(side.name)}" + (f" ({len(side.runs)} runs)" if len(side.runs) > 1 else "")


# -- tiles -----------------------------------------------------------------------------------------


def _tiles_of_two(compared: ComparisonView, stage: Stage) -> Iterator[Tile]:
    part = compared.stages.get(stage)
    if part is None:
        return
    for row, name in (
        (part.step, f"{part.noun or 'a'} step, B / A"),
        (part.sample, "time of a sample, B / A"),
        (part.rate, "throughput, B / A"),
    ):
        if row is not None and row.known:
            note = f"95 %: {tables.interval_text(row)}, {row.verdict}"
            yield Tile(
                name=name, value=tables.ratio_text(row), note=note, tone=_TONES.get(str(row.verdict), "")
            )
    rates = (part.rate.a, part.rate.b) if part.rate else (math.nan, math.nan)
    for letter, seconds, rate in zip("AB", (part.step.a, part.step.b), rates, strict=True):
        if not math.isnan(seconds):
            note = "" if math.isnan(rate) else f"{rate:,.0f} samples a second"
            yield Tile(name=f"step of {letter}", value=f"{format.milliseconds(seconds)} ms", note=note)
    if compared.profiling and not math.isnan(compared.profiling.slowdown):
        yield Tile(name="cost of profiling", value=f"{compared.profiling.slowdown * 100:+.1f} %")


def _tiles_of_many(view: SeveralRuns) -> Iterator[Tile]:
    walls = {run.name: run.wall_s(view.stage) for run in view.runs}
    medians = {name: float(np.median(wall)) for name, wall in walls.items() if wall.size}
    note = "" if len(medians) == len(view.runs) else f"{len(medians)} with steps to compare"
    yield Tile(name="runs", value=str(len(view.runs)), note=note)
    if medians:
        fastest, slowest = (pick(medians, key=lambda name: medians[name]) for pick in (min, max))
        yield Tile(
            name="fastest step", value=f"{format.milliseconds(medians[fastest])} ms", note=one_line(fastest)
        )
        times = f"{medians[slowest] / medians[fastest]:.2f} times the fastest" if medians[fastest] else ""
        value = f"{format.milliseconds(medians[slowest])} ms"
        yield Tile(name="slowest step", value=value, note=", ".join(filter(None, (one_line(slowest), times))))
    rates = {
        run.name: run.series[view.stage].samples_per_s or 0.0 for run in view.runs if view.stage in run.series
    }
    best = max(rates, key=lambda name: rates[name], default="")
    if best and rates[best]:
        yield Tile(name="most samples a second", value=f"{rates[best]:,.0f}", note=one_line(best))
    for stage in (Stage.VALIDATION, Stage.TRAIN):
        learned = {run.name: run.result(stage, "top1") for run in view.runs}
        known = {
            name: value for name, value in learned.items() if value is not None and not math.isnan(value)
        }
        if known:
            name = max(known, key=lambda name: known[name])
            note = f"{one_line(name)}, {NOUNS[stage.value]}, last epoch"
            yield Tile(name="best top-1 accuracy", value=format.percent(known[name]), note=note)
            break


# -- sections --------------------------------------------------------------------------------------


def _first(view: SeveralRuns) -> Section:
    told = list(view.compared.notes) if view.compared else list(_notes(view))
    without = [run.name for run in view.runs if not run.wall_s(view.stage).size]
    if without:
        told.append(f"no {NOUNS[view.stage.value]} step to compare in {listed(without)}")
    if view.left_out:
        told.append(f"{format.plural(view.left_out, 'run')} beyond the first {len(view.runs)} are left out")
    return Section(name="first", title=_FIRST, bullets=[one_line(note) for note in told])


def _notes(view: SeveralRuns) -> Iterator[str]:
    if view.repeated:
        yield "runs of one configuration are repetitions: groups of them are compared, over runs"
    else:
        yield (
            "each ratio is a run's step over that of the first run; the intervals are over steps and do not "
            "show run-to-run noise"
        )
    for state in dict.fromkeys(run.recorded.status for run in view.runs):
        names = [run.name for run in view.runs if run.recorded.status == state]
        if state != "finished":
            yield f"{state}: {listed(names)}; these are the steps that were recorded"
    reads = [run.series[view.stage] for run in view.runs if view.stage in run.series]
    if len({f"{read.batch:g}" for read in reads if not math.isnan(read.batch)}) > 1:
        yield "the runs differ in the samples of a step: compare samples a second rather than steps"


def _drawn(*made: Figure | None) -> list[Figure]:
    return [figure for figure in made if figure is not None]


def _part(view: SeveralRuns) -> StageComparison | None:
    return view.compared.stages.get(view.stage) if view.compared else None


def _listed(*made: Table | None) -> list[Table]:
    return [table for table in made if table is not None]


def _runs(view: SeveralRuns) -> Section:
    return Section(
        name="runs",
        title="The runs",
        sentences=[_VERDICTS],
        tables=[*_listed(tables.groups_table(view) if view.repeated else None), tables.runs_table(view)],
        figures=_drawn(figures.step_intervals(view, common_noun(view.runs, view.stage))),
    )


def _breakdown(view: SeveralRuns) -> Section:
    part = _part(view)
    return Section(
        name="books",
        title="Where a step goes",
        figures=_drawn(figures.breakdowns(view)),
        tables=_listed(tables.accounts_table(part) if part else None),
    )


def _layers(view: SeveralRuns) -> Section:
    unit = common_unit(view.runs)
    part = _part(view)
    table = tables.layers_table(part) if part else None
    shared = comparison_layers.few_shared(view.runs, view.stage)
    drawn = _drawn(
        comparison_layers.layer_ratios(part.layers, unit) if part and not shared else None,
        comparison_layers.layers_beside(view.runs, view.stage, unit),
        comparison_layers.layer_map(view.runs, view.stage, unit) if not part else None,
    )
    told = [] if drawn else ["No run has layer times, so layers cannot be compared."]
    if shared:
        told = [
            f"The networks differ: {shared[0]} of {format.plural(shared[1], unit)} are in more than one run, "
            f"too few to draw the {unit}s side by side. Each run's own page has them."
        ]
    folded = [replace(table, folded=True)] if table else []
    return Section(name="layers", title=f"{unit.capitalize()}s", sentences=told, figures=drawn, tables=folded)


def _learning(view: SeveralRuns, digests: Sequence[tuple[str, Digest]]) -> Section:
    lost = {name: int(each.learning["lost"].sum()) for name, each in digests}
    return Section(
        name="learning",
        title="Learning",
        bullets=[
            f"{one_line(name)}: {format.plural(count, 'step')} with a loss that is NaN or infinite"
            for name, count in lost.items()
            if count
        ],
        figures=_drawn(losses(dict(digests))),
        tables=_listed(tables.results_table(view.compared) if view.compared else None),
    )


def _profiling(view: SeveralRuns) -> Section:
    section = Section(name="profiling", title="What profiling costs")
    cost = view.compared.profiling if view.compared else None
    if not cost or math.isnan(cost.slowdown):
        return section
    low, high = ((end - 1) * 100 for end in (cost.times.low, cost.times.high))
    told = f"95 % interval of what profiling adds: {low:+.1f} % to {high:+.1f} % ({cost.times.verdict})."
    drawn = _drawn(figures.profiling_cost(cost, [side.name for side in view.sides]))
    return replace(section, sentences=[told], figures=drawn)


# -- a run and its prediction ----------------------------------------------------------------------


def predicted_comparison_page(view: PredictedComparison) -> Page:
    """A run and its prediction, layer by layer."""
    made = view.prediction
    layers = tables.predicted_layers_table(view)
    drawn = _drawn(
        comparison_layers.predicted_layers_beside(view.layers), comparison_layers.layer_errors(view.layers)
    )
    sections = [
        Section(name="first", title=_FIRST, bullets=[one_line(line) for line in (view.summary, *view.notes)]),
        Section(
            name="phases", title="Phases", tables=[replace(tables.predicted_phases_table(view), title="")]
        ),
        Section(
            name="layers",
            title="Layers",
            figures=drawn,
            tables=[replace(layers, folded=True)] if layers else [],
        ),
        Section(name="limits", title="What it rests on", bullets=[one_line(f"times rest on: {made.basis}")]),
    ]
    measured_on = view.measured.device or "an unknown device"
    return Page(
        title=f"{one_line(made.network)}: measured and predicted",
        subtitle=f"{one_line(view.run_path)} beside {one_line(view.prediction_path)}",
        about=[
            one_line(f"measured on {measured_on}, {format.plural(view.measured.steps, 'step')}"),
            one_line(f"predicted for {made.device}"),
            f"batch {made.batch}",
        ],
        tiles=list(_predicted_tiles(view)),
        sections=[section for section in sections if not section.empty],
    )


def _predicted_tiles(view: PredictedComparison) -> Iterator[Tile]:
    step = view.step
    low, high = (duration(end) for end in view.prediction.interval_s)
    yield Tile(
        name="measured step", value=duration(view.measured.step_s.median), note="without waiting for data"
    )
    note = f"nine in ten: {low} to {high}"
    yield Tile(name="predicted step", value=duration(view.prediction.step_s), note=note)
    if step.error is None:
        yield Tile(name="predicted over measured", value=f"{step.ratio:.3g}x", note="of two devices")
        return
    inside = "inside its interval" if view.inside else "outside its interval"
    tone = ("good" if view.inside else "bad") if view.same_device else ""
    yield Tile(name="off by", value=f"{step.error * 100:+.1f} %", note=inside, tone=tone)
    if view.layer_error is not None:
        each = f"{view.layer_error * 100:.1f} %"
        yield Tile(name="layers are off by", value=each, note="weighted by their time")
