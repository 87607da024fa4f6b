"""A run in a notebook: its numbers and its books, small, without scripts."""

from __future__ import annotations

from laptime.render.html.render import environment
from laptime.render.html.run_page import about, main_part, tiles
from laptime.render.html.run_tables import accounts_table
from laptime.runs import Run
from laptime.views.run_view import content


def notebook(run: Run) -> str:
    """An HTML fragment that styles itself and runs nothing: a notebook may be opened by someone else."""
    found = content(run)
    part = main_part(found)
    stage = "train" if found["train"] else "validation"
    return (
        environment()
        .get_template("notebook.html")
        .render(
            run=run,
            about=about(found),
            warnings=found["health"]["told"],
            tiles=list(tiles(found)),
            table=accounts_table(part, stage) if part is not None and part["accounted"] else None,
            first=found["look_first"],
        )
    )
