"""`laptime query`: SQL over many runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from laptime.cli.options import Json
from laptime.cli.outcome import answer, say
from laptime.cli.progress import waiting

_WIDEST_CELL = 40
_HELP = (
    "SQL over the views runs, steps, layers and kernels; each has a column `run`, the id in the view runs."
)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help=_HELP)],
    runs: Annotated[Path, typer.Option("--runs", help="The folder that is searched for runs.")] = Path(
        "runs"
    ),
    rows: Annotated[int, typer.Option("--rows", min=1, help="Print at most so many rows.")] = 100,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe", help="Let the SQL read and write any file and load extensions, without limits."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask many runs at once, in SQL. It only reads the runs, within limits of memory and time.

    For example: laptime query "SELECT layer, median(seconds) FROM layers GROUP BY layer"
    """
    with waiting("asking"):
        from laptime.runs.query import query as ask

        result = ask(sql, runs, unsafe=unsafe)
    for warning in result.warnings:
        say(f"laptime: {warning}")
    names = _distinct(result.table.column_names)
    table = result.table.rename_columns(names)
    if as_json:
        answer(
            {
                "columns": names,
                "rows": [_plain_row(row) for row in table.to_pylist()],
                "warnings": result.warnings,
            }
        )
        return
    from laptime.views.format import plural

    shown = table.slice(0, rows).to_pylist()
    _print(names, shown)
    if table.num_rows > len(shown):
        say(f"… and {plural(table.num_rows - len(shown), 'more row')}: --rows shows more, --json all of them")


def _distinct(names: Sequence[str]) -> list[str]:
    """Column names that can be keys: a second `layer` becomes `layer_2`."""
    taken: dict[str, int] = {}
    distinct = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        distinct.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return distinct


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _number(value) for name, value in row.items()}


def _number(value: Any) -> Any:
    """DuckDB's wide integers and decimals as numbers; the rest as it is."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _print(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    from laptime.render.terminal import run_text
    from laptime.render.terminal.table import left_out, table_lines
    from laptime.views.format import plural
    from laptime.views.table import Column, table_of

    if not names:
        return
    columns = []
    for place, name in enumerate(names):
        values = [_number(row[name]) for row in rows]
        numeric = all(isinstance(value, int | float) for value in values if value is not None)
        column = Column(title=_cell(name), priority=place, words=not numeric, optional=True)
        columns.append((column, [_cell(value) for value in values]))
    to = run_text.console()
    table = table_of("rows", columns)
    run_text.print_lines(table_lines(table, to.width), to)
    if gone := left_out(table, to.width):
        say(f"… and {plural(len(gone), 'more column')}: name those you want, or use --json")


def _cell(value: Any) -> str:
    from laptime.render.terminal.fit import shortened
    from laptime.views.format import UNKNOWN, name

    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    return shortened(name(str(value)), _WIDEST_CELL)
