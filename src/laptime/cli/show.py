"""`laptime show`: the tables of recorded runs, and the runs of a folder in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.cli.options import EveryLayer, Json, Runs
from laptime.cli.outcome import answer
from laptime.cli.progress import waiting

if TYPE_CHECKING:
    from rich.console import Console


def show(
    runs: Runs,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Show where the time of recorded runs went: the books of a step, and its layers by phase.

    A folder of runs is shown as one table, a line for each.
    """
    with waiting("reading"):
        found = [_read(path) for path in runs]
    if as_json:
        groups = {"groups": [one for one in found if "group" in one]}
        singles = [one for one in found if "group" not in one]
        answer({"runs": singles} | (groups if groups["groups"] else {}))
        return
    from laptime.report import terminal

    to = terminal.console()
    for place, one in enumerate(found):
        if place:
            to.print()
            to.rule(characters="-" if to.options.ascii_only else "─")
            to.print()
        if "group" in one:
            _print_group(one, to)
        else:
            terminal.show(one, to, every_layer=every_layer)


def _read(path: Path) -> dict[str, Any]:
    """A run's content; of a folder of runs, a row for each."""
    from laptime.report import content
    from laptime.report.experiment import results
    from laptime.store import find_runs, load
    from laptime.store.run import RUN_FILE

    below = find_runs(path) if path.is_dir() and not (path / RUN_FILE).exists() else []
    if not below:
        return content(load(path))
    found = [(str(one.relative_to(path)), load(one)) for one in below]
    return {"group": str(path), "runs": results([(name, run.status, run) for name, run in found])}


def _print_group(group: dict[str, Any], to: Console) -> None:
    from rich.text import Text

    from laptime.report.experiment import table
    from laptime.report.words import name, plural

    to.print(Text(f"{name(group['group'])}: {plural(len(group['runs']), 'run')}", style="bold"))
    to.print(table(group["runs"], to.width, title="run"), no_wrap=True, overflow="ignore", crop=False)
