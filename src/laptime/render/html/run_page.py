"""The page of one run: every figure that it has rows for, and a sentence where it has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from laptime.errors import LaptimeError
from laptime.estimate.device_speed import peaks
from laptime.estimate.measured_step import device_of, workload_of
from laptime.files.text import one_line
from laptime.model import Workload
from laptime.ops.registry import kind_named
from laptime.render.html.page import Page, Section, Tile
from laptime.runs import Run
from laptime.views import format
from laptime.views.figures import layers, learning, steps
from laptime.views.figures.breakdown import books
from laptime.views.figures.figure import Figure
from laptime.views.figures.memory import memory
from laptime.views.figures.recorder import profiling
from laptime.views.figures.roofline import Ceiling, roofline
from laptime.views.figures.timeline import timeline
from laptime.views.figures.treemap import treemap
from laptime.views.findings import look_first
from laptime.views.one_step import OneStep, typical_step
from laptime.views.recording_overhead import known_cost, recorder, signed
from laptime.views.run_tables import accounts_table, facts_tables, layers_table, marked_steps
from laptime.views.run_view import NOUNS, RecorderView, RunView, StageView, run_view, unlike_mean
from laptime.views.step_bins import Digest, digest

_MOST_ROWS = 400  # of the table of layers
_TONES = {"steady": "good", "noisy": "fair", "unreliable": "bad", "too few": "fair"}


def run_page(run: Run, *, title: str | None = None) -> Page:
    """All there is to see of a run."""
    view, seen, workload = run_view(run), digest(run), _workload(run)
    sections = [
        _first(view),
        _accounts(view),
        _training(view, seen),
        _layers(view, run),
        _iterations(view, seen),
        _closure(view, seen),
        _one_step(typical_step(run), workload),
        _roofline(view, run, workload),
        _learning(view, seen),
        _recorder(view, seen),
        Section(name="environment", title="Environment and configuration", tables=facts_tables(run)),
    ]
    return Page(
        title=title or run.path.name or run.id,
        subtitle=one_line(run.path),
        status=run.status,
        about=about(view),
        warnings=[*map(one_line, view.health.told)],
        tiles=list(tiles(view)),
        sections=[section for section in sections if not section.empty],
    )


def about(view: RunView) -> list[str]:
    """When and where it ran."""
    facts = [f"{view.created:%Y-%m-%d %H:%M} UTC", str(view.device.get("name") or "unknown device")]
    if view.environment.get("torch"):
        facts.append(f"torch {view.environment['torch']}")
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
        half = f"half {format.milliseconds(wall.q1)} to {format.milliseconds(wall.q3)}: {wall.noise}"
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
    for key, name in (("top1", "top-1 accuracy"), ("loss", "loss")):
        yield from _last_epoch(view, key, name)


def _last_epoch(view: RunView, key: str, name: str) -> Iterator[Tile]:
    for part in (view.validation, view.train):
        if part is None or part.results is None or key not in part.results.values:
            continue
        value = part.results.values[key]
        text = format.percent(value) if key == "top1" and value is not None else format.loss(value)
        note = f"{NOUNS[part.stage.value]}, last epoch"
        yield Tile(name=name, value=text, note=note, tone="bad" if value is None else "")
        return


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


def _first(view: RunView) -> Section:
    return Section(
        name="first",
        title="What to look at first",
        bullets=[*look_first(view), *(one_line(note) for note in view.notes)],
    )


def _kept(*figures: Figure | None) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def _no_step(view: RunView) -> str:
    return "The steps of this run are gone." if "steps" in view.lost else "No step was recorded."


def _accounts(view: RunView) -> Section:
    tables = [accounts_table(part) for part in view.stages.values() if part.accounted]
    told = _no_step(view) if view.main is None else "A log holds times, and no accounts."
    return Section(
        name="books",
        title="Where a step goes",
        sentences=[] if tables else [told],
        figures=_kept(books(view)),
        tables=tables,
    )


def _training(view: RunView, seen: Digest) -> Section:
    wall = view.main.wall_s if view.main else None
    figures = _kept(steps.step_time(seen), steps.accounts_over_steps(seen), steps.spread(seen, wall))
    return Section(name="training", title="Over the training", figures=figures)


def _layers(view: RunView, run: Run) -> Section:
    part, unit = view.main, view.unit
    if part is None or not part.timed_layers:
        told = "No layer times were recorded, so nothing can be said of layers."
        return Section(name="layers", title="Layers", sentences=[told if part else _no_step(view)])
    paths = {layer.name: layer.path for layer in run.network}
    return Section(
        name="layers",
        title=f"{unit.capitalize()}s",
        sentences=list(_marked(part, unit)),
        figures=_kept(
            layers.layers_together(part.timed_layers, unit),
            layers.forward_against_backward(part.layers, unit),
            treemap(part.timed_layers, paths),
        ),
        tables=[layers_table(part, unit, most=_MOST_ROWS, folded=True)],
    )


def _marked(part: StageView, unit: str) -> Iterator[str]:
    if told := marked_steps(part, unit):
        yield f"{told[0].upper()}{told[1:]}."


def _iterations(view: RunView, seen: Digest) -> Section:
    figures: list[Figure] = []
    if view.main is not None:
        order = layers.by_time(view.main.layers)
        marked = next(_marked(view.main, view.unit), "").split(";")[0].rstrip(".")
        figures = _kept(
            layers.over_iterations(seen, order, view.unit, marked and f"{marked}."),
            layers.one_layer(seen, order, view.unit),
        )
    title = f"{view.unit.capitalize()}s over the iterations"
    return Section(name="iterations", title=title, figures=figures)


def _closure(view: RunView, seen: Digest) -> Section:
    accounted = view.main is not None and view.main.accounted
    figures = _kept(steps.total_against_profiled(seen), steps.percentage_error(seen)) if accounted else []
    return Section(name="closure", title="Total against profiled time", figures=figures)


def _workload(run: Run) -> Workload | None:
    try:
        return workload_of(run)
    except LaptimeError:
        return None


def _one_step(one: OneStep | None, workload: Workload | None) -> Section:
    figures = [] if one is None else _kept(timeline(one), memory(one, workload))
    return Section(name="step", title="One step", figures=figures)


def _roofline(view: RunView, run: Run, workload: Workload | None) -> Section:
    part = view.main
    if part is None or not part.layers:
        return Section(name="roofline", title="Roofline")
    if workload is None:
        told = run.summary.get("workload")
        why = told.get("reason") if isinstance(told, Mapping) else None
        reason = f"what its step asks of a machine is not known ({one_line(why or 'it was not read')})"
        return Section(name="roofline", title="Roofline", sentences=[f"No roofline: {reason}."])
    figure = roofline(part.layers, workload, ceiling(run, workload))
    return Section(name="roofline", title="Roofline", figures=_kept(figure))


def ceiling(run: Run, workload: Workload) -> Ceiling | None:
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


def _learning(view: RunView, seen: Digest) -> Section:
    figures = _kept(learning.loss(seen.learning), learning.accuracy(seen.learning))
    if figures or not view.stages:
        return Section(name="learning", title="Learning", figures=figures)
    told = "No loss was logged: recording.log(loss=loss) keeps it, and never waits for it."
    return Section(name="learning", title="Learning", sentences=[told])


def _recorder(view: RunView, seen: Digest) -> Section:
    return Section(
        name="recorder",
        title="The recorder itself",
        bullets=[*recorder(view)],
        figures=_kept(profiling(seen)),
    )
