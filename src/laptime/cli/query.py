"""`laptime query`: SQL over many runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from laptime.cli.outcome import Outcome, say, verb, waiting
from laptime.files.text import one_line

if TYPE_CHECKING:
    from rich.text import Text

_WIDEST_CELL = 40
_SQL_HELP = (
    "SQL over the views runs, steps, layers and kernels; each has a column `run`, the id in the view runs."
)
_UNSAFE_HELP = "Let the SQL read and write any file and load extensions, without limits."


@verb
def query(
    sql: Annotated[str, Argument(metavar="SQL", help=_SQL_HELP)],
    runs: Annotated[Path, Option(help="The folder that is searched for runs.")] = Path("runs"),
    rows: Annotated[int, Option(min=1, help="Print at most so many rows.")] = 100,
    unsafe: Annotated[bool, Option("--unsafe", help=_UNSAFE_HELP)] = False,
) -> Outcome:
    """Ask many runs at once, in SQL. It only reads the runs, within limits of memory and time.

    For example: laptime query "SELECT layer, median(seconds) FROM layers GROUP BY layer"
    """
    if not sql.strip(" \t\r\n;"):
        say('laptime: the query is empty; give SQL such as "SELECT * FROM runs"')
        raise typer.Exit(2)
    with waiting("asking"):
        from laptime.runs.query import query as ask

        result = ask(sql, runs, unsafe=unsafe)
    for warning in result.warnings:
        say(f"laptime: {one_line(warning)}")
    taken: Counter[str] = Counter()
    names = []
    for name in result.table.column_names:  # can be keys: a second `layer` becomes `layer_2`
        taken[name] += 1
        names.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    table = result.table.rename_columns(names)

    def document() -> dict[str, Any]:
        listed = [{name: _number(value) for name, value in row.items()} for row in table.to_pylist()]
        return {"columns": names, "rows": listed, "warnings": result.warnings}

    return Outcome(document=document, lines=lambda width: _lines(table, rows, width))


def _lines(table: Any, most: int, width: int) -> Iterator[Text]:
    from laptime.render.terminal.table import left_out, table_lines
    from laptime.views.format import plural
    from laptime.views.table import Column, table_of

    columns = []
    for place, name in enumerate(table.column_names):
        values = [_number(value) for value in table.column(name).slice(0, most).to_pylist()]
        numeric = all(isinstance(value, int | float) for value in values if value is not None)
        column = Column(title=_cell(name), priority=place, words=not numeric, optional=True)
        columns.append((column, [_cell(value) for value in values]))
    if columns:
        shown = table_of("rows", columns)
        yield from table_lines(shown, width)
        if gone := left_out(shown, width):
            say(f"… and {plural(len(gone), 'more column')}: name those you want, or use --json")
    if table.num_rows > most:
        say(f"… and {plural(table.num_rows - most, 'more row')}: --rows shows more, --json all of them")


def _number(value: Any) -> Any:
    """DuckDB's wide integers and decimals as numbers; the rest as it is."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _cell(value: Any) -> str:
    from laptime.render.terminal import shortened
    from laptime.views.format import UNKNOWN, name

    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    return shortened(name(str(value)), _WIDEST_CELL)
