"""`laptime collect`: a run from profiler traces, TensorFlow timelines or a training log saved earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laptime.cli.options import EveryLayer, Out
from laptime.cli.outcome import Outcome, say, show_run, verb
from laptime.cli.progress import waiting

_PATH_HELP = "A Chrome trace (.json, .json.gz), a folder of them, a training log or a CSV file."
_PATTERN_HELP = "For a log's lines; groups: step, epoch, loss, top1, topn, seconds, ms, samples, stage."


@verb
def collect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help=_PATH_HELP)],
    out: Out = None,
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help=_PATTERN_HELP)] = None,
    every_layer: EveryLayer = False,
) -> Outcome:
    """Make a run of what another program saved, for show, export and compare."""
    with waiting("reading"):
        from laptime.runs.importers import collect as collected
        from laptime.runs.locations import default_out
        from laptime.views.run_document import document
        from laptime.views.run_view import run_view

        run = collected(path, out or default_out(path.name.split(".")[0] or "collected"), pattern=pattern)
        view = run_view(run)

    def show() -> None:
        show_run(view, every_layer=every_layer)
        say(f"written to {run.path}")

    return Outcome(document={"run": str(run.path), "content": document(view)}, show=show)
