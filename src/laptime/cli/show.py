"""`laptime show`: the tables of recorded runs, the runs of a folder in one table, saved predictions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from laptime.cli.options import EveryLayer, Runs
from laptime.cli.outcome import Outcome, say, verb, waiting
from laptime.errors import LaptimeError
from laptime.files.text import one_line

if TYPE_CHECKING:
    from rich.text import Text


# The orders of `views.layer_order`, which is not imported before it is needed.
Sort = Literal["time", "network", "forward", "backward", "update", "name"]
_SORT_HELP = "The order of layers; by default by time, in JSON as in the network."


@verb
def show(
    runs: Runs,
    every_layer: EveryLayer = False,
    sort: Annotated[Sort | None, Option(help=_SORT_HELP)] = None,
    colour: Annotated[
        bool | None, Option("--color/--no-color", help="Colours; by default on a terminal.")
    ] = None,
) -> Outcome:
    """Show where the time of recorded runs went: the books of a step, and its layers by phase.

    A folder of runs is shown as one table, a line for each; a file of `laptime predict --json` as it was
    predicted.
    """
    with waiting("reading"):
        items = [_read(path, every_layer, sort) for path in runs]

    def document() -> dict[str, Any]:
        answer: dict[str, Any] = {"runs": []}
        for kind, item in items:
            answer.setdefault(kind, []).append(item.document())
        return answer

    def lines(width: int) -> Iterator[Text | str]:
        from rich.text import Text

        for place, (_, item) in enumerate(items):
            if place:
                yield from (Text(), Text("─" * width), Text())
            yield from item.lines(width)

    return Outcome(document=document, lines=lines, colour=colour)


def _read(path: Path, every_layer: bool, sort: Sort | None) -> tuple[str, Outcome]:
    """A run, the runs of a folder or a saved prediction: its key in the document, and what is shown."""
    from rich.text import Text

    from laptime.render.terminal.prediction import prediction_lines
    from laptime.render.terminal.run_text import run_lines, trial_lines
    from laptime.runs import find_runs, load
    from laptime.runs.document import RUN_FILE
    from laptime.views.comparison.predicted import is_prediction
    from laptime.views.format import name, plural
    from laptime.views.prediction import read_view
    from laptime.views.run_document import document
    from laptime.views.run_tables import BY_TIME, ordered
    from laptime.views.run_view import run_view

    if is_prediction(path):
        saved = read_view([path])
        return "saved", Outcome(
            document=lambda: {"prediction": str(path), "predictions": saved.predictions},
            lines=lambda width: prediction_lines(saved, width, every_layer=every_layer),
        )
    below = find_runs(path) if path.is_dir() and not (path / RUN_FILE).exists() else []
    if not below:
        view = run_view(load(path))
        return "runs", Outcome(
            document=lambda: document(view if sort is None else ordered(view, sort)),
            lines=lambda width: run_lines(view, width, every_layer=every_layer, sort=sort or BY_TIME),
        )
    rows = [_row(run_path, str(run_path.relative_to(path))) for run_path in below]
    title = Text(f"{name(str(path))}: {plural(len(rows), 'run')}", style="bold")
    return "groups", Outcome(
        document=lambda: {"group": str(path), "runs": rows},
        lines=lambda width: (title, *trial_lines(rows, width, title="run")),
    )


def _row(path: Path, name: str) -> dict[str, Any]:
    from laptime.runs import load
    from laptime.views.run_document import trial_row

    try:
        run = load(path)
        return trial_row(name, "simulated" if run.simulated else run.status, run)
    except LaptimeError as error:  # the others are shown all the same
        say(f"laptime: {one_line(error)}")
        return trial_row(name, "damaged", None)
