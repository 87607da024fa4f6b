"""The page of one run: every figure that it has rows for, and a sentence where it has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from laptime.errors import LaptimeError
from laptime.estimate.device_speed import peaks
from laptime.estimate.run_correction import device_of, workload_of
from laptime.files.text import one_line
from laptime.model import Workload
from laptime.model.target import TargetTime
from laptime.ops.registry import kind_named
from laptime.render.html.page import REPORT_FILE, Page, Section, Tile, render, write_page
from laptime.runs import Run
from laptime.views import format
from laptime.views.figures import layers, learning, ranks, steps
from laptime.views.figures.layers import treemap
from laptime.views.figures.one_step import memory, timeline
from laptime.views.figures.roofline import Ceiling, roofline
from laptime.views.figures.steps import books, profiling
from laptime.views.findings import known_cost, look_first, recorder, signed
from laptime.views.ranks_tables import ranks_tables, sentences
from laptime.views.run_tables import (
    BY_TIME,
    accounts_table,
    facts_tables,
    in_order,
    layers_table,
    marked_steps,
)
from laptime.views.run_view import NOUNS, RecorderView, RunView, run_view, unlike_mean
from laptime.views.step_bins import Digest, digest, typical_step

_MOST_ROWS = 400  # of the table of layers
_TONES = {"steady": "good", "noisy": "fair", "unreliable": "bad", "too few": "fair"}


def write_report(run: Run, out: Path | str | None = None) -> Path:
    """Write a run as a page that needs nothing but a browser, by default `report.html` in it; its path."""
    return write_page(run_page(run), run.path / REPORT_FILE if out is None else out)


def notebook(run: Run) -> str:
    """An HTML fragment that styles itself and runs nothing: a notebook may be opened by someone else."""
    view = run_view(run)
    return render(
        "notebook.html",
        run=run,
        about=_about(view),
        warnings=view.warnings,
        tiles=list(tiles(view)),
        table=accounts_table(view.main) if view.main is not None and view.main.accounted else None,
        first=look_first(view),
    )


def run_page(run: Run, *, title: str | None = None) -> Page:
    """All there is to see of a run."""
    view, seen = run_view(run), digest(run)
    try:
        workload = workload_of(run)
    except LaptimeError:
        workload = None
    step = typical_step(run)
    accounted = view.main is not None and view.main.accounted
    tables = [accounts_table(part) for part in view.stages.values() if part.accounted]
    told = _no_step(view) if view.main is None else "A log holds times, and no accounts."
    learned = [learning.loss(seen.learning), learning.accuracy(seen.learning)]
    no_loss = "No loss was logged: recording.log(loss=loss) keeps it, and never waits for it."
    sections = [
        Section.of("first", "What to look at first", bullets=[*look_first(view), *view.notes]),
        Section.of("books", "Where a step goes", None if tables else told, books(view), *tables),
        Section.of(
            "training",
            "Over the training",
            steps.step_time(seen),
            steps.accounts_over_steps(seen),
            steps.spread(seen, view.main.wall_s if view.main else None),
        ),
        *_ranks(view, seen),
        *_layers(view, run, seen),
        Section.of("closure", "Total against profiled time", *(steps.closure(seen) if accounted else ())),
        Section.of("step", "One step", *((timeline(step), memory(step, workload)) if step else ())),
        _roofline(view, run, workload),
        Section.of("learning", "Learning", *learned, None if any(learned) or not view.stages else no_loss),
        Section.of("recorder", "The recorder itself", profiling(seen), bullets=recorder(view)),
        Section.of("environment", "Environment and configuration", *facts_tables(run)),
    ]
    return Page(
        title=title or run.path.name or run.id,
        subtitle=one_line(run.path),
        status=run.status,
        about=_about(view),
        warnings=[*map(one_line, view.warnings)],
        tiles=list(tiles(view)),
        sections=[section for section in sections if not section.empty],
    )


def _about(view: RunView) -> list[str]:
    facts = [f"{view.run.created:%Y-%m-%d %H:%M} UTC", str(view.device.get("name") or "unknown device")]
    if view.run.simulated:
        facts.insert(0, "simulated, not measured")
    if view.run.environment.get("torch"):
        facts.append(f"torch {view.run.environment['torch']}")
    if view.layers:
        facts.append(format.plural(view.layers, view.unit))
    if view.parameters:
        facts.append(format.plural(view.parameters, "parameter"))
    return facts


def tiles(view: RunView) -> Iterator[Tile]:
    """The few numbers that most people come for."""
    part = view.main
    if part is None:
        return
    wall = part.wall_s
    mean = f"mean {format.milliseconds(wall.mean)} ms" if unlike_mean(wall) else ""
    if wall.count and wall.mean:
        half = f"middle half {format.milliseconds(wall.q1)} to {format.milliseconds(wall.q3)}: {wall.noise}"
        yield Tile(
            name=f"{part.noun or 'a'} step",
            value=f"{format.milliseconds(wall.median)} ms",
            note="; ".join(filter(None, (half, mean))),
            tone=_TONES.get(wall.noise, ""),
        )
    if part.samples_per_s:
        by = f"by the mean step, {format.milliseconds(wall.mean)} ms" if mean else ""
        yield Tile(name="samples a second", value=format.rate(part.samples_per_s), note=by)
    ranks = f" on {part.ranks} ranks" if part.ranks > 1 else ""
    yield Tile(name="steps", value=f"{part.steps:,}", note=f"{part.noun}{ranks}".strip())
    if part.accounted:
        share = part.explained_share
        tone = "good" if share > 0.99 else "fair"
        yield Tile(name="explained", value=format.percent(share), note="of the wall time", tone=tone)
    yield from _cost(view.recorder)
    if view.target:
        yield _target(view.target)
    for key, name in (("top1", "top-1 accuracy"), ("loss", "loss")):
        for stage in (view.validation, view.train):
            if stage is None or stage.results is None or key not in stage.results.values:
                continue
            value = stage.results.values[key]
            text = format.percent(value) if key == "top1" and value is not None else format.loss(value)
            note = f"{NOUNS[stage.stage.value]}, last epoch"
            yield Tile(name=name, value=text, note=note, tone="bad" if value is None else "")
            break


def _target(told: TargetTime) -> Tile:
    name = f"time to {one_line(format.goal(told.metric, told.value))}"
    spent = format.long_duration(told.seconds)
    took = f"{format.plural(told.step, 'step')}, {format.plural(told.epoch, 'epoch')}"
    if told.reached:
        return Tile(name=name, value=spent, note=took)
    return Tile(name=name, value="not reached", note=f"in {spent}, {took}", tone="bad")


def _cost(recorder: RecorderView) -> Iterator[Tile]:
    """What the run paid for layer times where that is known; else what a marked step did."""
    overhead, budget = recorder.overhead, recorder.budget or {}
    if overhead is None:
        return
    how, paid = known_cost(overhead), budget.get("paid")
    each = f"{signed(overhead['ratio'])} of a marked step, {how}"
    if how == "unknown":
        each = "too noisy to measure"
    elif how == "measured":
        each += f", 95 %: {signed(overhead['low'])} to {signed(overhead['high'])}"
    if isinstance(paid, float):
        yield Tile(name="cost of layer marks", value=f"{paid * 100:+.2f} %", note=f"of the run; {each}")
    else:
        value = "not known" if how == "unknown" else signed(overhead["ratio"])
        yield Tile(name="cost of layer marks", value=value, note=each)


def _no_step(view: RunView) -> str:
    return "The steps of this run are gone." if "steps" in view.lost else "No step was recorded."


def _ranks(view: RunView, seen: Digest) -> Iterator[Section]:
    """What several ranks do: their pace, who waits for whom, what they exchange."""
    if view.ranks is not None:
        tables = ranks_tables(view.ranks, _MOST_ROWS)
        waiting = ranks.who_waits_for_whom(view.ranks)
        drawn = {waiting.name} if waiting else {}
        yield Section.of(
            "ranks",
            "Ranks",
            *sentences(view.ranks),
            ranks.steps_by_rank(seen),
            waiting,
            ranks.staleness(view.ranks),
            *(replace(table, folded=table.name in drawn) for table in tables),
        )


def _layers(view: RunView, run: Run, seen: Digest) -> Iterator[Section]:
    """Layers over the whole run, and over its iterations."""
    part, unit = view.main, view.unit
    if part is None:
        yield Section.of("layers", "Layers", _no_step(view))
        return
    title = f"{unit.capitalize()}s"
    marked = marked_steps(part, unit)
    marked = f"{marked[:1].upper()}{marked[1:]}"
    if part.timed_layers:
        yield Section.of(
            "layers",
            title,
            f"{marked}." if marked else None,
            layers.layers_together(part.timed_layers, unit),
            layers.forward_against_backward(part.layers, unit),
            treemap(part.timed_layers, {layer.name: layer.path for layer in run.network}),
            layers_table(part, unit, most=_MOST_ROWS, folded=True),
        )
    else:
        told = "No layer times were recorded, so nothing can be said of layers."
        yield Section.of("layers", "Layers", told)
    order = [layer.layer for layer in in_order(part.layers, BY_TIME)]
    steps_of = marked.split(";")[0]
    yield Section.of(
        "iterations",
        f"{title} over the iterations",
        layers.over_iterations(seen, order, unit, steps_of and f"{steps_of}."),
        layers.one_layer(seen, order, unit),
    )


def _roofline(view: RunView, run: Run, workload: Workload | None) -> Section:
    part = view.main
    if part is None or not part.layers:
        return Section.of("roofline", "Roofline")
    if workload is None:
        told = run.summary.get("workload")
        why = told.get("reason") if isinstance(told, Mapping) else None
        reason = f"what its step asks of a machine is not known ({one_line(why or 'it was not read')})"
        return Section.of("roofline", "Roofline", f"No roofline: {reason}.")
    return Section.of("roofline", "Roofline", roofline(part.layers, workload, _ceiling(run, workload)))


def _ceiling(run: Run, workload: Workload) -> Ceiling | None:
    """What the run's device offers in the types that its step computes in; None where that is not known."""
    device = device_of(run)
    if device is None:
        return None
    used = {operation.dtype for operation in workload.operations if operation.flops}
    if (run.environment.get("device") or {}).get("tf32_convolutions") and any(
        kind_named(operation.kind).uses_tf32 and operation.dtype == "float32"
        for operation in workload.operations
    ):
        used.add("tf32")  # in which cuDNN computes what is float32
    offered = {dtype: peak for dtype, peak in peaks(device).items() if dtype in used}
    source = device.sources.get("memory_bandwidth_gbs") or "catalog"
    return Ceiling(device=device.title, flops=offered, bandwidth=device.memory_bandwidth, source=source)
