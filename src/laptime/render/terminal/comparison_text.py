"""Comparisons in the terminal. A verdict is a word, not a colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from laptime.render.terminal.fit import paragraph
from laptime.render.terminal.run_text import device_lines, print_lines
from laptime.render.terminal.table import table_lines
from laptime.views import format
from laptime.views.comparison import tables
from laptime.views.comparison.predicted import PredictedComparison
from laptime.views.comparison.sides import ComparedRun, ComparisonView, ProfilingCost
from laptime.views.table import Table

_INDENT = 2
_WIDEST = 140
TOP_LAYERS = 15


def show(view: ComparisonView | PredictedComparison, to: Console, *, every_layer: bool = False) -> None:
    """Print two groups of runs, or a run and its prediction, side by side."""
    width = min(to.width, _WIDEST) - _INDENT
    most = None if every_layer else TOP_LAYERS
    lines = (
        _predicted(view, width, most) if isinstance(view, PredictedComparison) else _sides(view, width, most)
    )
    print_lines(lines, to)


def _sides(view: ComparisonView, width: int, most: int | None) -> Iterator[Text]:
    for letter, side in (("A", view.a), ("B", view.b)):
        yield Text(f"{letter}  {_paths(side)}", style="bold")
    for part in view.stages.values():
        yield from _table(tables.pace_table(part), width)
        yield from _table(tables.accounts_table(part), width)
        yield from _layers(tables.layers_table(part, most), len(part.layers), part.unit, width)
        for letter, rows in zip("AB", part.by_device or (), strict=False):
            if rows:
                yield from _titled(f"Layers of {letter} by device, in ms", device_lines(rows, width))
    yield from _table(tables.results_table(view), width)
    if view.profiling:
        yield from _titled("Profiling", paragraph(_profiling(view.profiling), width, bullet="- "))
    yield from _notes(view.notes, width)


def _predicted(view: PredictedComparison, width: int, most: int | None) -> Iterator[Text]:
    made, steps = view.prediction, format.plural(view.measured.steps, "step")
    yield Text(f"measured   {format.name(view.run_path)}, {steps}", style="bold")
    made_for = f"{format.name(made.network)} on {format.name(made.device)}, batch {made.batch}"
    yield Text(f"predicted  {format.name(view.prediction_path)}: {made_for}", style="bold")
    yield from (Text(), *paragraph(view.summary, width))
    yield from _table(tables.predicted_phases_table(view), width)
    yield from _layers(tables.predicted_layers_table(view, most), len(view.layers), "layer", width)
    yield from _notes([*view.notes, f"the prediction rests on: {made.basis}"], width)


def _paths(side: Sequence[ComparedRun]) -> str:
    """`exp/base/rep-1 and 2 more`."""
    more = f" and {len(side) - 1} more" if len(side) > 1 else ""
    return format.name(str(side[0].recorded.path)) + more


def _titled(title: str, lines: Sequence[Text]) -> list[Text]:
    indented = [Text(" " * _INDENT).append_text(line) for line in lines]
    return [Text(), Text(title, style="bold"), *indented] if lines else []


def _table(table: Table | None, width: int) -> list[Text]:
    return [] if table is None else _titled(table.title, table_lines(replace(table, title=""), width))


def _layers(table: Table | None, count: int, unit: str, width: int) -> list[Text]:
    lines = _table(table, width)
    if table is not None and count > len(table.rows):
        smaller = format.plural(count - len(table.rows), f"smaller {unit}")
        lines.append(Text(f"{' ' * _INDENT}… and {smaller}; --all shows them", style="dim"))
    return lines


def _notes(notes: Sequence[str], width: int) -> list[Text]:
    return _titled("Notes", [line for note in notes for line in paragraph(note, width, bullet="- ")])


def _profiling(cost: ProfilingCost) -> str:
    """The increase of a step from without to with profiling."""
    if math.isnan(cost.slowdown):
        return "One side was profiled and the other was not, but there are no steps to compare."
    low, high = ((end - 1.0) * 100 for end in (cost.times.low, cost.times.high))
    how = "longer" if cost.slowdown >= 0 else "shorter"
    return (
        f"With profiling ({cost.profiled.upper()}) a step takes {format.percent(abs(cost.slowdown))} {how} "
        f"than without, 95 % interval {low:+.1f} % to {high:+.1f} %."
    )
