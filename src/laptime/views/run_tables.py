"""The tables of a run: where a step goes, its layers by phase, and its layers by device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from laptime.files.text import one_line
from laptime.model import Account, LayerSeconds, Phase
from laptime.runs import AccountSummary, LayerSummary, Run
from laptime.runs.flat_config import as_text, settings
from laptime.views import format, palette
from laptime.views.layer_order import BY_TIME, ORDERS, largest, possible
from laptime.views.layers_by_device import DeviceSeconds
from laptime.views.run_view import NOUNS, StageView
from laptime.views.table import BarPart, Cell, Column, Table, share_cell, table_of, titled

_ACCOUNT_BAR = 40  # characters of the longest bar
_ALLOCATED = "* allocated: the optimizer's time, split by parameter bytes"
_FAR = 0.02  # from here on the sums of layers and of accounts are said to differ

Cells = Sequence[str | Cell]
Value = TypeVar("Value")


def shown_accounts(part: StageView) -> list[AccountSummary]:
    """Those that took time, in the order of a step: an account stands on the same line in every run."""
    return [
        account
        for account in part.accounts.values()
        if not account.traced
        and account.seconds.count
        and (account.total_s or account.account is Account.UNEXPLAINED)
    ]


def accounts_table(part: StageView) -> Table:
    """Every account with its median, its mean and its share, then the wall time they add up to."""
    rows = shown_accounts(part)
    every = [*(account.seconds for account in rows), part.wall_s]
    decimals = format.digits(part.wall_s.median)
    names: list[str | Cell] = [
        Cell(text=account.account.value, word=account.account.value) for account in rows
    ]
    shares: list[str | Cell] = [
        share_cell(
            format.percent(account.share),
            None if math.isnan(account.share) else account.share,
            account.account.value,
        )
        for account in rows
    ]
    columns: list[tuple[Column, Cells]] = [
        (Column(title="account", words=True), [*names, "wall time"]),
        (Column(title="median ms"), [format.milliseconds(seconds.median, decimals) for seconds in every]),
        (
            Column(title="mean ms", priority=2, optional=True),
            [format.milliseconds(seconds.mean, decimals) for seconds in every],
        ),
        (Column(title="share", longest_bar=_ACCOUNT_BAR), [*shares, "100.0 %"]),
    ]
    return table_of(
        f"{part.stage.value}-books",
        columns,
        title=f"A {NOUNS[part.stage.value]} step",
        bold=[len(rows)],
        notes=[f"explained {format.percent(part.explained_share)}"],
    )


def marked_steps(part: StageView, unit: str) -> str:
    """Which steps the layers' times are means of, and how the accounts of exactly these compare."""
    layers = part.layers
    if not layers.steps:
        return ""
    if part.layers_first:
        return f"{unit} times are of the first step alone, which warms up: no other one had layer marks"
    if layers.traced and not part.accounts[Account.IDLE].traced:
        return ""  # every step was kernel-traced, which the notes say: idle time is in the layers' times
    counted = part.wall_s.count
    marked = min(counted, round(layers.steps / part.ranks))
    if marked < counted:
        compute, whole = (format.milliseconds(seconds) for seconds in (layers.compute_s, part.compute_s))
        told = (
            f"{unit} times are means over {marked:,} of {counted:,} steps, those with layer marks; "
            f"the compute accounts take {compute} ms in these, {whole} ms in all"
        )
    else:
        told = f"{unit} times are means over the same {format.plural(counted, 'step')} as the accounts"
    if abs(layers.total_s - layers.compute_s) > _FAR * layers.compute_s:
        sums = format.milliseconds(layers.total_s), format.milliseconds(layers.compute_s)
        return (
            f"{told}; the {unit}s add up to {sums[0]} ms, the compute accounts of these steps to {sums[1]} ms"
        )
    return told


def layers_table(
    part: StageView, unit: str, *, sort: str = BY_TIME, most: int | None = None, folded: bool = False
) -> Table:
    """Mean milliseconds by phase; the smallest layers are put together where there are more than `most`."""
    shown, rest = largest(part.layers, sort, most)
    step = f"{part.noun} step".strip()
    title = f"{unit.capitalize()}s of a {step}, in ms, {ORDERS[possible(part.layers, sort)]}"
    columns = _LayerColumns(shown, rest, unit=unit).every()
    return replace(table_of("layers", columns, title=title), folded=folded)


class _LayerColumns:
    """Columns over the layers that are shown, with a last cell for the rest put together."""

    def __init__(self, shown: Sequence[LayerSummary], rest: Sequence[LayerSummary], *, unit: str) -> None:
        self._shown, self._rest, self._unit = shown, rest, unit
        self._longest_s = max(layer.total_s for layer in shown)
        self._decimals = format.digits(self._longest_s)

    def every(self) -> list[tuple[Column, Cells]]:
        """All columns. Where the phases have no room for their numbers, the bar stays and shows them."""
        more = f"… {len(self._rest):,} more"
        return [
            self._column(Column(title=self._unit, words=True), [label(layer) for layer in self._shown], more),
            *self._phase(Phase.FORWARD, 2),
            *self._phase(Phase.BACKWARD, 2),
            *self._phase(Phase.UPDATE, 3),
            self._summed(Column(title="total"), lambda layer: layer.total_s),
            self._summed(Column(title="median", priority=5, optional=True), lambda layer: layer.median_s),
            *self._known("±", lambda layer: layer.spread, _half, 5),
            self._shares(),
            *self._known("busy", lambda layer: layer.busy_s, self._milliseconds, 6),
            *self._known("idle", lambda layer: layer.idle_s, self._milliseconds, 6),
            *self._known("peak MiB", lambda layer: layer.memory_bytes, format.mebibytes, 7),
            *self._known(
                "parameters", lambda layer: layer.parameters if layer.is_module else None, "{:,}".format, 8
            ),
            *self._known(
                "kind", lambda layer: layer.kind if layer.is_module else None, format.name, 9, words=True
            ),
        ]

    def _milliseconds(self, seconds: float | None) -> str:
        return format.milliseconds(seconds, self._decimals)

    def _column(self, column: Column, cells: Cells, last: str) -> tuple[Column, Cells]:
        return column, [*cells, last] if self._rest else cells

    def _phase(self, phase: Phase, priority: int) -> list[tuple[Column, Cells]]:
        """The means of one phase, its title marked where they are not measured."""
        if not any(layer.phase(phase) for layer in (*self._shown, *self._rest)):
            return []
        allocated = any(layer.how.get(phase, "measured") != "measured" for layer in self._shown)
        title, meaning = (f"{phase.value}*", _ALLOCATED) if allocated else (phase.value, "")
        column = Column(title=title, priority=priority, word=phase.value, meaning=meaning)
        cells = [
            self._milliseconds(layer.seconds(phase) if layer.phase(phase) else None) for layer in self._shown
        ]
        return [
            self._column(column, cells, self._milliseconds(sum(layer.seconds(phase) for layer in self._rest)))
        ]

    def _summed(self, column: Column, read: Callable[[LayerSummary], float]) -> tuple[Column, Cells]:
        """A column of seconds; the last cell is the sum over the rest."""
        cells = [self._milliseconds(read(layer)) for layer in self._shown]
        return self._column(column, cells, self._milliseconds(sum(map(read, self._rest))))

    def _shares(self) -> tuple[Column, Cells]:
        """Shares with each layer's phases as one bar; the largest layer's is as long as can be.

        The rest has none: many layers together may be longer than the longest.
        """
        cells = [
            Cell(
                text=format.percent(layer.share),
                word=palette.word_of_layer_share(layer.share),
                bar=phase_bar(layer, self._longest_s),
            )
            for layer in self._shown
        ]
        last = format.percent(sum(layer.share for layer in self._rest))
        return self._column(Column(title="share", bar_priority=4), cells, last)

    def _known(
        self,
        title: str,
        read: Callable[[LayerSummary], Value | None],
        write: Callable[[Value], str],
        priority: int,
        *,
        words: bool = False,
    ) -> list[tuple[Column, Cells]]:
        """A column of an optional value; none where no layer has it."""
        values = [read(layer) for layer in self._shown]
        if not any(value is not None for value in values):
            return []
        cells = [format.UNKNOWN if value is None else write(value) for value in values]
        column = Column(title=title, words=words, priority=priority, optional=True)
        return [self._column(column, cells, format.UNKNOWN)]


def phase_bar(layer: LayerSeconds, longest_s: float) -> list[BarPart]:
    """The phases of a layer, measured or predicted, end to end."""
    return [
        BarPart(share=layer.seconds(phase) / longest_s, word=phase.value)
        for phase in Phase
        if longest_s and layer.seconds(phase)
    ]


def _half(spread: float) -> str:
    """Half of the interquartile range, which is what `±` means here."""
    return f"{spread * 50:.0f} %" if spread < 2 else ">100 %"


def label(layer: LayerSummary) -> str:
    """A layer's name and what is special about it."""
    special = ["compiled"] * layer.compiled + ["frozen"] * (layer.trainable is False)
    return format.name(layer.layer) + (f" ({', '.join(special)})" if special else "")


def devices_table(rows: Sequence[DeviceSeconds], *, spread: bool = False) -> Table:
    """A line for each layer and phase, a column for each device; or the fastest and the slowest of them."""
    known = [{name: seconds for name, seconds in row.seconds.items() if seconds is not None} for row in rows]
    decimals = format.digits(max((seconds for row in known for seconds in row.values()), default=0.0))
    phases = [Cell(text=row.phase, word=row.phase) for row in rows]
    columns: list[tuple[Column, Cells]] = [
        (Column(title="layer", words=True), [format.name(row.layer) for row in rows]),
        (Column(title="phase", words=True), phases),
    ]

    def cells(reduce: Callable[[list[float]], float]) -> Cells:
        return [format.milliseconds(reduce(list(row.values())) if row else None, decimals) for row in known]

    if spread:
        slowest = [max(row, key=lambda name: row[name]) if row else format.UNKNOWN for row in known]
        columns += [
            (Column(title="fastest", priority=2), cells(min)),
            (Column(title="median", priority=3), cells(lambda values: float(np.median(values)))),
            (Column(title="slowest"), cells(max)),
            (Column(title="which is", words=True, priority=1), slowest),
        ]
    else:
        for name in rows[0].seconds:
            times = [format.milliseconds(row.seconds[name], decimals) for row in rows]
            columns.append((Column(title=name, priority=1), times))
    return table_of("layers-by-device", columns)


def facts_tables(run: Run) -> list[Table]:
    """Configuration, environment and files, a line for each value."""
    tables = []
    for name, title, values in (
        ("config", "Configuration", run.config),
        ("machine", "Environment", run.environment),
        ("outputs", "Files of the run", run.outputs),
    ):
        rows = [(one_line(key), one_line(as_text(value))) for key, value in settings(values)]
        if rows:
            tables.append(Table(name=name, title=title, columns=titled(("key", "value"), words=2), rows=rows))
    return tables
