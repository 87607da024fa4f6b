"""`laptime report`: a run, several of them or a prediction as one HTML file to look at or to send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from laptime.cli.options import wrong
from laptime.cli.outcome import Outcome, verb, waiting
from laptime.errors import NotARun

if TYPE_CHECKING:
    from laptime.runs import Run

_RUNS_HELP = "Runs or folders of runs; saved predictions; or a run and a prediction of it."
_OUT_HELP = "The file; by default report.html: of one run in its directory, else in this folder."


@verb
def report(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help=_RUNS_HELP)],
    out: Annotated[Path | None, Option(metavar="FILE", help=_OUT_HELP)] = None,
) -> Outcome:
    """Write everything there is to see of a run as one HTML file that needs nothing but a browser.

    Several runs, or a folder of them, become a comparison with intervals: the first is the baseline. A file
    of `laptime predict --json` becomes a page of its own; beside a run, it is compared layer by layer.
    """
    from laptime.views.comparison.predicted import is_prediction

    saved = list(dict.fromkeys(path for path in runs if is_prediction(path)))
    others = [path for path in runs if path not in saved]
    with waiting("drawing"):
        written = _write(saved, others, out)
    return Outcome(
        document=lambda: {"report": str(written), "bytes": written.stat().st_size},
        lines=lambda _: [str(written)],
    )


def _write(saved: Sequence[Path], others: Sequence[Path], out: Path | None) -> Path:
    from laptime.render.html.comparison_page import comparison_page, predicted_comparison_page
    from laptime.render.html.page import write_page
    from laptime.render.html.prediction_page import prediction_page
    from laptime.render.html.run_page import write_report
    from laptime.views.comparison.predicted import against
    from laptime.views.prediction import read_view

    if not others:
        return write_page(prediction_page(read_view(saved)), out)
    given = load_runs(others)
    runs = [run for each in given for run in each]
    if saved:
        if len(saved) != 1 or len(runs) != 1:
            wrong("RUN...", "a prediction stands beside one run; give one of each, or predictions alone")
        return write_page(predicted_comparison_page(against(runs[0], saved[0])), out)
    return write_page(comparison_page(given), out) if len(runs) > 1 else write_report(runs[0], out)


def load_runs(paths: Sequence[Path]) -> list[list[Run]]:
    """The runs at or below each path, in the order given; a run that two paths lead to is of the first."""
    from laptime.files.text import one_line
    from laptime.runs import find_runs, load

    seen: set[Path] = set()
    given = []
    for path in paths:
        below = find_runs(path) if path.is_dir() else [path]
        if not below:
            raise NotARun(f"{one_line(path)} holds no run; give the directory of a run or of several")
        fresh = {place.resolve(): place for place in below if place.resolve() not in seen}
        seen |= fresh.keys()
        given.append([load(place) for place in fresh.values()])
    return given
