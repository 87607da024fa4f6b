"""A run in the terminal. Made from `content` alone; every name is text, never markup."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NoReturn

from rich.console import Console
from rich.text import Text

from laptime.files.text import one_line, visible
from laptime.render.terminal import run_tables
from laptime.render.terminal.columns import GAP, facts, paragraph
from laptime.render.terminal.layers_by_device import device_columns
from laptime.views import format
from laptime.views.layer_order import BY_TIME, ORDERS, largest, like, possible
from laptime.views.palette import of, painted
from laptime.views.recording_overhead import recorder
from laptime.views.run_view import NOUNS, source
from laptime.views.sparkline import blocks, shorter, step_blocks

_INDENT = 2
_WIDEST = 140  # nothing here needs more, and longer lines are hard to follow
_NARROWEST_LINE = 16  # of blocks over time, before its words move to a line of their own
_FEWEST = 4  # steps that make a line over time
_FAR_APART = 1.2  # a mean and a median


class TerminalConsole(Console):
    """A console that leaves a broken pipe to its caller, where `rich` would end the process with status 1."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Show what a terminal would act on: escapes and bidirectional marks that came from a file."""
        for thing in objects:
            if isinstance(thing, Text):
                thing.plain = visible(thing.plain)
        super().print(*(visible(thing) if isinstance(thing, str) else thing for thing in objects), **options)

    def on_broken_pipe(self) -> NoReturn:
        """Let the caller know."""
        raise BrokenPipeError


def console(file: IO[str] | None = None, *, colour: bool | None = None) -> Console:
    """Where tables go: standard output unless told otherwise. Takes text as it is.

    Colours on terminals that have them, unless NO_COLOR is set, and elsewhere where FORCE_COLOR is; `colour`
    overrides both.
    """
    return TerminalConsole(
        file=file or sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=colour or None,
        color_system="standard" if colour else "auto",  # sixteen colours are all that is used
        no_color=None if colour is None else not colour,
    )


def show(found: Mapping[str, Any], to: Console, *, every_layer: bool = False, sort: str = BY_TIME) -> None:
    """Print all there is to say about a run, its layers in one of the ORDERS."""
    most = None if every_layer else run_tables.TOP_LAYERS
    print_lines(_lines(found, min(to.width, _WIDEST), most, sort), to)


def print_lines(lines: Iterable[Text], to: Console) -> None:
    """Lines that are no wider than they should be already; in plain characters where there are no others."""
    for line in lines:
        if to.options.ascii_only:
            line.plain = format.in_ascii(line.plain)
            line.rstrip()
        to.print(line, no_wrap=True, overflow="ignore", crop=False)


def brief(found: Mapping[str, Any]) -> Iterator[str]:
    """A run in a few lines, for the end of someone else's output."""
    yield from map(one_line, found["health"]["told"])
    for stage in NOUNS:
        if found[stage]:
            yield ", ".join(_pace(found[stage]))
            yield _shares(found[stage])
    yield from found["look_first"]
    yield from (f"note: {one_line(note)}" for note in found["notes"])


def _lines(found: Mapping[str, Any], width: int, most: int | None, sort: str) -> Iterator[Text]:
    yield Text(one_line(found["run"]["path"]), style="bold")
    yield from map(painted, facts(_about(found["run"]), width, style="dim"))
    for sentence in found["health"]["told"]:
        yield from paragraph(one_line(sentence), width, style="bold red")
    stages = [stage for stage in NOUNS if found[stage]]
    for stage in stages:
        part = found[stage]
        yield from (Text(), Text(f"Where a {step_of(part['noun'])} goes", style="bold"))
        explain = stage == stages[0]
        yield from map(_indented, _stage(part, found["run"], width - _INDENT, most, sort, explain=explain))
    for title, sentences in (
        ("What to look at first", found["look_first"]),
        ("The recorder itself", recorder(found)),
        ("Notes", map(one_line, found["notes"])),
    ):
        lines = [line for one in sentences for line in paragraph(one, width - _INDENT, bullet="- ")]
        if title == "What to look at first":
            lines = [*map(painted, lines)]
        yield from ([Text(), Text(title, style="bold"), *map(_indented, lines)] if lines else [])


def _indented(line: Text) -> Text:
    return Text(" " * _INDENT).append_text(line) if line else line


def _about(run: Mapping[str, Any]) -> list[str]:
    environment = run["environment"]
    device = environment.get("device") or {}
    about = [
        f"{run['status']}, {run['created'][:16].replace('T', ' ')} UTC",
        device.get("name") or "unknown device",
    ]
    if device.get("type") == "cpu" and environment.get("threads"):
        about.append(format.plural(environment["threads"], "thread"))
    if environment.get("torch"):
        about.append(f"torch {environment['torch']}")
    if source(run["config"]) is None:
        about += [format.plural(run["layers"], "layer"), format.plural(run["parameters"], "parameter")]
    elif run["layers"]:  # of a network that is not here, nobody knows the parameters
        about.append(format.plural(run["layers"], run["unit"]))
    return list(map(one_line, about))


def step_of(noun: str) -> str:
    """`training step`, or just `step` where there is no noun."""
    return f"{noun} step".strip()


def _stage(
    part: Mapping[str, Any], run: Mapping[str, Any], width: int, most: int | None, sort: str, *, explain: bool
) -> Iterator[Text]:
    """The course of a stage's steps, their books, then the layers by phase."""
    yield from map(painted, facts(_pace(part), width))
    yield from _course(part, width)
    if part["accounted"]:
        yield Text()
        yield from run_tables.books(part, width)
        for line in _beside(part, explain=explain):
            yield from paragraph(line, width, style="dim")
    if any(layer["total_s"] for layer in part["layers"]):
        yield Text()
        yield from _layers(part, run, width, most, sort)


def _layers(
    part: Mapping[str, Any], run: Mapping[str, Any], width: int, most: int | None, sort: str
) -> Iterator[Text]:
    """The layers by phase; with several devices, the same ones by device."""
    unit, order = run["unit"], ORDERS[possible(part["layers"], sort)]
    title = f"{unit.capitalize()}s of a {step_of(part['noun'])}, in ms, {order}"
    yield from paragraph(title, width, style="bold")
    if told := run_tables.marked_steps(part, unit):
        yield from paragraph(told, width, style="dim")
    lines = run_tables.layers(part, width, most=most, unit=unit, sort=sort)
    yield from lines
    starred = any("*" in line.plain for line in lines[:1])  # the head: not where its column had no room
    for line in (*_legend(part, starred=starred), *_memory(part, run)):
        yield from paragraph(line, width, style="dim")
    names = [one["layer"] for one in largest(part["layers"], sort, most)[0]]
    rows = like(part["layers_by_device"], names)
    if rows:
        yield from (Text(), Text(f"{unit.capitalize()}s by device, in ms", style="bold"))
        yield from device_columns(rows, width)


def _course(part: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Step time and loss over the run, from its beginning to its end."""
    course = part["course"]
    times, loss = course["step_s"], course["loss"]
    if len(times) >= _FEWEST and part["wall_s"]["mean"]:
        first, last, most = map(format.milliseconds, (times[0], times[-1], max(course["largest_s"])))
        told = f"from {first} to {last} ms, at most {most} ms"
        yield from _over_time("step time", lambda cells: step_blocks(times, cells), len(times), told, width)
    if loss and len(loss["bins"]) >= _FEWEST:
        told = f"from {format.loss(loss['first'])} to {format.loss(loss['last'])}{_not_finite(loss)}"
        bins = loss["bins"]
        yield from _over_time("loss", lambda cells: blocks(shorter(bins, cells)), len(bins), told, width)
    elif loss:
        yield from paragraph(f"loss {format.loss(loss['last'])}{_not_finite(loss)}", width)


def _not_finite(loss: Mapping[str, Any]) -> str:
    return f" (not finite in {loss['not_finite']:,} of {loss['steps']:,} steps)" if loss["not_finite"] else ""


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


def _pace(part: Mapping[str, Any]) -> list[str]:
    """`500 training steps`, `7.73 ms each (half 6.67 to 8.89: noisy)`, `4,140 samples/s`."""
    wall = part["wall_s"]
    low, high = format.milliseconds(wall["q1"]), format.milliseconds(wall["q3"])
    ranks = f" of {part['ranks']} ranks" if part["ranks"] > 1 else ""
    pace = [format.plural(part["steps"], step_of(part["noun"])) + ranks]
    if not wall["mean"]:  # lines of a log that say no time
        return [*pace, "how long they took is not known"]
    pace.append(f"{format.milliseconds(wall['median'])} ms each (half {low} to {high}: {wall['noise']})")
    if unlike_mean(wall):
        pace.append(f"{format.milliseconds(wall['mean'])} ms on average")
    return pace + ([f"{part['samples_per_s']:,.0f} samples/s"] if part["samples_per_s"] else [])


def unlike_mean(wall: Mapping[str, Any]) -> bool:
    """Whether the mean step, which samples a second come from, is far from the median one."""
    return bool(wall["median"]) and not 1 / _FAR_APART <= wall["mean"] / wall["median"] <= _FAR_APART


def _shares(part: Mapping[str, Any]) -> str:
    """`backward 41.7 %, forward 34.6 %, …; explained 100.0 %`."""
    rows = [one for one in part["accounts"] if not one["traced"] and (one["share"] or 0.0) >= 0.005]
    rows.sort(key=lambda one: -one["share"])
    shares = ", ".join(f"{one['account']} {format.percent(one['share'])}" for one in rows)
    return f"{shares}; explained {format.percent(part['explained_share'])}"


def _beside(part: Mapping[str, Any], *, explain: bool) -> Iterator[str]:
    """What stands beside the closed books: the steps left out, and idle time, which only a trace can tell."""
    if explain:
        warm_up = "first step left out as warm-up; " if part["skipped"] else ""
        yield f"{warm_up}the means add up to the wall time"
    for one in part["accounts"]:
        if one["traced"] and one["seconds"]:
            steps = format.plural(one["seconds"]["count"], "kernel-traced step")
            median = format.milliseconds(one["seconds"]["median"])
            yield f"{steps}: {median} ms {one['account']}, {format.percent(one['share'])} of that time"


def _legend(part: Mapping[str, Any], *, starred: bool) -> Iterator[str]:
    if starred:
        yield "* allocated: the optimizer's time, split by parameter bytes"
    if part["layers_traced"]:
        yield "every step was kernel-traced: the times include the tracer's cost"
    if part["named_share"] is not None and part["named_share"] < 0.9995:
        yield f"{format.percent(part['named_share'])} of the compute is charged to a named layer"


def _memory(part: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """The most that was allocated while a layer ran, known from kernel-traced steps alone."""
    known = [one for one in part["layers"] if one["memory_bytes"]]
    if known:
        top = max(known, key=lambda one: one["memory_bytes"])
        device = run["environment"].get("device") or {}
        size = device.get("memory_bytes") if device.get("type") == "cuda" else None
        whole = f" of {format.memory(size)}" if size else ""
        peak = format.memory(top["memory_bytes"])
        yield f"most memory allocated: {peak}{whole}, while {format.called(top['layer'], run['unit'])} ran"
