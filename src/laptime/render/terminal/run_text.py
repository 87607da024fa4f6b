"""Runs in the terminal: one by itself, several in a table, two groups or a run and its prediction compared.

Every name is text, never markup; a verdict is a word, not a colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from laptime.files.text import one_line
from laptime.render.terminal import GAP, WIDEST, bullets, facts, paragraph
from laptime.render.terminal.table import left_out, table_lines
from laptime.views import format
from laptime.views.comparison import tables
from laptime.views.comparison.predicted import PredictedComparison
from laptime.views.comparison.sides import ComparisonView, ProfilingCost
from laptime.views.findings import look_first, recorder
from laptime.views.palette import of, painted
from laptime.views.ranks_tables import MOST_RANKS, ranks_tables, sentences
from laptime.views.run_tables import (
    BY_TIME,
    accounts_table,
    devices_table,
    largest,
    layers_table,
    like,
    marked_steps,
)
from laptime.views.run_view import RunView, StageView, unlike_mean
from laptime.views.sparkline import blocks, shorter, step_blocks
from laptime.views.step_series import DeviceSeconds
from laptime.views.table import Cell, Column, Table, table_of

TOP_LAYERS = 15
_INDENT = 2
_NARROWEST_LINE = 16  # of blocks over time, before its words move to a line of their own
_FEWEST = 4  # steps that make a line over time


def run_lines(view: RunView, width: int, *, every_layer: bool = False, sort: str = BY_TIME) -> Iterator[Text]:
    """All there is to say about a run, its layers in one of the ORDERS."""
    width = min(width, WIDEST)
    most = None if every_layer else TOP_LAYERS
    yield Text(one_line(view.run.path), style="bold")
    yield from map(painted, facts(_about(view), width, style="dim"))
    for sentence in view.warnings:
        yield from paragraph(one_line(sentence), width, style="bold red")
    if view.target:
        yield from paragraph(one_line(format.target(view.target)), width)
    for part in view.stages.values():
        stage = _stage(part, view, width - _INDENT, most, sort)
        yield from _titled(f"Where a {format.step_of(part.noun)} goes", stage)
    yield from _titled("Ranks", _ranks(view, width - _INDENT, most, sort))
    first = map(painted, bullets(look_first(view), width - _INDENT))
    yield from _titled("What to look at first", first)
    yield from _titled("The recorder itself", bullets(recorder(view), width - _INDENT))
    yield from _titled("Notes", bullets(map(one_line, view.notes), width - _INDENT))


def brief(view: RunView) -> Iterator[str]:
    """A run in a few lines, for the end of someone else's output."""
    yield from map(one_line, view.warnings)
    for part in view.stages.values():
        yield ", ".join(_pace(part))
        told = [account for account in part.accounts.values() if not account.traced]
        rows = sorted((each for each in told if each.share >= 0.005), key=lambda account: -account.share)
        shares = ", ".join(f"{account.account} {format.percent(account.share)}" for account in rows)
        yield f"{shares}; explained {format.percent(part.explained_share)}"
    if view.target:
        yield one_line(format.target(view.target))
    yield from look_first(view)
    yield from (f"note: {one_line(note)}" for note in view.notes)


def _titled(title: str, lines: Iterable[Text]) -> Iterator[Text]:
    """The lines below their title; nothing where there are none."""
    for place, line in enumerate(lines):
        if not place:
            yield from (Text(), Text(title, style="bold"))
        yield Text(" " * _INDENT).append_text(line) if line else line


def _about(view: RunView) -> list[str]:
    run, environment = view.run, view.run.environment
    status = "simulated, not measured" if run.simulated else run.status
    about = [f"{status}, {run.created:%Y-%m-%d %H:%M} UTC", view.device.get("name") or "unknown device"]
    if view.device.get("type") == "cpu" and environment.get("threads"):
        about.append(format.plural(environment["threads"], "thread"))
    if environment.get("torch"):
        about.append(f"torch {environment['torch']}")
    if view.source is None:
        about += [format.plural(view.layers, "layer"), format.plural(view.parameters, "parameter")]
    elif view.layers:  # of a network that is not here, nobody knows the parameters
        about.append(format.plural(view.layers, view.unit))
    return list(map(one_line, about))


def _stage(part: StageView, view: RunView, width: int, most: int | None, sort: str) -> Iterator[Text]:
    """The course of a stage's steps, their accounts, then the layers by phase."""
    yield from map(painted, facts(_pace(part), width))
    yield from _course(part, width)
    if part.accounted:
        yield Text()
        yield from table_lines(replace(accounts_table(part), title="", notes=()), width)
        told = f"explained {format.percent(part.explained_share)}"
        if part is view.main:
            warm_up = "first step left out as warm-up; " if part.accounts.skipped else ""
            told += f"; {warm_up}the means add up to the wall time"
        yield from paragraph(told, width, style="dim")
        for account in part.accounts.values():
            if account.traced and account.seconds.count:  # idle time, which only a trace can tell
                steps = format.plural(account.seconds.count, "kernel-traced step")
                median, share = format.milliseconds(account.seconds.median), format.percent(account.share)
                idle = f"{steps}: {median} ms {account.account}, {share} of that time"
                yield from paragraph(idle, width, style="dim")
    if part.timed_layers:
        yield Text()
        yield from _layers(part, view, width, most, sort)


def _layers(part: StageView, view: RunView, width: int, most: int | None, sort: str) -> Iterator[Text]:
    """The layers by phase."""
    table = layers_table(part, view.unit, sort=sort, most=most)
    yield from paragraph(table.title, width, style="bold")
    yield from table_lines(replace(table, title=""), width)
    told = [marked_steps(part, view.unit)]
    if part.layers.traced:
        told.append("every step was kernel-traced: the times include the tracer's cost")
    if part.layers.named_share < 0.9995:
        share = format.percent(part.layers.named_share)
        told.append(f"{share} of the compute is charged to a named layer")
    known = {layer.layer: layer.memory_bytes for layer in part.layers if layer.memory_bytes}
    if known:  # from kernel-traced steps alone
        top = max(known, key=lambda name: known[name])
        size = view.device.get("memory_bytes") if view.device.get("type") != "cpu" else None
        most_memory = format.memory(known[top]) + (f" of {format.memory(size)}" if size else "")
        told.append(f"most memory allocated: {most_memory}, while {format.called(top, view.unit)} ran")
    for line in told:
        yield from paragraph(line, width, style="dim")


def _ranks(view: RunView, width: int, most: int | None, sort: str) -> Iterator[Text]:
    """What several ranks do: their pace, who waits for whom, what they exchange, and their layers."""
    part = view.main
    if view.ranks is None or part is None:
        return
    for sentence in sentences(view.ranks):
        yield from paragraph(sentence, width)
    for table in ranks_tables(view.ranks, None if most is None else MOST_RANKS):
        yield from (Text(), Text(table.title, style="bold"))
        yield from table_lines(replace(table, title=""), width)
    names = [layer.layer for layer in largest(part.layers, sort, most)[0]]
    if rows := like(part.layers_by_device, names):
        yield from (Text(), Text(f"{view.unit.capitalize()}s by device, in ms", style="bold"))
        yield from device_lines(rows, width)


def device_lines(rows: Sequence[DeviceSeconds], width: int) -> list[Text]:
    """A column for each device; the fastest and the slowest where there is no room for all."""
    table = devices_table(rows)
    return table_lines(devices_table(rows, spread=True) if left_out(table, width) else table, width)


def _course(part: StageView, width: int) -> Iterator[Text]:
    """Step time and loss over the run, from its beginning to its end."""
    times, loss = part.course.step_s, part.course.loss
    lost = f" (not finite in {loss.not_finite:,} of {loss.steps:,} steps)" if loss and loss.not_finite else ""
    if len(times) >= _FEWEST and part.wall_s.mean:
        first, last, most = map(format.milliseconds, (times[0], times[-1], max(part.course.largest_s)))
        told = f"from {first} to {last} ms, at most {most} ms"
        yield from _over_time("step time", lambda cells: step_blocks(times, cells), len(times), told, width)
    if loss and len(loss.bins) >= _FEWEST:
        told = f"from {format.loss(loss.first)} to {format.loss(loss.last)}{lost}"
        bins = loss.bins
        yield from _over_time("loss", lambda cells: blocks(shorter(bins, cells)), len(bins), told, width)
    elif loss:
        yield from paragraph(f"loss {format.loss(loss.last)}{lost}", width)


def _over_time(title: str, draw: Callable[[int], str], most: int, told: str, width: int) -> Iterator[Text]:
    """A line of blocks with its words beside it, or below where both have no room."""
    margin = len("step time") + len(GAP)
    cells = width - margin - len(GAP) - len(told)
    beside = cells >= min(most, _NARROWEST_LINE)
    line = Text.assemble(
        (f"{title:<{margin}}", of(title)), draw(min(most, cells if beside else width - margin))
    )
    yield line.append(GAP + told) if beside else line
    if not beside:
        yield from paragraph(told, width, bullet=" " * margin)


def _pace(part: StageView) -> list[str]:
    """`500 training steps`, `7.73 ms each (middle half 6.67 to 8.89: noisy)`, `4,140 samples/s`, …."""
    wall = part.wall_s
    ranks = f" of {part.ranks} ranks" if part.ranks > 1 else ""
    pace = [format.plural(part.steps, format.step_of(part.noun)) + ranks]
    if not wall.count or not wall.mean:  # lines of a log that say no time
        return [*pace, "how long they took is not known"]
    median, low, high = map(format.milliseconds, (wall.median, wall.q1, wall.q3))
    pace.append(f"{median} ms each (middle half {low} to {high}: {wall.noise})")
    if unlike_mean(wall):
        pace.append(f"{format.milliseconds(wall.mean)} ms on average")
    if part.samples_per_s:
        pace.append(f"{format.rate(part.samples_per_s)} samples/s")
    if part.epochs > 1:
        pace.append(format.plural(part.epochs, "epoch"))
    return pace + ([format.plural(part.updates, "optimizer update")] if part.updates else [])


# -- several runs in a table ---------------------------------------------------------------------------------


def trial_lines(rows: Sequence[dict[str, Any]], width: int, *, title: str = "trial") -> list[Text]:
    """The rows as a table; `title` is what a row is."""

    def cells(stage: str, key: str, write: Any) -> list[str]:
        values = [row[stage][key] for row in rows]
        gone = ["not finite" if key in row[stage]["not_finite"] else format.UNKNOWN for row in rows]
        return [other if value is None else write(value) for value, other in zip(values, gone, strict=True)]

    def optional(title: str, priority: int) -> Column:
        return Column(title=title, priority=priority, optional=True)

    statuses = [f"{row['status']}, incomplete" if row["lost_rows"] else row["status"] for row in rows]
    columns: list[tuple[Column, Sequence[str | Cell]]] = [
        (Column(title=title, words=True), [format.name(row["trial"]) for row in rows]),
        (Column(title="status", words=True), [Cell(text=status, word=status) for status in statuses]),
        (optional("steps", 4), cells("train", "steps", "{:,}".format)),
        (Column(title="step ms"), cells("train", "step_s", format.milliseconds)),
        (optional("samples/s", 3), cells("train", "samples_per_s", format.rate)),
        (optional("loss", 1), cells("train", "loss", "{:.4g}".format)),
        (optional("val. loss", 2), cells("validation", "loss", "{:.4g}".format)),
        (optional("val. top-1", 2), cells("validation", "top1", format.percent)),
    ]
    return table_lines(table_of("trials", columns), width)


# -- comparisons ---------------------------------------------------------------------------------------------


def comparison_lines(
    view: ComparisonView | PredictedComparison, width: int, *, every_layer: bool = False
) -> Iterator[Text]:
    """Two groups of runs, or a run and its prediction, side by side."""
    width = min(width, WIDEST) - _INDENT
    most = None if every_layer else TOP_LAYERS
    if isinstance(view, PredictedComparison):
        yield from _predicted(view, width, most)
        return
    for letter, side in zip("AB", view.sides, strict=True):
        more = f" and {len(side) - 1} more" if len(side) > 1 else ""
        simulated = " (simulated)" if any(run.run.simulated for run in side) else ""
        yield Text(f"{letter}  {format.name(str(side[0].run.path))}{more}{simulated}", style="bold")
    if view.networks_differ:
        yield from (Text(), *paragraph(view.networks_differ, width))
    for part in view.stages.values():
        yield from _table(tables.pace_table(part), width)
        yield from _table(tables.accounts_table(part), width)
        yield from _compared_layers(tables.layers_table(part, most), len(part.layers), part.unit, width)
        for letter, rows in zip("AB", part.by_device or (), strict=False):
            if rows:
                yield from _titled(f"Layers of {letter} by device, in ms", device_lines(rows, width))
    yield from _table(tables.collectives_table(view), width)
    yield from _table(tables.results_table(view), width)
    if view.target:
        yield from _table(tables.target_table(view.target), width)
    if view.profiling:
        yield from _titled("Profiling", bullets([_profiling(view.profiling)], width))
    notes = [note for note in view.notes if note != view.networks_differ]
    yield from _titled("Notes", bullets(notes, width))


def _predicted(view: PredictedComparison, width: int, most: int | None) -> Iterator[Text]:
    made, steps = view.prediction, format.plural(view.measured.steps, "step")
    yield Text(f"measured   {format.name(view.run_path)}, {steps}", style="bold")
    made_for = f"{format.name(made.network)} on {format.name(made.device)}, batch {made.batch}"
    yield Text(f"predicted  {format.name(view.prediction_path)}: {made_for}", style="bold")
    yield from (Text(), *paragraph(view.summary, width))
    yield from _table(tables.predicted_phases_table(view), width)
    yield from _compared_layers(tables.predicted_layers_table(view, most), len(view.layers), "layer", width)
    yield from _titled("Notes", bullets([*view.notes, f"the prediction rests on: {made.basis}"], width))


def _table(table: Table, width: int) -> Iterator[Text]:
    if table:
        yield from _titled(table.title, table_lines(replace(table, title=""), width))


def _compared_layers(table: Table, count: int, unit: str, width: int) -> Iterator[Text]:
    yield from _table(table, width)
    if table and count > len(table.rows):
        smaller = format.plural(count - len(table.rows), f"smaller {unit}")
        yield Text(f"{' ' * _INDENT}… and {smaller}; --all shows them", style="dim")


def _profiling(cost: ProfilingCost) -> str:
    """The increase of a step from without to with profiling."""
    if math.isnan(cost.slowdown):
        return "One side was profiled and the other was not, but there are no steps to compare."
    how = "longer" if cost.slowdown >= 0 else "shorter"
    return (
        f"With profiling ({cost.profiled.upper()}) a step takes {format.percent(abs(cost.slowdown))} {how} "
        f"than without, 95 % interval {cost.interval_text}."
    )
