"""`laptime show`: the tables of recorded runs, the runs of a folder in one table, saved predictions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import EveryLayer, Json, Runs
from laptime.cli.outcome import answer, say
from laptime.cli.progress import waiting
from laptime.errors import LaptimeError

if TYPE_CHECKING:
    from rich.console import Console

    from laptime.views.run_view import RunView


class Sort(StrEnum):
    """The orders of `views.layer_order`, which is not imported before it is needed."""

    TIME = "time"
    NETWORK = "network"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    NAME = "name"


LayerOrder = Annotated[
    Sort | None,
    typer.Option("--sort", help="The order of layers; by default by time, in JSON as in the network."),
]
Colour = Annotated[
    bool | None,
    typer.Option("--color/--no-color", help="Colours; by default on a terminal.", show_default=False),
]


def show(
    runs: Runs,
    every_layer: EveryLayer = False,
    sort: LayerOrder = None,
    colour: Colour = None,
    as_json: Json = False,
) -> None:
    """Show where the time of recorded runs went: the books of a step, and its layers by phase.

    A folder of runs is shown as one table, a line for each; a file of `laptime predict --json` as it was
    predicted.
    """
    with waiting("reading"):
        items = [_read(path) for path in runs]
    if as_json:
        groups = [item for item in items if isinstance(item, dict) and "group" in item]
        saved = [item for item in items if isinstance(item, dict) and "prediction" in item]
        singles = [_document(item, sort) for item in items if not isinstance(item, dict)]
        answer(
            {"runs": singles} | ({"groups": groups} if groups else {}) | ({"saved": saved} if saved else {})
        )
        return
    from rich.text import Text

    from laptime.render.terminal import run_text

    to = run_text.console(colour=colour)
    for place, item in enumerate(items):
        if place:
            run_text.print_lines((Text(), Text("─" * to.width), Text()), to)
        if not isinstance(item, dict):
            run_text.show(item, to, every_layer=every_layer, sort=sort or Sort.TIME)
        elif "group" in item:
            _print_group(item, to)
        else:
            _print_prediction(item, to, every_layer=every_layer)


def _read(path: Path) -> RunView | dict[str, Any]:
    """A run; of a folder of runs, a row for each; of a saved prediction, what was predicted."""
    from laptime.render.terminal.experiment import results
    from laptime.runs import find_runs, load
    from laptime.runs.run import RUN_FILE
    from laptime.views.comparison.predicted import is_prediction
    from laptime.views.prediction.view import read_view
    from laptime.views.run_view import run_view

    if is_prediction(path):
        return {"prediction": str(path), "predictions": read_view([path]).predictions}
    below = find_runs(path) if path.is_dir() and not (path / RUN_FILE).exists() else []
    if not below:
        return run_view(load(path))
    rows: list[dict[str, Any]] = []
    for run_path in below:
        name = str(run_path.relative_to(path))
        try:
            run = load(run_path)
            rows += results([(name, run.status, run)])
        except LaptimeError as error:  # the others are shown all the same
            say(f"laptime: {error}")
            rows += results([(name, "damaged", None)])
    return {"group": str(path), "runs": rows}


def _document(view: RunView, sort: Sort | None) -> dict[str, Any]:
    from laptime.views.layer_order import ordered
    from laptime.views.run_document import document

    return document(view if sort is None else ordered(view, sort))


def _print_prediction(saved: dict[str, Any], to: Console, *, every_layer: bool) -> None:
    from laptime.render.terminal import run_text
    from laptime.render.terminal.prediction import lines
    from laptime.views.prediction.view import PredictionView

    made = lines(PredictionView(predictions=saved["predictions"]), to.width, every_layer=every_layer)
    run_text.print_lines(made, to)


def _print_group(group: dict[str, Any], to: Console) -> None:
    from rich.text import Text

    from laptime.render.terminal import run_text
    from laptime.render.terminal.experiment import table
    from laptime.views.format import name, plural

    title = Text(f"{name(group['group'])}: {plural(len(group['runs']), 'run')}", style="bold")
    run_text.print_lines((title, table(group["runs"], to.width, title="run")), to)
