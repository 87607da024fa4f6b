"""A run in a notebook: its numbers and its accounts, small, without scripts."""

from __future__ import annotations

from laptime.render.html.render import environment
from laptime.render.html.run_page import about, tiles
from laptime.runs import Run
from laptime.views.findings import look_first
from laptime.views.run_tables import accounts_table
from laptime.views.run_view import run_view


def notebook(run: Run) -> str:
    """An HTML fragment that styles itself and runs nothing: a notebook may be opened by someone else."""
    view = run_view(run)
    return (
        environment()
        .get_template("notebook.html")
        .render(
            run=run,
            about=about(view),
            warnings=view.health.told,
            tiles=list(tiles(view)),
            table=accounts_table(view.main) if view.main is not None and view.main.accounted else None,
            first=look_first(view),
        )
    )
