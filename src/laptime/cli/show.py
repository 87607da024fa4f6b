"""`laptime show`: the tables of recorded runs."""

from __future__ import annotations

from laptime.cli.options import EveryLayer, Json, Runs
from laptime.cli.outcome import answer
from laptime.cli.progress import waiting


def show(
    runs: Runs,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Show where the time of recorded runs went: the books of a step, and its layers by phase."""
    with waiting("reading"):
        from laptime.report import content
        from laptime.store import load

        found = [content(load(run)) for run in runs]
    if as_json:
        answer({"runs": found})
        return
    from laptime.report import terminal

    to = terminal.console()
    for place, one in enumerate(found):
        if place:
            to.print()
            to.rule(characters="-" if to.options.ascii_only else "─")
            to.print()
        terminal.show(one, to, every_layer=every_layer)
