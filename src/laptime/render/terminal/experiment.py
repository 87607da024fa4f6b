"""The trials of an experiment in one table: how each ended, its step time, and what it learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from laptime.model import Stage
from laptime.render.terminal.table import table_lines
from laptime.runs import Run
from laptime.views import format
from laptime.views.run_view import METRICS, run_view
from laptime.views.table import Cell, Column, table_of


def results(trials: Sequence[tuple[str, str, Run | None]]) -> list[dict[str, Any]]:
    """A row per trial, from its name, its status and its run, if it has one."""
    return [_row(name, status, run) for name, status, run in trials]


def _row(name: str, status: str, run: Run | None) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": name, "status": status, "path": str(run.path) if run else None}
    view = run_view(run) if run is not None else None
    row["lost_rows"] = view.health.lost_rows if view else {}
    for stage in Stage:
        part = view.stages.get(stage) if view else None
        learned = part.results.values if part and part.results else {}
        row[stage.value] = {
            "steps": part.steps if part else None,
            "step_s": part.wall_s.median if part else None,
            "samples_per_s": part.samples_per_s if part else None,
            **{key: learned.get(key) for key in METRICS},
            "not_finite": [key for key, value in learned.items() if value is None],
        }
    return row


def table(rows: Sequence[dict[str, Any]], width: int = 100, *, title: str = "trial") -> Text:
    """The rows for a terminal; `title` is what a row is."""

    def cells(stage: str, key: str, write: Any) -> list[str]:
        values = [row[stage][key] for row in rows]
        gone = ["not finite" if key in row[stage]["not_finite"] else format.UNKNOWN for row in rows]
        return [other if value is None else write(value) for value, other in zip(values, gone, strict=True)]

    statuses = [f"{row['status']}, incomplete" if row["lost_rows"] else row["status"] for row in rows]
    columns: list[tuple[Column, Sequence[str | Cell]]] = [
        (Column(title=title, words=True), [format.name(row["trial"]) for row in rows]),
        (Column(title="status", words=True), [Cell(text=status, word=status) for status in statuses]),
        (Column(title="steps", priority=4, optional=True), cells("train", "steps", "{:,}".format)),
        (Column(title="step ms"), cells("train", "step_s", format.milliseconds)),
        (
            Column(title="samples/s", priority=3, optional=True),
            cells("train", "samples_per_s", format.rate),
        ),
        (Column(title="loss", priority=1, optional=True), cells("train", "loss", "{:.4g}".format)),
        (Column(title="val. loss", priority=2, optional=True), cells("validation", "loss", "{:.4g}".format)),
        (Column(title="val. top-1", priority=2, optional=True), cells("validation", "top1", format.percent)),
    ]
    return Text("\n").join(table_lines(table_of("trials", columns), width))
