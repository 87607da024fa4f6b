"""`laptime report`: a run, several of them or a prediction as one HTML file to look at or to send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laptime.cli.options import Json, wrong
from laptime.cli.outcome import answer, print_out
from laptime.cli.progress import waiting
from laptime.errors import NotARun

if TYPE_CHECKING:
    from laptime.runs import Run

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Runs or folders of runs; saved predictions; or a run and a prediction of it.",
        show_default=False,
    ),
]


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The file; by default report.html: of one run in its directory, else in this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write everything there is to see of a run as one HTML file that needs nothing but a browser.

    Several runs, or a folder of them, become a comparison with intervals: the first is the baseline. A file
    of `laptime predict --json` becomes a page of its own; beside a run, it is compared layer by layer.
    """
    from laptime.views.predicted_comparison import is_prediction

    saved = list(dict.fromkeys(path for path in runs if is_prediction(path)))
    others = [path for path in runs if path not in saved]
    with waiting("drawing"):
        written = _predicted(saved, others, out) if saved else _recorded(others, out)
    if as_json:
        answer({"report": str(written), "bytes": written.stat().st_size})
        return
    print_out(written)


def _recorded(paths: Sequence[Path], out: Path | None) -> Path:
    from laptime.render.html.write import write_report

    return write_report(loaded(paths), out)


def _predicted(saved: Sequence[Path], others: Sequence[Path], out: Path | None) -> Path:
    from laptime.render.html.prediction_page import beside_page, prediction_page, read_predictions
    from laptime.render.html.write import write_page
    from laptime.views.predicted_comparison import against

    if not others:
        return write_page(prediction_page(read_predictions(saved)), out)
    found = loaded(others)
    if len(saved) != 1 or len(found) != 1:
        wrong("RUN...", "a prediction stands beside one run; give one of each, or predictions alone")
    return write_page(beside_page(against(found[0], saved[0])), out)


def loaded(paths: Sequence[Path]) -> list[Run]:
    """The runs at or below the paths, each once, in the order given."""
    from laptime.files.text import one_line
    from laptime.runs import find_runs, load

    found: dict[Path, Run] = {}
    for path in paths:
        below = find_runs(path) if path.is_dir() else [path]
        if not below:
            raise NotARun(f"{one_line(path)} holds no run; give the directory of a run or of several")
        for one in below:
            if one.resolve() not in found:
                found[one.resolve()] = load(one)
    return list(found.values())
