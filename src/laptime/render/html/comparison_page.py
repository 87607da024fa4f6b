"""The page of several runs: the first is the baseline. Two, or two groups of repetitions, are A and B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from laptime.files.text import one_line
from laptime.model import Stage
from laptime.model.comparison import RUN_TO_RUN, WIDE
from laptime.model.statistics import FEWEST, NOISY_SPREAD
from laptime.render.html import comparison_tables as tables
from laptime.render.html.comparison_sides import common_stage, compared, groups_of, sides_of, tails, unlike
from laptime.render.html.comparison_tables import Group
from laptime.render.html.page import Page, Section, Table, Tile
from laptime.runs import Run
from laptime.views import format
from laptime.views.comparison import compare
from laptime.views.figures import comparison as figures
from laptime.views.figures import comparison_layers
from laptime.views.figures.comparison import Compared
from laptime.views.figures.figure import Figure
from laptime.views.figures.learning import losses
from laptime.views.run_view import NOUNS

MOST_RUNS = 20
_TONES = {"faster": "good", "slower": "bad", "no difference": "", "too noisy": "fair"}

# What `model.comparison` does, beside the tables that its words stand in.
_VERDICTS = (
    "A run is `faster` or `slower` where the whole 95 % interval of its ratio lies beyond 1 by a margin: of "
    f"one run against one, {format.percent(RUN_TO_RUN, 0)} or half of the interquartile range of their "
    "steps, whichever is more; of repetitions, none. Else it is `too noisy` where the interval spans more "
    f"than {format.percent(WIDE - 1, 0)}, the margin is over {format.percent(NOISY_SPREAD, 0)} or there are "
    f"fewer than {FEWEST} steps, and `no difference` otherwise."
)

Document = Mapping[str, Any]


def comparison_page(
    runs: Sequence[Run], names: Sequence[str] | None = None, *, links: Sequence[str] = ()
) -> Page:
    """All there is to see of several runs side by side.

    names  what the runs are called; by default what differs in their paths
    links  where each run's own page is
    """
    left_out = max(0, len(runs) - MOST_RUNS)
    called = unlike(names if names is not None else tails([run.path for run in runs]))
    runs = runs[:MOST_RUNS]
    stage = common_stage(runs)
    shown = [compared(run, name, stage) for run, name in zip(runs, called, strict=False)]
    groups = groups_of(runs, shown)
    sides = sides_of(shown, groups)
    loaded = dict(zip(map(id, shown), runs, strict=True))
    document = compare(*([loaded[id(one)] for one in side.runs] for side in sides)) if sides else None
    sections = [
        _first(shown, stage, document, left_out),
        _runs(shown, stage, groups, links),
        _books(shown, stage, document),
        _layers(shown, stage, document),
        _steps(shown, stage),
        _learning(shown, document),
        _profiling(document, sides),
        Section(name="differences", title="What differs", tables=tables.differences(runs, shown)),
    ]
    return Page(
        title=_title(shown, sides),
        subtitle=f"{format.plural(len(shown) + left_out, 'run')}, the first is the baseline",
        about=[*_letters(sides), *_devices(shown, stage)],
        tiles=list(_tiles_of_two(document, stage) if document else _tiles_of_many(shown)),
        sections=[one for one in sections if not one.empty],
    )


def _title(shown: Sequence[Compared], sides: Sequence[Group]) -> str:
    if sides:
        return f"{one_line(sides[1].name)} against {one_line(sides[0].name)}"
    return f"{format.plural(len(shown), 'run')} side by side"


def _letters(sides: Sequence[Group]) -> list[str]:
    """Who is A, the baseline, and who is B."""
    return [
        f"{letter}: {one_line(side.name)}{_many(side)}" for letter, side in zip("AB", sides, strict=False)
    ]


def _devices(shown: Sequence[Compared], stage: Stage) -> list[str]:
    """Where all of them ran; the table says it where they differ."""
    found = {tables.device(run, run.found[stage.value] or {}) for run in shown} - {format.UNKNOWN}
    return list(found) if len(found) == 1 else []


def _many(side: Group) -> str:
    return f" ({len(side.runs)} runs)" if len(side.runs) > 1 else ""


# -- tiles -----------------------------------------------------------------------------------------


def _tiles_of_two(document: Document, stage: Stage) -> Iterator[Tile]:
    part = document[stage.value]
    if part is None:
        return
    for key, name in (
        ("step_s", f"{part['noun'] or 'a'} step, B / A"),
        ("sample_s", "time of a sample, B / A"),
        ("samples_per_s", "throughput, B / A"),
    ):
        row = part[key]
        if row and row["ratio"] is not None:
            note = f"95 %: {tables.interval(row)}, {row['verdict']}"
            tone = _TONES.get(row["verdict"], "")
            yield Tile(name=name, value=tables.ratio(row), note=note, tone=tone)
    for side in "ab":
        seconds = part["step_s"][side] if part["step_s"] else None
        if seconds is not None:
            rate = (part["samples_per_s"] or {}).get(side)
            note = "" if rate is None else f"{rate:,.0f} samples a second"
            yield Tile(name=f"step of {side.upper()}", value=f"{format.milliseconds(seconds)} ms", note=note)
    found = document["profiling"]
    if found and found["slowdown"] is not None:
        value = f"{found['slowdown'] * 100:+.1f} %"
        yield Tile(name="cost of profiling", value=value, note="the thesis: +245 %")


def _tiles_of_many(shown: Sequence[Compared]) -> Iterator[Tile]:
    timed = [run for run in shown if run.wall_s.size]
    yield Tile(name="runs", value=str(len(shown)), note="" if len(timed) == len(shown) else _timed(timed))
    if not timed:
        return
    ranked = sorted(timed, key=lambda run: float(np.median(run.wall_s)))
    least = float(np.median(ranked[0].wall_s))
    for run, title in ((ranked[0], "fastest step"), (ranked[-1], "slowest step")):
        median = float(np.median(run.wall_s))
        times = f", {median / least:.2f} times the fastest" if run is ranked[-1] and least else ""
        yield Tile(name=title, value=f"{format.milliseconds(median)} ms", note=f"{one_line(run.name)}{times}")
    rates = {run.name: run.timed.samples_per_s or 0.0 for run in timed if run.timed is not None}
    name, rate = max(rates.items(), key=lambda one: one[1])
    if rate:
        yield Tile(name="most samples a second", value=f"{rate:,.0f}", note=one_line(name))
    for stage in (Stage.VALIDATION, Stage.TRAIN):
        learned = {run.name: tables.result(run, stage, "top1") for run in shown}
        known = {name: value for name, value in learned.items() if value is not None}
        if known:
            name = max(known, key=lambda one: known[one])
            note = f"{one_line(name)}, {NOUNS[stage.value]}, last epoch"
            yield Tile(name="best top-1 accuracy", value=format.percent(known[name]), note=note)
            break


def _timed(timed: Sequence[Compared]) -> str:
    return f"{len(timed)} with steps to compare"


# -- sections --------------------------------------------------------------------------------------


def _first(shown: Sequence[Compared], stage: Stage, document: Document | None, left_out: int) -> Section:
    told = list(document["notes"]) if document else list(_notes(shown))
    without = [one_line(run.name) for run in shown if not run.wall_s.size]
    if without:
        names = ", ".join(without[:8]) + (f" and {len(without) - 8} more" if len(without) > 8 else "")
        told.append(f"no {NOUNS[stage.value]} step to compare in {names}")
    if left_out:
        told.append(f"{format.plural(left_out, 'run')} beyond the first {MOST_RUNS} are left out")
    return Section(name="first", title="What to know first", bullets=[one_line(note) for note in told])


def _notes(shown: Sequence[Compared]) -> Iterator[str]:
    yield (
        "each ratio is a run's step over that of the first run; intervals are over steps, drawn in blocks, "
        "and cannot see what differs between two processes of the same code"
    )
    states = {run.name: run.found["run"]["status"] for run in shown}
    for state in dict.fromkeys(states.values()):
        names = [one_line(name) for name, its in states.items() if its == state]
        if state != "finished":
            yield f"{state}: {', '.join(names)}; these are the steps that were recorded"
    batches = {f"{run.timed.batch:g}" for run in shown if run.timed and not np.isnan(run.timed.batch)}
    if len(batches) > 1:
        yield "the runs differ in the samples of a step: compare samples a second rather than steps"


def _kept(*drawn: Figure | None) -> list[Figure]:
    return [figure for figure in drawn if figure is not None]


def _noun(shown: Sequence[Compared], stage: Stage) -> str:
    nouns = {run.found[stage.value]["noun"] for run in shown if run.found[stage.value]}
    return str(nouns.pop()) if len(nouns) == 1 else NOUNS[stage.value]


def _runs(shown: Sequence[Compared], stage: Stage, groups: Sequence[Group], links: Sequence[str]) -> Section:
    found = [tables.runs_table(shown, stage, links)]
    if len(groups) < len(shown):
        found.append(tables.groups_table(groups))
    drawn = _kept(figures.step_intervals(shown, _noun(shown, stage)))
    return Section(name="runs", title="The runs", sentences=[_VERDICTS], tables=found, figures=drawn)


def _books(shown: Sequence[Compared], stage: Stage, document: Document | None) -> Section:
    part = document[stage.value] if document else None
    found = []
    if part and part["accounts"]:
        rows = [(row["account"], row) for row in part["accounts"]]
        found.append(tables.compared_table("accounts", "Accounts in numbers", rows, part, what="account"))
    drawn = _kept(figures.books_beside(shown, stage))
    return Section(name="books", title="Where a step goes", figures=drawn, tables=found)


def _layers(shown: Sequence[Compared], stage: Stage, document: Document | None) -> Section:
    units = {run.found["run"]["unit"] for run in shown}
    unit = units.pop() if len(units) == 1 else "layer"
    part = document[stage.value] if document else None
    found: list[Table] = []
    ratios = None
    if part and part["layers"]:
        rows = [(row["layer"], row["total"]) for row in part["layers"] if row["total"]]
        ratios = comparison_layers.layer_ratios(part["layers"], unit)
        title = f"The {unit}s in numbers"
        found.append(tables.compared_table("layers", title, rows, part, what=unit, folded=True))
    drawn = _kept(
        ratios,
        comparison_layers.layers_beside(shown, stage, unit),
        comparison_layers.layer_map(shown, stage, unit) if document is None else None,
    )
    told = [] if drawn else ["No run has layer times, so nothing can be said of layers."]
    if shared := comparison_layers.unlike(shown, stage):
        drawn = []
        told = [
            f"The networks differ: {shared[0]} of {format.plural(shared[1], unit)} are in more than one run, "
            f"too few to draw the {unit}s side by side. Each run's own page has them."
        ]
    return Section(name="layers", title=f"{unit.capitalize()}s", sentences=told, figures=drawn, tables=found)


def _steps(shown: Sequence[Compared], stage: Stage) -> Section:
    drawn = _kept(figures.step_times(shown, stage), figures.spreads(shown))
    return Section(name="training", title="Over the training", figures=drawn)


def _learning(shown: Sequence[Compared], document: Document | None) -> Section:
    learned = tables.results_table(document) if document else None
    drawn = _kept(losses({run.name: run.seen for run in shown}))
    lost = [run for run in shown if run.seen.learning["lost"].any()]
    told = [
        f"{one_line(run.name)}: {format.plural(int(run.seen.learning['lost'].sum()), 'step')} with a loss "
        "that is no number (NaN or infinite)"
        for run in lost
    ]
    return Section(
        name="learning",
        title="Learning",
        bullets=told,
        figures=drawn,
        tables=[learned] if learned is not None else [],
    )


def _profiling(document: Document | None, sides: Sequence[Group]) -> Section:
    found = document["profiling"] if document else None
    if not found:
        return Section(name="profiling", title="What profiling costs")
    drawn = _kept(figures.profiling_cost(found, [side.name for side in sides]))
    told = []
    if found["low"] is not None:
        low, high = ((found[end] - 1) * 100 for end in ("low", "high"))
        verdict = f" ({found['verdict']})" if found["verdict"] else ""
        told = [f"95 % interval of what profiling adds: {low:+.1f} % to {high:+.1f} %{verdict}."]
    return Section(name="profiling", title="What profiling costs", sentences=told, figures=drawn)
