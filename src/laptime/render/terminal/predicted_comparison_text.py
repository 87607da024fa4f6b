"""A run beside its prediction in the terminal, from the dictionary of `comparison_predicted.against`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from laptime.render.terminal.columns import Column, table
from laptime.render.terminal.fit import paragraph
from laptime.render.terminal.run_text import print_lines
from laptime.views import format
from laptime.views.predicted_comparison import host_of, summary_of

TOP_LAYERS = 15
_WIDEST = 140
_PHASES = ("forward", "backward", "update")
Row = Mapping[str, Any]


def show(found: Row, to: Console, *, every_layer: bool = False) -> None:
    """Print measured and predicted side by side."""
    print_lines(_lines(found, min(to.width, _WIDEST), every_layer), to)


def _lines(found: Row, width: int, every_layer: bool) -> Iterator[Text]:
    run, made = found["run"], found["prediction"]
    yield Text(f"measured   {format.name(run['path'])}, {format.plural(run['steps'], 'step')}", style="bold")
    made_for = f"{format.name(made['network'])} on {format.name(made['device'])}"
    yield Text(f"predicted  {format.name(made['path'])}: {made_for}, batch {made['batch']}", style="bold")
    yield from (Text(), *paragraph(summary_of(found), width))
    rows = [("step", found["step"]), *((one["phase"], one) for one in found["phases"] if one["measured"])]
    rows += host_of(found)
    off = "ratio" if found["same_device"] is False else "off"
    yield from (Text(), Text("Phases, in ms", style="bold"), *_times("", rows, off, width))
    layers = _layers(found["layers"], off, width, every_layer)
    yield from (Text(), Text("Layers, in ms", style="bold"), *layers)
    yield from (Text(), Text("Notes", style="bold"))
    for note in (*found["notes"], f"the prediction rests on: {made['basis']}"):
        yield from paragraph(note, width, bullet="- ")


def _layers(rows: Sequence[Row], off: str, width: int, every_layer: bool) -> list[Text]:
    shown, left = list(rows), 0
    if not every_layer and len(rows) > TOP_LAYERS + 1:
        longest = sorted(rows, key=lambda row: -_weight(row["total"]))[:TOP_LAYERS]
        shown = [row for row in rows if any(row is one for one in longest)]
        left = len(rows) - TOP_LAYERS
    phases = [
        Column(title=f"{phase} {off}", cells=[apart(row[phase]) for row in shown], needed=1)
        for phase in _PHASES
        if any(row[phase]["measured"] for row in rows)
    ]
    lines = _times("layer", [(format.name(row["layer"]), row["total"]) for row in shown], off, width, *phases)
    if left:
        lines.append(Text(f"… and {format.plural(left, 'smaller layer')}; --all shows them", style="dim"))
    return lines


def _times(title: str, rows: Sequence[tuple[str, Row]], off: str, width: int, *more: Column) -> list[Text]:
    decimals = format.digits(max((_weight(row) for _, row in rows), default=0.0))
    columns = [Column(title=title, cells=[name for name, _ in rows], words=True)]
    for side in ("measured", "predicted"):
        cells = [format.milliseconds(row[side], decimals) for _, row in rows]
        columns.append(Column(title=side, cells=cells))
    columns.append(Column(title=off, cells=[apart(row) for _, row in rows]))
    return table([*columns, *more], width)


def _weight(row: Row) -> float:
    return max(row["measured"] or 0.0, row["predicted"] or 0.0)


def apart(row: Row) -> str:
    """Predicted against measured: per cent that it is off, or the ratio where that is no error."""
    error, ratio = row["error"], row["ratio"]
    if ratio is None:
        return format.UNKNOWN
    if ratio >= 100:
        return ">100x"
    return f"{ratio:.3g}x" if error is None else f"{error * 100:+.0f} %"
