"""`laptime collect`: a run from profiler traces, TensorFlow timelines or a training log saved earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laptime.cli.options import EveryLayer, Json, Out
from laptime.cli.outcome import answer, say
from laptime.cli.progress import waiting


def collect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A Chrome trace (.json, .json.gz), a folder of them, a training log or a CSV file.",
            show_default=False,
        ),
    ],
    out: Out = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="REGEX",
            help="For a log's lines; groups: step, epoch, loss, top1, topn, seconds, ms, samples, stage.",
            show_default=False,
        ),
    ] = None,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Make a run of what another program saved, for show, export and compare."""
    with waiting("reading"):
        from laptime.runs.importers import collect as collected
        from laptime.runs.locations import default_out
        from laptime.views.run_view import run_view

        run = collected(path, out or default_out(path.name.split(".")[0] or "collected"), pattern=pattern)
        view = run_view(run)
    if as_json:
        from laptime.views.run_document import document

        answer({"run": str(run.path), "content": document(view)})
        return
    from laptime.render.terminal import run_text

    run_text.show(view, run_text.console(), every_layer=every_layer)
    say(f"written to {run.path}")
