"""A report as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laptime.errors import RunError
from laptime.files.text import first_line, one_line
from laptime.files.write import replacing
from laptime.render.html.comparison_page import comparison_page
from laptime.render.html.page import Page
from laptime.render.html.render import standalone
from laptime.render.html.run_page import run_page
from laptime.runs import Run

REPORT_FILE = "report.html"


def write_report(runs: Sequence[Run], out: Path | str | None = None) -> Path:
    """Write one run, or several side by side, as a page that needs nothing but a browser; return its path.

    By default `report.html`, in the run or, of several, in this folder.
    """
    if len(runs) > 1:
        return write_page(comparison_page([runs]), out)
    return write_page(run_page(runs[0]), out if out is not None else runs[0].path / REPORT_FILE)


def write_page(page: Page, out: Path | str | None = None) -> Path:
    """Write a page as one file; by default `report.html` in this folder. Return its path."""
    html = standalone(page)
    target = Path(out) if out is not None else Path(REPORT_FILE)
    if target.is_dir():
        target /= REPORT_FILE
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(html.encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(
            f"{one_line(target)} cannot be written ({first_line(error)}); --out gives another place"
        ) from error
    return target
