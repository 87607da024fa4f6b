"""`laptime collect`: a run from profiler traces, TensorFlow timelines or a training log saved earlier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from laptime.cli.options import EveryLayer, Out
from laptime.cli.outcome import Outcome, say, verb, waiting

if TYPE_CHECKING:
    from rich.text import Text

_PATH_HELP = "A Chrome trace (.json, .json.gz), a folder of them, a training log or a CSV file."
_PATTERN_HELP = "For a log's lines; groups: step, epoch, loss, top1, topn, seconds, ms, samples, stage."


@verb
def collect(
    path: Annotated[Path, Argument(metavar="PATH", help=_PATH_HELP)],
    out: Out = None,
    pattern: Annotated[str | None, Option(metavar="REGEX", help=_PATTERN_HELP)] = None,
    every_layer: EveryLayer = False,
) -> Outcome:
    """Make a run of what another program saved, for show, export and compare."""
    with waiting("reading"):
        from laptime.render.terminal.run_text import run_lines
        from laptime.runs.directory import default_out
        from laptime.runs.importers import collect as collected
        from laptime.views.run_document import document
        from laptime.views.run_view import run_view

        run = collected(path, out or default_out(path.name.split(".")[0] or "collected"), pattern=pattern)
        view = run_view(run)

    def lines(width: int) -> Iterator[Text]:
        yield from run_lines(view, width, every_layer=every_layer)
        say(f"written to {run.path}")

    return Outcome(document=lambda: {"run": str(run.path), "content": document(view)}, lines=lines)
