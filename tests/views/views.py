"""Runs that are all unlike each other, and what a terminal shows of one."""

import io
import math

from tests.runs.samples import a_finished_run, a_layer_time, a_network, a_step, start
from tests.views.samples import a_rich_run

from laptime.model import Phase
from laptime.render import terminal
from laptime.render.terminal import run_text
from laptime.runs import load, schema
from laptime.views.run_view import run_view


def shown(found, width=80, *, colour=None, encoding="utf-8", **how):
    raw = io.BytesIO()
    to = terminal.console(io.TextIOWrapper(raw, encoding=encoding, newline=""), colour=colour)
    to.width = width
    terminal.print_lines(run_text.run_lines(found, to.width, **how), to)
    to.file.flush()
    return raw.getvalue().decode(encoding)


def losing(path):
    """A run whose loss is NaN from the middle on."""
    writer = start(path)
    rows = [a_step(step, loss=1.0 + step if step < 10 else math.nan) for step in range(20)]
    writer.append("steps", schema.steps.table(rows))
    writer.close("failed", {})
    return path


def of_ranks(path, ranks):
    writer = start(path)
    names = ["conv", "classifier.head.projection"]
    writer.network(a_network(names))
    every = [(step, rank) for step in range(6) for rank in range(ranks)]
    writer.append("steps", schema.steps.table([a_step(s, rank=r, device="cuda:0") for s, r in every]))
    rows = [
        a_layer_time(step, name, phase, rank=rank, seconds=0.001 * (rank + 1))
        for step, rank in every
        for name in names
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    return path


def kinds(folder):
    """Runs: without steps, rich, of many layers, of one step, with a lost loss, of ranks."""
    start(folder / "empty").close("interrupted", {})
    paths = [
        folder / "empty",
        a_rich_run(folder / "rich"),
        a_finished_run(folder / "many", [f"blocks.{at}.attention.projection.{at}" for at in range(140)]),
        a_finished_run(folder / "one", ["conv"], steps=1),
        losing(folder / "losing"),
        of_ranks(folder / "ranks", 12),
    ]
    return [run_view(load(path)) for path in paths]
