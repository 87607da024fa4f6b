"""A run in the terminal. Made from its `RunView` alone; every name is text, never markup."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any, NoReturn

from rich.console import Console
from rich.text import Text

from laptime.files.text import one_line, visible
from laptime.render.terminal.fit import GAP, facts, paragraph
from laptime.render.terminal.table import left_out, table_lines
from laptime.views import format
from laptime.views.findings import look_first
from laptime.views.layer_order import BY_TIME, largest, like
from laptime.views.layers_by_device import DeviceSeconds
from laptime.views.palette import of, painted
from laptime.views.recording_overhead import recorder
from laptime.views.run_tables import accounts_table, devices_table, layers_table, marked_steps
from laptime.views.run_view import RunView, StageView, unlike_mean
from laptime.views.sparkline import LossCourse, blocks, shorter, step_blocks

TOP_LAYERS = 15
_INDENT = 2
_WIDEST = 140  # nothing here needs more, and longer lines are hard to follow
_NARROWEST_LINE = 16  # of blocks over time, before its words move to a line of their own
_FEWEST = 4  # steps that make a line over time


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


def show(view: RunView, to: Console, *, every_layer: bool = False, sort: str = BY_TIME) -> None:
    """Print all there is to say about a run, its layers in one of the ORDERS."""
    most = None if every_layer else TOP_LAYERS
    print_lines(_lines(view, min(to.width, _WIDEST), most, sort), to)


def print_lines(lines: Iterable[Text], to: Console) -> None:
    """Lines that are no wider than they should be already; in plain characters where there are no others."""
    for line in lines:
        if to.options.ascii_only:
            line.plain = format.in_ascii(line.plain)
            line.rstrip()
        to.print(line, no_wrap=True, overflow="ignore", crop=False)


def brief(view: RunView) -> Iterator[str]:
    """A run in a few lines, for the end of someone else's output."""
    yield from map(one_line, view.health.told)
    for part in view.stages.values():
        yield ", ".join(_pace(part))
        yield _shares(part)
    yield from look_first(view)
    yield from (f"note: {one_line(note)}" for note in view.notes)


def _lines(view: RunView, width: int, most: int | None, sort: str) -> Iterator[Text]:
    yield Text(one_line(view.path), style="bold")
    yield from map(painted, facts(_about(view), width, style="dim"))
    for sentence in view.health.told:
        yield from paragraph(one_line(sentence), width, style="bold red")
    for part in view.stages.values():
        yield from (Text(), Text(f"Where a {step_of(part.noun)} goes", style="bold"))
        yield from map(_indented, _stage(part, view, width - _INDENT, most, sort))
    for title, sentences in (
        ("What to look at first", look_first(view)),
        ("The recorder itself", recorder(view)),
        ("Notes", map(one_line, view.notes)),
    ):
        lines = [line for text in sentences for line in paragraph(text, width - _INDENT, bullet="- ")]
        if title == "What to look at first":
            lines = [*map(painted, lines)]
        yield from ([Text(), Text(title, style="bold"), *map(_indented, lines)] if lines else [])


def _indented(line: Text) -> Text:
    return Text(" " * _INDENT).append_text(line) if line else line


def _about(view: RunView) -> list[str]:
    about = [f"{view.status}, {view.created:%Y-%m-%d %H:%M} UTC", view.device.get("name") or "unknown device"]
    if view.device.get("type") == "cpu" and view.environment.get("threads"):
        about.append(format.plural(view.environment["threads"], "thread"))
    if view.environment.get("torch"):
        about.append(f"torch {view.environment['torch']}")
    if view.source is None:
        about += [format.plural(view.layers, "layer"), format.plural(view.parameters, "parameter")]
    elif view.layers:  # of a network that is not here, nobody knows the parameters
        about.append(format.plural(view.layers, view.unit))
    return list(map(one_line, about))


def step_of(noun: str) -> str:
    """`training step`, or just `step` where there is no noun."""
    return f"{noun} step".strip()


def _stage(part: StageView, view: RunView, width: int, most: int | None, sort: str) -> Iterator[Text]:
    """The course of a stage's steps, their accounts, then the layers by phase."""
    yield from map(painted, facts(_pace(part), width))
    yield from _course(part, width)
    if part.accounted:
        yield Text()
        yield from table_lines(replace(accounts_table(part), title="", notes=()), width)
        for line in _beside(part, explain=part is view.main):
            yield from paragraph(line, width, style="dim")
    if part.timed_layers:
        yield Text()
        yield from _layers(part, view, width, most, sort)


def _layers(part: StageView, view: RunView, width: int, most: int | None, sort: str) -> Iterator[Text]:
    """The layers by phase; with several devices, the same ones by device."""
    table = layers_table(part, view.unit, sort=sort, most=most)
    yield from paragraph(table.title, width, style="bold")
    yield from table_lines(replace(table, title=""), width)
    for line in (marked_steps(part, view.unit), *_legend(part), *_memory(part, view)):
        yield from paragraph(line, width, style="dim")
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
    if len(times) >= _FEWEST and part.wall_s.mean:
        first, last, most = map(format.milliseconds, (times[0], times[-1], max(part.course.largest_s)))
        told = f"from {first} to {last} ms, at most {most} ms"
        yield from _over_time("step time", lambda cells: step_blocks(times, cells), len(times), told, width)
    if loss and len(loss.bins) >= _FEWEST:
        told = f"from {format.loss(loss.first)} to {format.loss(loss.last)}{_not_finite(loss)}"
        bins = loss.bins
        yield from _over_time("loss", lambda cells: blocks(shorter(bins, cells)), len(bins), told, width)
    elif loss:
        yield from paragraph(f"loss {format.loss(loss.last)}{_not_finite(loss)}", width)


def _not_finite(loss: LossCourse) -> str:
    return f" (not finite in {loss.not_finite:,} of {loss.steps:,} steps)" if loss.not_finite else ""


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
    """`500 training steps`, `7.73 ms each (half 6.67 to 8.89: noisy)`, `4,140 samples/s`."""
    wall = part.wall_s
    ranks = f" of {part.ranks} ranks" if part.ranks > 1 else ""
    pace = [format.plural(part.steps, step_of(part.noun)) + ranks]
    if not wall.count or not wall.mean:  # lines of a log that say no time
        return [*pace, "how long they took is not known"]
    median, low, high = map(format.milliseconds, (wall.median, wall.q1, wall.q3))
    pace.append(f"{median} ms each (half {low} to {high}: {wall.noise})")
    if unlike_mean(wall):
        pace.append(f"{format.milliseconds(wall.mean)} ms on average")
    return pace + ([f"{format.rate(part.samples_per_s)} samples/s"] if part.samples_per_s else [])


def _shares(part: StageView) -> str:
    """`backward 41.7 %, forward 34.6 %, …; explained 100.0 %`."""
    rows = [account for account in part.accounts.values() if not account.traced and account.share >= 0.005]
    rows.sort(key=lambda account: -account.share)
    shares = ", ".join(f"{account.account} {format.percent(account.share)}" for account in rows)
    return f"{shares}; explained {format.percent(part.explained_share)}"


def _beside(part: StageView, *, explain: bool) -> Iterator[str]:
    """What stands beside the accounts: the steps left out, and idle time, which only a trace can tell."""
    explained = f"explained {format.percent(part.explained_share)}"
    if explain:
        warm_up = "first step left out as warm-up; " if part.accounts.skipped else ""
        yield f"{explained}; {warm_up}the means add up to the wall time"
    else:
        yield explained
    for account in part.accounts.values():
        if account.traced and account.seconds.count:
            steps = format.plural(account.seconds.count, "kernel-traced step")
            median = format.milliseconds(account.seconds.median)
            yield f"{steps}: {median} ms {account.account}, {format.percent(account.share)} of that time"


def _legend(part: StageView) -> Iterator[str]:
    if part.layers.traced:
        yield "every step was kernel-traced: the times include the tracer's cost"
    if part.layers.named_share < 0.9995:
        yield f"{format.percent(part.layers.named_share)} of the compute is charged to a named layer"


def _memory(part: StageView, view: RunView) -> Iterator[str]:
    """The most that was allocated while a layer ran, known from kernel-traced steps alone."""
    known = {layer.layer: layer.memory_bytes for layer in part.layers if layer.memory_bytes}
    if known:
        top = max(known, key=lambda name: known[name])
        size = view.device.get("memory_bytes") if view.device.get("type") == "cuda" else None
        whole = f" of {format.memory(size)}" if size else ""
        ran = f"while {format.called(top, view.unit)} ran"
        yield f"most memory allocated: {format.memory(known[top])}{whole}, {ran}"
