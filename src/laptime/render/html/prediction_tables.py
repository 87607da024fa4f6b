"""The tables of predictions: devices side by side, data flow, constants, and layers beside measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from laptime.files.text import one_line
from laptime.render.html.page import Cell, Table
from laptime.render.terminal.predicted_comparison_text import apart
from laptime.views import format
from laptime.views.time_units import cells, figures, step_unit, training_unit

_GIB = 2.0**30
_MOST_ROWS = 400
_PHASES = ("forward", "backward", "update")

Row = Mapping[str, Any]


def predictions_table(found: Sequence[Row], document: Row) -> Table:
    """A row for each prediction; a column only for what differs or is known."""
    found = found[:_MOST_ROWS]
    unit = step_unit([one["step_s"] for one in found])
    columns: dict[str, list[str]] = {"device": [one_line(one["device"]) for one in found]}
    for key, title in (("network", "network"), ("precision", "precision"), ("gpus", "GPUs")):
        if len({str(one[key]) for one in found}) > 1:
            columns[title] = [one_line(one[key]) for one in found]
    columns["batch"] = [one_line(one["batch"]) for one in found]
    columns[f"step {unit.name}"] = [figures(one["step_s"] / unit.seconds) for one in found]
    columns["nine in ten"] = [
        " to ".join(figures(end / unit.seconds, 3) for end in one["interval_s"]) for one in found
    ]
    columns["samples/s"] = cells([one["samples_per_s"] for one in found], 0)
    columns["needs GiB"] = [f"{one['reserved_memory_bytes'] / _GIB:,.1f}" for one in found]
    columns["has GiB"] = [_gib(one.get("device_memory_bytes")) for one in found]
    fits = {True: "yes", False: "no", None: "?"}
    columns["fits"] = [fits[one.get("fits")] for one in found]
    columns |= _training(found)
    columns |= _largest(found, document.get("largest") or ())
    columns["bottleneck"] = [one_line(str(one["bottleneck"]).partition(":")[0]) for one in found]
    return Table(name="predictions", head=list(columns), rows=list(zip(*columns.values(), strict=True)))


def _gib(size: float | None) -> str:
    return format.UNKNOWN if size is None else f"{size / _GIB:,.0f}"


def _training(found: Sequence[Row]) -> dict[str, list[str]]:
    """Of the whole training, or of an epoch where its number was not said; money and energy."""
    columns = {}
    for key, title in (("training_s", "training"), ("epoch_s", "epoch")):
        seconds = [one.get(key) for one in found]
        known = [value for value in seconds if value is not None]
        if known:
            unit = training_unit(known)
            columns[f"{title}, {unit.name}"] = cells(seconds, 2, over=unit.seconds)
            break
    for key, title, least in (("dollars", "$", 2), ("kilowatt_hours", "kWh", 1)):
        values = [one.get(key) for one in found]
        if any(value is not None for value in values):
            columns[title] = cells(values, least)
    return columns


def _largest(found: Sequence[Row], largest: Sequence[Row]) -> dict[str, list[str]]:
    """The largest batch that fits each device, where that was asked for."""
    if not largest:
        return {}
    by_both = {(one.get("device"), (one.get("prediction") or {}).get("gpus", 1)): one for one in largest}
    by_device = {one.get("device"): one for one in largest}
    own = [by_both.get((one["device"], one["gpus"])) or by_device.get(one["device"]) or {} for one in found]
    return {
        "largest batch": [_batch(one) for one in own],
        "samples/s there": [
            format.UNKNOWN if one.get("samples_per_s") is None else f"{one['samples_per_s']:,.0f}"
            for one in own
        ],
    }


def _batch(one: Row) -> str:
    batch = one.get("batch")
    if batch is None:
        return "?"
    return "not even 1" if batch == 0 else f"{batch:,}" + ("" if one.get("exact", True) else " or more")


def flow_table(flows: Sequence[Row]) -> Table:
    """What each stage of the data flow takes for a step, and what is waited for."""
    stages = [
        name
        for name in dict.fromkeys(name for one in flows for name in one["stages"])
        if any(one["stages"].get(name) for one in flows)
    ]
    unit = step_unit([seconds for one in flows for seconds in one["stages"].values()])
    rows: list[list[str | Cell]] = [
        [
            one_line(f"{one['device']}, batch {one['batch']}, {format.plural(one['gpus'], 'GPU')}"),
            *(figures((one["stages"].get(name) or 0.0) / unit.seconds) for name in stages),
            figures(one["step_s"] / unit.seconds),
            one_line("nothing" if one["starving"] == "device" else one["starving"]),
        ]
        for one in flows[:_MOST_ROWS]
    ]
    head = ("", *map(one_line, stages), "step", "waits for")
    return Table(
        name="flow",
        title=f"Stages of a step, {unit.name}",
        head=head,
        rows=rows,
    )


def kinds_table(kinds: Sequence[Row]) -> Table:
    """Where the device's time goes, by kind of operation."""
    rows: list[list[str | Cell]] = [
        [
            one_line(f"{one['kind']} ({one['phase']})"),
            f"{one['count']:,}",
            format.milliseconds(one["seconds"], 3),
            Cell(text=format.percent(one["share"]), share=one["share"]),
            format.percent(one["of_bound"], 0),
        ]
        for one in kinds[:60]
    ]
    head = ("operations", "count", "ms", "share", "of the roofline")
    return Table(name="kinds", title="Where the device's time goes", head=head, rows=rows)


def constants_table(constants: Sequence[Row]) -> Table:
    """Every constant with its source."""
    rows = [
        [
            one_line(one["name"]),
            one_line(one["value"] if isinstance(one["value"], str) else f"{one['value']:,.6g}"),
            one_line(one["unit"]),
            one_line(one["source"]),
        ]
        for one in constants[:_MOST_ROWS]
    ]
    head = ("constant", "value", "unit", "source")
    return Table(
        name="constants", title="Constants and their sources", head=head, rows=rows, words=4, folded=True
    )


def beside_table(
    name: str, what: str, rows: Sequence[tuple[str, Row]], phases: Sequence[Row] = (), *, off: str = "off"
) -> Table:
    """Measured and predicted milliseconds, and how far they are apart; `phases` gives their errors too."""
    largest = max((row[side] or 0.0 for _, row in rows for side in ("measured", "predicted")), default=0.0)
    decimals = format.digits(largest)
    shown = [phase for phase in _PHASES if any(row[phase]["measured"] for row in phases)]
    made = []
    for place, (title, row) in enumerate(rows[:_MOST_ROWS]):
        times = [format.milliseconds(row[side], decimals) for side in ("measured", "predicted")]
        each = [apart(phases[place][phase]) for phase in shown]
        made.append([one_line(title), *times, apart(row), *each])
    head = (what, "measured ms", "predicted ms", off, *(f"{phase} {off}" for phase in shown))
    title = "The layers in numbers" if phases else ""
    return Table(name=name, title=title, head=head, rows=made, folded=bool(phases), total=not phases)
