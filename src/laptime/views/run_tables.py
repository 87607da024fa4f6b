"""The tables of a run: where a step goes, its layers by phase and by device, and the order of layers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from laptime.files.text import one_line
from laptime.model import Account, LayerSeconds, Phase
from laptime.runs import LayerSummary, Run
from laptime.runs.document import as_text, settings
from laptime.views import format, palette
from laptime.views.run_view import NOUNS, RunView, StageView
from laptime.views.step_series import DeviceSeconds
from laptime.views.table import BarPart, Cell, Cells, Column, Table, share_cell, table_of, titled

_ACCOUNT_BAR = 40  # characters of the longest bar
_ALLOCATED = "* allocated: the optimizer's time, split by parameter bytes"
_FAR = 0.02  # from here on the sums of layers and of accounts are said to differ

# -- the order of layers ---------------------------------------------------------------------------

BY_TIME = "time"
# Each order in the words of a table's title.
ORDERS: dict[str, str] = {
    BY_TIME: "largest first",
    "network": "in network order",
    "forward": "by forward",
    "backward": "by backward",
    "update": "by update",
    "name": "by name",
}


class _Named(Protocol):
    @property
    def layer(self) -> str: ...


Timed = TypeVar("Timed", bound=LayerSeconds)  # measured or predicted
Named = TypeVar("Named", bound=_Named)
Write = Callable[[Any], str | Cell]  # of a value in a column


def possible(layers: Sequence[LayerSeconds], sort: str) -> str:
    """`sort`, or by time where no layer has the phase that was asked for: validation has no backward pass."""
    absent = sort in tuple(Phase) and not any(layer.seconds(Phase(sort)) for layer in layers)
    return BY_TIME if absent else sort


def in_order(layers: Sequence[Timed], sort: str) -> list[Timed]:
    """The layers sorted; equal ones stay in network order."""
    sort = possible(layers, sort)
    if sort == "network":
        return list(layers)
    if sort == "name":
        return sorted(layers, key=lambda layer: _natural(layer.layer))
    return sorted(layers, key=lambda layer: -_seconds(layer, sort))


def largest(layers: Sequence[Timed], sort: str, most: int | None) -> tuple[list[Timed], list[Timed]]:
    """(shown, summed up): the `most` largest layers by total time, or by the phase in `sort`.

    A single remaining layer is shown too, since a row for the rest takes as much space.
    """
    every = in_order(layers, sort)
    if most is None or len(every) <= most + 1:
        return every, []
    key = possible(layers, sort) if sort in tuple(Phase) else BY_TIME
    places = sorted(range(len(every)), key=lambda place: -_seconds(every[place], key))
    return [every[place] for place in sorted(places[:most])], [every[place] for place in places[most:]]


def ordered(view: RunView, sort: str) -> RunView:
    """A run with the layers of both stages sorted, for `--json`."""
    stages = {}
    for stage, part in view.stages.items():
        layers = part.layers.of(in_order(part.layers, sort))
        rows = like(part.layers_by_device, [layer.layer for layer in layers])
        stages[stage] = replace(part, layers=layers, layers_by_device=tuple(rows))
    return replace(view, stages=stages)


def like(rows: Sequence[Named], names: Sequence[str]) -> list[Named]:
    """The rows of the layers in `names`, in that order; the phases of a layer keep theirs."""
    place = {name: at for at, name in enumerate(names)}
    return sorted((row for row in rows if row.layer in place), key=lambda row: place[row.layer])


def _seconds(layer: LayerSeconds, sort: str) -> float:
    return layer.total_s if sort == BY_TIME else layer.seconds(Phase(sort))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """`layer2` before `layer10`."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    return [
        (False, int(part), "") if part[0] in "0123456789" else (True, 0, part.casefold()) for part in parts
    ]


# -- accounts --------------------------------------------------------------------------------------


def accounts_table(part: StageView) -> Table:
    """Accounts that took time, in the order of a step, then the wall time they add up to."""
    rows = [
        row
        for account, row in part.accounts.items()
        if not row.traced and row.seconds.count and (row.total_s or account is Account.UNEXPLAINED)
    ]
    every = [*(row.seconds for row in rows), part.wall_s]
    decimals = format.digits(part.wall_s.median)
    names = [Cell(text=row.account.value, word=row.account.value) for row in rows]
    shares = [
        share_cell(format.percent(row.share), None if math.isnan(row.share) else row.share, row.account.value)
        for row in rows
    ]
    medians, means = (
        [format.milliseconds(seconds, decimals) for seconds in column]
        for column in ((each.median for each in every), (each.mean for each in every))
    )
    columns: list[Cells] = [
        (Column(title="account", words=True), [*names, "wall time"]),
        (Column(title="median ms"), medians),
        (Column(title="mean ms", priority=2, optional=True), means),
        (Column(title="share", longest_bar=_ACCOUNT_BAR), [*shares, "100.0 %"]),
    ]
    title = f"A {NOUNS[part.stage.value]} step"
    notes = [f"explained {format.percent(part.explained_share)}"]
    return table_of(f"{part.stage.value}-books", columns, title=title, bold=[len(rows)], notes=notes)


# -- layers ----------------------------------------------------------------------------------------


def _marked(part: StageView) -> int:
    """How many of the steps that count have layer times."""
    return min(part.wall_s.count, round(part.layers.steps / part.ranks))


def marked_steps(part: StageView, unit: str) -> str:
    """Which steps the layers' times are means of, and how the accounts of exactly these compare."""
    layers = part.layers
    if not layers.steps:
        return ""
    if part.layers_first:
        return f"{unit} times are of the first step alone, which warms up: no other one had layer marks"
    if layers.traced and not part.accounts[Account.IDLE].traced:
        return ""  # every step was kernel-traced, which the notes say: idle time is in the layers' times
    counted, marked = part.wall_s.count, _marked(part)
    total, compute, whole = map(format.milliseconds, (layers.total_s, layers.compute_s, part.compute_s))
    if marked < counted:
        told = (
            f"{unit} times are means over {marked:,} of {counted:,} steps, those with layer marks; "
            f"the compute accounts take {compute} ms in these, {whole} ms in all"
        )
    else:
        told = f"{unit} times are means over the same {format.plural(counted, 'step')} as the accounts"
    if abs(layers.total_s - layers.compute_s) > _FAR * layers.compute_s:
        told += f"; the {unit}s add up to {total} ms, the compute accounts of these steps to {compute} ms"
    return told


def layers_table(
    part: StageView, unit: str, *, sort: str = BY_TIME, most: int | None = None, folded: bool = False
) -> Table:
    """Mean milliseconds by phase; the smallest layers are put together where there are more than `most`.

    Where the phases have no room for their numbers, the bar stays and shows them.
    """
    shown, rest = largest(part.layers, sort, most)
    longest_s = max(layer.total_s for layer in shown)
    columns: list[Cells] = []

    def milliseconds(seconds: float) -> str:
        return format.milliseconds(seconds, format.digits(longest_s))

    def add(
        title: str, values: Sequence[Any], write: Write = milliseconds, last: str = "", **how: Any
    ) -> None:
        """A column and, in its `last` cell, the rest put together; none where nothing of it is known."""
        if last or any(value is not None for value in values):
            cells = [format.UNKNOWN if value is None else write(value) for value in values]
            columns.append((Column(title=title, **how), [*cells, last or format.UNKNOWN] if rest else cells))

    def name(layer: LayerSummary) -> str:
        special = ["compiled"] * layer.compiled + ["frozen"] * (layer.trainable is False)
        return format.name(layer.layer) + (f" ({', '.join(special)})" if special else "")

    def half(spread: float) -> str:  # of the interquartile range, which is what ± means here
        return f"{spread * 50:.0f} %" if spread < 2 else ">100 %"

    def share(layer: LayerSummary) -> Cell:
        phases = [(phase.value, layer.seconds(phase) / longest_s) for phase in Phase if longest_s]
        bar = [BarPart(share=part, word=word) for word, part in phases if part]
        word = palette.word_of_layer_share(layer.share)
        return Cell(text=format.percent(layer.share), word=word, bar=bar)

    add(unit, shown, name, f"… {len(rest):,} more", words=True)
    for phase, priority in ((Phase.FORWARD, 2), (Phase.BACKWARD, 2), (Phase.UPDATE, 3)):
        if any(layer.phase(phase) for layer in (*shown, *rest)):
            allocated = any(layer.how.get(phase) == "allocated" for layer in shown)
            title, meaning = (f"{phase}*", _ALLOCATED) if allocated else (phase.value, "")
            times = [layer.seconds(phase) if layer.phase(phase) else None for layer in shown]
            last = milliseconds(sum(layer.seconds(phase) for layer in rest))
            add(title, times, last=last, priority=priority, word=phase.value, meaning=meaning)
    add("total", [layer.total_s for layer in shown], last=milliseconds(sum(each.total_s for each in rest)))
    medians, last = [layer.median_s for layer in shown], milliseconds(sum(each.median_s for each in rest))
    add("median", medians, last=last, priority=5, optional=True)
    add("±", [layer.spread for layer in shown], half, priority=5, optional=True)
    # The rest has no bar: many layers together may be longer than the longest.
    add("share", shown, share, format.percent(sum(layer.share for layer in rest)), bar_priority=4)
    add("busy", [layer.busy_s for layer in shown], priority=6, optional=True)
    add("idle", [layer.idle_s for layer in shown], priority=6, optional=True)
    add("peak MiB", [layer.memory_bytes for layer in shown], format.mebibytes, priority=7, optional=True)
    modules = [layer if layer.is_module else None for layer in shown]
    add("parameters", modules, lambda layer: f"{layer.parameters:,}", priority=8, optional=True)
    add("kind", modules, lambda layer: format.name(layer.kind), priority=9, words=True, optional=True)

    title = f"{unit.capitalize()}s of a {f'{part.noun} step'.strip()}, in ms"
    if part.layers.steps and not part.layers_first and _marked(part) < part.wall_s.count:
        title += f", in the {format.plural(_marked(part), 'step')} with {unit} times"
    title += f", {ORDERS[possible(part.layers, sort)]}"
    return replace(table_of("layers", columns, title=title), folded=folded)


def devices_table(rows: Sequence[DeviceSeconds], *, spread: bool = False) -> Table:
    """A line for each layer and phase, a column for each device; or the fastest and the slowest of them."""
    known = [{name: seconds for name, seconds in row.seconds.items() if seconds is not None} for row in rows]
    decimals = format.digits(max((seconds for row in known for seconds in row.values()), default=0.0))
    columns: list[Cells] = [
        (Column(title="layer", words=True), [format.name(row.layer) for row in rows]),
        (Column(title="phase", words=True), [Cell(text=row.phase, word=row.phase) for row in rows]),
    ]

    def cells(reduce: Callable[[list[float]], float]) -> list[str]:
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
        tables.append(Table(name=name, title=title, columns=titled(("key", "value"), words=2), rows=rows))
    return tables
