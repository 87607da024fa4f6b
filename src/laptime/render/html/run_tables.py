"""The tables of a run's page: books, layers, and the facts of its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laptime.files.text import one_line
from laptime.render.html.page import Cell, Table
from laptime.render.terminal.run_tables import label
from laptime.runs import Run
from laptime.runs.flat_config import as_text, settings
from laptime.views import format
from laptime.views.run_view import NOUNS

_MOST_ROWS = 400


def accounts_table(part: Mapping[str, Any], stage: str) -> Table:
    """Every account with its median, its mean and its share; the last row is the wall time."""
    decimals = format.digits(part["wall_s"]["median"])
    rows: list[list[str | Cell]] = []
    for one in part["accounts"]:
        if one["traced"] or not one["seconds"] or not (one["total_s"] or one["account"] == "unexplained"):
            continue
        times = [format.milliseconds(one["seconds"][key], decimals) for key in ("median", "mean")]
        share = Cell(text=format.percent(one["share"]), share=one["share"], word=one["account"])
        rows.append([one["account"], *times, share])
    times = [format.milliseconds(part["wall_s"][key], decimals) for key in ("median", "mean")]
    rows.append(["wall time", *times, Cell(text=f"{format.percent(part['explained_share'])} explained")])
    return Table(
        name=f"{stage}-books",
        title=f"A {NOUNS[stage]} step",
        head=("account", "median ms", "mean ms", "share"),
        rows=rows,
        total=True,
    )


def layers_table(part: Mapping[str, Any], unit: str) -> Table:
    """Every layer, the largest first."""
    shown = sorted((one for one in part["layers"] if one["total_s"]), key=lambda one: -one["total_s"])
    decimals = format.digits(shown[0]["total_s"])
    phases = [phase for phase in ("forward", "backward", "update") if any(one[phase] for one in shown)]
    extra: dict[str, tuple[str, Callable[[Any], str]]] = {
        "busy_s": ("busy", lambda value: format.milliseconds(value, decimals)),
        "idle_s": ("idle", lambda value: format.milliseconds(value, decimals)),
        "memory_bytes": ("peak MiB", format.mebibytes),
        "parameters": ("parameters", "{:,}".format),
    }
    known = {key: how for key, how in extra.items() if any(one[key] is not None for one in shown)}
    rows: list[list[str | Cell]] = []
    for one in shown[:_MOST_ROWS]:
        times = [format.milliseconds(one[phase] and one[phase]["median"], decimals) for phase in phases]
        share = Cell(text=format.percent(one["share"]), share=one["share"])
        more = [format.UNKNOWN if one[key] is None else write(one[key]) for key, (_, write) in known.items()]
        total = format.milliseconds(one["total_s"], decimals)
        rows.append([label(one), one_line(one["kind"]), *times, total, share, *more])
    head = [unit, "kind", *phases, "total", "share", *(title for title, _ in known.values())]
    most = f" (the {_MOST_ROWS} largest)" if len(shown) > _MOST_ROWS else ""
    return Table(
        name="layers", title=f"The {unit}s in numbers, ms{most}", head=head, rows=rows, words=2, folded=True
    )


def facts_tables(found: Mapping[str, Any], run: Run) -> list[Table]:
    """Configuration, environment and files, a line for each value."""
    tables = []
    for name, title, values in (
        ("config", "Configuration", run.config),
        ("machine", "Environment", run.environment),
        ("outputs", "Files of the run", run.outputs),
    ):
        rows = [(one_line(name), one_line(as_text(value))) for name, value in settings(values)]
        if rows:
            tables.append(Table(name=name, title=title, head=("key", "value"), rows=rows, words=2))
    return tables
