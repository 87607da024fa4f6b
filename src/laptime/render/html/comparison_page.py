"""The pages of comparisons: several runs beside a baseline, and a run beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from laptime.files.text import one_line
from laptime.model import Stage
from laptime.model.comparison import EQUIVALENT, RUN_TO_RUN
from laptime.model.statistics import FEWEST
from laptime.render.html.page import Page, Section, Tile
from laptime.runs import Run
from laptime.views import format
from laptime.views.comparison import tables
from laptime.views.comparison.predicted import PredictedComparison
from laptime.views.comparison.several import SeveralRuns, side_by_side
from laptime.views.comparison.sides import ComparisonView, StageComparison, common_noun, common_unit
from laptime.views.figures import comparison as figures
from laptime.views.figures.figure import Figure
from laptime.views.figures.learning import losses
from laptime.views.format import duration, listed
from laptime.views.run_view import NOUNS
from laptime.views.step_bins import digest

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
    every = format.plural(len(view.runs) + view.left_out, "run")
    title = f"{format.plural(len(view.runs), 'run')} side by side"
    if view.sides:
        title = f"{one_line(view.sides[1].name)} against {one_line(view.sides[0].name)}"
    letters = [
        f"{letter}: {one_line(side.name)}" + (f" ({len(side.runs)} runs)" if len(side.runs) > 1 else "")
        for letter, side in zip("AB", view.sides, strict=False)
    ]
    simulated = [run.name for run in view.runs if run.run.simulated]
    if simulated:
        letters.append(f"simulated, not measured: {listed(simulated)}")
    devices = {tables.device_text(run, view.stage) for run in view.runs} - {format.UNKNOWN}
    return Page(
        title=title,
        subtitle=f"{every}, the first is the baseline",
        about=[*letters, *(devices if len(devices) == 1 else ())],
        tiles=list(_tiles_of_two(view.compared, view.part) if view.compared else _tiles_of_many(view)),
        sections=[section for section in _sections(view) if not section.empty],
    )


# -- tiles -----------------------------------------------------------------------------------------


def _tiles_of_two(compared: ComparisonView, part: StageComparison | None) -> Iterator[Tile]:
    if part is None:
        return
    for row, name in (
        (part.step, f"{part.noun or 'a'} step, B / A"),
        (part.sample, "time of a sample, B / A"),
        (part.rate, "throughput, B / A"),
    ):
        if row is not None and row.known:
            note, tone = f"95 %: {tables.interval_text(row)}, {row.verdict}", _TONES.get(str(row.verdict), "")
            yield Tile(name=name, value=tables.ratio_text(row), note=note, tone=tone)
    rates = (part.rate.a, part.rate.b) if part.rate else (math.nan, math.nan)
    for letter, seconds, rate in zip("AB", (part.step.a, part.step.b), rates, strict=True):
        if not math.isnan(seconds):
            note = "" if math.isnan(rate) else f"{rate:,.0f} samples a second"
            yield Tile(name=f"step of {letter}", value=f"{format.milliseconds(seconds)} ms", note=note)
    if compared.profiling and not math.isnan(compared.profiling.slowdown):
        yield Tile(name="cost of profiling", value=f"{compared.profiling.slowdown * 100:+.1f} %")


def _tiles_of_many(view: SeveralRuns) -> Iterator[Tile]:
    parts = {run.name: run.stages[view.stage] for run in view.runs if view.stage in run.stages}
    medians = {name: part.wall_s.median for name, part in parts.items() if part.wall_s.count}
    note = "" if len(medians) == len(view.runs) else f"{len(medians)} with steps to compare"
    yield Tile(name="runs", value=str(len(view.runs)), note=note)
    if medians:
        fastest, slowest = (pick(medians, key=medians.__getitem__) for pick in (min, max))
        least, most = medians[fastest], medians[slowest]
        yield Tile(name="fastest step", value=f"{format.milliseconds(least)} ms", note=one_line(fastest))
        note = one_line(slowest) + (f", {most / least:.2f} times the fastest" if least else "")
        yield Tile(name="slowest step", value=f"{format.milliseconds(most)} ms", note=note)
    rates = {name: part.samples_per_s for name, part in parts.items() if part.samples_per_s}
    if rates:
        best = max(rates, key=rates.__getitem__)
        yield Tile(name="most samples a second", value=f"{rates[best]:,.0f}", note=one_line(best))
    for stage in (Stage.VALIDATION, Stage.TRAIN):
        results = {run.name: run.result(stage, "top1") for run in view.runs}
        known = {
            name: value for name, value in results.items() if value is not None and not math.isnan(value)
        }
        if known:
            name = max(known, key=known.__getitem__)
            note = f"{one_line(name)}, {NOUNS[stage.value]}, last epoch"
            yield Tile(name="best top-1 accuracy", value=format.percent(known[name]), note=note)
            break


# -- sections --------------------------------------------------------------------------------------


def _sections(view: SeveralRuns) -> Iterator[Section]:
    part = view.part
    digests = {run.name: digest(run.run) for run in view.runs}
    lost = {
        name: sum(int(rows["not_finite"].sum()) for rows in each.learning.values())
        for name, each in digests.items()
    }
    yield Section.of("first", _FIRST, bullets=_first(view))
    yield Section.of(
        "runs",
        "The runs",
        _VERDICTS,
        tables.groups_table(view) if view.repeated else None,
        tables.runs_table(view),
        figures.step_intervals(view, common_noun(view.runs, view.stage)),
    )
    accounts = tables.accounts_table(part) if part else None
    exchanged = tables.collectives_table(view.compared) if view.compared else None
    yield Section.of("books", "Where a step goes", figures.breakdowns(view), accounts, exchanged)
    yield _layers(view)
    times = figures.step_times(digests, view.stage)
    yield Section.of("training", "Over the training", times, figures.spreads(view))
    yield Section.of(
        "learning",
        "Learning",
        tables.target_table(view.target) if view.target else None,
        losses(digests, view.target),
        tables.results_table(view.compared) if view.compared else None,
        bullets=[
            f"{name}: {format.plural(count, 'step')} with a loss that is NaN or infinite"
            for name, count in lost.items()
            if count
        ],
    )
    cost = view.compared.profiling if view.compared else None
    if cost and not math.isnan(cost.slowdown):
        told = f"95 % interval of what profiling adds: {cost.interval_text} ({cost.times.verdict})."
        figure = figures.profiling_cost(cost, [side.name for side in view.sides])
        yield Section.of("profiling", "What profiling costs", told, figure)
    yield Section.of("differences", "What differs", *tables.difference_tables(view.runs))


def _first(view: SeveralRuns) -> Iterator[str]:
    yield from view.compared.notes if view.compared else _notes(view)
    without = [run.name for run in view.runs if not run.wall_s(view.stage).size]
    if without:
        yield f"no {NOUNS[view.stage.value]} step to compare in {listed(without)}"
    if view.left_out:
        yield f"{format.plural(view.left_out, 'run')} beyond the first {len(view.runs)} are left out"


def _notes(view: SeveralRuns) -> Iterator[str]:
    networks = dict.fromkeys(run.network for run in view.runs if run.network)
    if len(networks) > 1:
        yield f"the networks differ: {listed(list(networks))}"
    if view.repeated:
        yield "runs of one configuration are repetitions: groups of them are compared, over runs"
    else:
        yield (
            "each ratio is a run's step over that of the first run; the intervals are over steps and do not "
            "show run-to-run noise"
        )
    for state in dict.fromkeys(run.run.status for run in view.runs):
        names = [run.name for run in view.runs if run.run.status == state]
        if state != "finished":
            yield f"{state}: {listed(names)}; these are the steps that were recorded"
    reads = [run.stages[view.stage].series for run in view.runs if view.stage in run.stages]
    if len({f"{read.batch:g}" for read in reads if not math.isnan(read.batch)}) > 1:
        yield "the runs differ in the samples of a step: compare samples a second rather than steps"


def _layers(view: SeveralRuns) -> Section:
    unit, part, shared = common_unit(view.runs), view.part, view.few_shared
    drawn: list[Figure | None] = []
    if shared:
        told: str | None = (
            f"The networks differ: {shared[0]} of {format.plural(shared[1], unit)} are in more than one run, "
            f"too few to draw the {unit}s side by side. Each run's own page has them."
        )
    else:
        beside = figures.layers_beside(view.runs, view.stage, unit)
        ratios = figures.layer_ratios(part.layers, unit) if part else None
        drawn = [ratios, beside, None if part else figures.layer_map(view.runs, view.stage, unit)]
        told = None if any(drawn) else "No run has layer times, so layers cannot be compared."
    table = tables.layers_table(part, folded=True) if part else None
    return Section.of("layers", f"{unit.capitalize()}s", told, *drawn, table)


# -- a run and its prediction ----------------------------------------------------------------------


def predicted_comparison_page(view: PredictedComparison) -> Page:
    """A run and its prediction, layer by layer."""
    made = view.prediction
    sections = [
        Section.of("first", _FIRST, bullets=(view.summary, *view.notes)),
        Section.of("phases", "Phases", replace(tables.predicted_phases_table(view), title="")),
        Section.of(
            "layers",
            "Layers",
            figures.predicted_layers_beside(view.layers),
            figures.layer_errors(view.layers),
            tables.predicted_layers_table(view, folded=True),
        ),
        Section.of("limits", "What it rests on", bullets=[f"times rest on: {made.basis}"]),
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
        value = format.percent(view.layer_error)
        yield Tile(name="layers are off by", value=value, note="weighted by their time")
