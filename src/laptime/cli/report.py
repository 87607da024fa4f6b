"""`laptime report`: a run as one HTML file to look at or to send; several runs as a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laptime.cli.options import Json, Runs
from laptime.cli.outcome import answer
from laptime.cli.progress import waiting


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The file; by default report.html in the run, of several runs in this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write everything there is to see of a run as one HTML file that needs nothing but a browser.

    Several runs, or a folder of them, become a comparison with intervals.
    """
    with waiting("drawing"):
        from laptime.report.page.write import write_report
        from laptime.store import load

        written = write_report([load(path) for path in runs], out)
    if as_json:
        answer({"report": str(written), "bytes": written.stat().st_size})
        return
    print(written)
