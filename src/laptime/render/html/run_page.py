"""The page of one run: every figure that it has rows for, and a sentence where it has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from laptime.errors import LaptimeError
from laptime.estimate.device_speed import peaks
from laptime.estimate.measured_step import device_of, workload_of
from laptime.files.text import one_line
from laptime.model import Stage, Workload
from laptime.ops.registry import kind_named
from laptime.render.html.page import Page, Section, Tile
from laptime.render.html.run_tables import accounts_table, facts_tables, layers_table
from laptime.render.terminal.run_tables import marked_steps
from laptime.render.terminal.run_text import unlike_mean
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
from laptime.views.one_step import OneStep, typical_step
from laptime.views.recording_overhead import known_cost, recorder, signed
from laptime.views.run_view import NOUNS, content
from laptime.views.step_bins import Digest, digest

_TONES = {"steady": "good", "noisy": "fair", "unreliable": "bad", "too few": "fair"}


def run_page(run: Run, *, title: str | None = None) -> Page:
    """All there is to see of a run."""
    with ThreadPoolExecutor(1) as aside:  # DuckDB and numpy both let go of Python's lock
        drawn = aside.submit(digest, run)
        found = content(run)
        seen = drawn.result()
    sections = [
        _first(found),
        _books(found),
        _training(found, seen),
        _layers(found, run),
        _iterations(found, seen),
        _thesis(found, seen),
        _one_step(found, typical_step(run), _workload(run)),
        _roofline(found, run),
        _learning(found, seen),
        _recorder(found, seen),
        Section(name="environment", title="Environment and configuration", tables=facts_tables(found, run)),
    ]
    return Page(
        title=title or run.path.name or run.id,
        subtitle=one_line(run.path),
        status=run.status,
        about=about(found),
        warnings=[*map(one_line, found["health"]["told"])],
        tiles=list(tiles(found)),
        sections=[one for one in sections if not one.empty],
    )


def about(found: Mapping[str, Any]) -> list[str]:
    """When and where it ran."""
    run = found["run"]
    environment = run["environment"]
    device = environment.get("device") or {}
    facts = [f"{run['created'][:16].replace('T', ' ')} UTC", str(device.get("name") or "unknown device")]
    if environment.get("torch"):
        facts.append(f"torch {environment['torch']}")
    if run["layers"]:
        facts.append(format.plural(run["layers"], run["unit"]))
    if run["parameters"]:
        facts.append(format.plural(run["parameters"], "parameter"))
    return facts


def main_part(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The stage that most is said about."""
    part: Mapping[str, Any] | None = found["train"] or found["validation"]
    return part


def tiles(found: Mapping[str, Any]) -> Iterator[Tile]:
    """The few numbers that most people come for."""
    part = main_part(found)
    if part is None:
        return
    wall = part["wall_s"]
    if wall and wall["mean"]:
        half = f"half {format.milliseconds(wall['q1'])} to {format.milliseconds(wall['q3'])}: {wall['noise']}"
        yield Tile(
            name=f"{part['noun'] or 'a'} step",
            value=f"{format.milliseconds(wall['median'])} ms",
            note=f"{half}; mean {format.milliseconds(wall['mean'])} ms" if unlike_mean(wall) else half,
            tone=_TONES.get(wall["noise"], ""),
        )
    if part["samples_per_s"]:
        mean = f"by the mean step, {format.milliseconds(wall['mean'])} ms" if unlike_mean(wall) else ""
        yield Tile(name="samples a second", value=f"{part['samples_per_s']:,.0f}", note=mean)
    ranks = f" on {part['ranks']} ranks" if part["ranks"] > 1 else ""
    yield Tile(name="steps", value=f"{part['steps']:,}", note=f"{part['noun']}{ranks}".strip())
    if part["accounted"]:
        share = part["explained_share"]
        yield Tile(
            name="explained",
            value=format.percent(share),
            note="of the wall time",
            tone="good" if share is not None and share > 0.99 else "fair",
        )
    yield from _cost(found["recorder"])
    for key, name in (("top1", "top-1 accuracy"), ("loss", "loss")):
        for stage in ("validation", "train"):
            results = (found[stage] or {}).get("results") or {}
            if key in results:
                value = results[key]
                text = (
                    "not finite"
                    if value is None
                    else format.percent(value)
                    if key == "top1"
                    else f"{value:.4g}"
                )
                yield Tile(
                    name=name,
                    value=text,
                    note=f"{NOUNS[stage]}, last epoch",
                    tone="bad" if value is None else "",
                )
                break


def _cost(recorder: Mapping[str, Any]) -> Iterator[Tile]:
    """What the run paid for layer times where that is known; else what a marked step did."""
    overhead, budget = recorder["overhead"], recorder["budget"] or {}
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


def _first(found: Mapping[str, Any]) -> Section:
    return Section(
        name="first",
        title="What to look at first",
        bullets=[*found["look_first"], *(one_line(note) for note in found["notes"])],
    )


def _kept(*figures: Figure | None) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def _no_step(found: Mapping[str, Any]) -> str:
    return "The steps of this run are gone." if "steps" in found["lost"] else "No step was recorded."


def _books(found: Mapping[str, Any]) -> Section:
    tables = [
        accounts_table(found[stage], stage) for stage in NOUNS if found[stage] and found[stage]["accounted"]
    ]
    told = (
        []
        if tables
        else [_no_step(found) if main_part(found) is None else "A log holds times, and no accounts."]
    )
    return Section(
        name="books", title="Where a step goes", sentences=told, figures=_kept(books(found)), tables=tables
    )


def _training(found: Mapping[str, Any], seen: Digest) -> Section:
    part = main_part(found)
    wall = part["wall_s"] if part else None
    figures = _kept(steps.step_time(seen), steps.accounts_over_steps(seen), steps.spread(seen, wall or {}))
    return Section(name="training", title="Over the training", figures=figures)


def _layers(found: Mapping[str, Any], run: Run) -> Section:
    part = main_part(found)
    unit = found["run"]["unit"]
    if part is None or not any(one["total_s"] for one in part["layers"]):
        told = (
            _no_step(found)
            if part is None
            else "No layer times were recorded, so nothing can be said of layers."
        )
        return Section(name="layers", title="Layers", sentences=[told])
    paths = {layer.name: layer.path for layer in run.network}
    return Section(
        name="layers",
        title=f"{unit.capitalize()}s",
        sentences=list(_marked(part, unit)),
        figures=_kept(
            layers.layers_together(part, unit),
            layers.forward_against_backward(part, unit),
            treemap(part, paths),
        ),
        tables=[layers_table(part, unit)],
    )


def _marked(part: Mapping[str, Any], unit: str) -> Iterator[str]:
    if told := marked_steps(part, unit):
        yield f"{told[0].upper()}{told[1:]}."


def _iterations(found: Mapping[str, Any], seen: Digest) -> Section:
    part, unit = main_part(found), found["run"]["unit"]
    figures: list[Figure] = []
    if part is not None:
        order = layers.by_time(part)
        told = marked_steps(part, unit).split(";")[0]  # the rest stands above the layers
        marked = told and f"{told[0].upper()}{told[1:]}."
        figures = _kept(
            layers.over_iterations(seen, order, unit, marked), layers.one_layer(seen, order, unit)
        )
    return Section(name="iterations", title=f"{unit.capitalize()}s over the iterations", figures=figures)


def _thesis(found: Mapping[str, Any], seen: Digest) -> Section:
    part = main_part(found)
    figures = (
        _kept(steps.total_against_profiled(seen), steps.percentage_error(seen))
        if part is not None and part["accounted"]
        else []
    )
    return Section(name="closure", title="Total against profiled time", figures=figures)


def _workload(run: Run) -> Workload | None:
    try:
        return workload_of(run)
    except LaptimeError:
        return None


def _one_step(found: Mapping[str, Any], one: OneStep | None, workload: Workload | None) -> Section:
    figures = [] if one is None else _kept(timeline(one), memory(one, workload))
    return Section(name="step", title="One step", figures=figures)


def _roofline(found: Mapping[str, Any], run: Run) -> Section:
    part, workload = main_part(found), _workload(run)
    if part is None or not part["layers"]:
        return Section(name="roofline", title="Roofline")
    if workload is None:
        told = run.summary.get("workload")
        why = told.get("reason") if isinstance(told, Mapping) else None
        reason = f"what its step asks of a machine is not known ({one_line(why or 'it was not read')})"
        return Section(name="roofline", title="Roofline", sentences=[f"No roofline: {reason}."])
    return Section(
        name="roofline", title="Roofline", figures=_kept(roofline(part, workload, ceiling(run, workload)))
    )


def ceiling(run: Run, workload: Workload) -> Ceiling | None:
    """What the run's device offers in the types that its step computes in; None where that is not known."""
    device = device_of(run)
    if device is None:
        return None
    used = {one.dtype for one in workload.operations if one.flops}
    if (run.environment.get("device") or {}).get("tf32_convolutions") and any(
        kind_named(one.kind).uses_tf32 and one.dtype == "float32" for one in workload.operations
    ):
        used.add("tf32")  # in which cuDNN computes what is float32
    offered = {dtype: peak for dtype, peak in peaks(device).items() if dtype in used}
    source = device.sources.get("memory_bandwidth_gbs") or "catalog"
    return Ceiling(device=device.title, flops=offered, bandwidth=device.memory_bandwidth, source=source)


def _learning(found: Mapping[str, Any], seen: Digest) -> Section:
    figures = _kept(learning.loss(seen.learning), learning.accuracy(seen.learning))
    if figures or not any(found[stage.value] for stage in Stage):
        return Section(name="learning", title="Learning", figures=figures)
    told = "No loss was logged: recording.log(loss=loss) keeps it, and never waits for it."
    return Section(name="learning", title="Learning", sentences=[told])


def _recorder(found: Mapping[str, Any], seen: Digest) -> Section:
    return Section(
        name="recorder",
        title="The recorder itself",
        bullets=[*recorder(found)],
        figures=_kept(profiling(seen)),
    )
