"""Layer time per device, as the thesis' figures have it: a column for each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from laptime.report import colours, words
from laptime.report.columns import Column, left_out, table
from laptime.report.series import LayerPhase, Series


def by_device(side: Sequence[Series]) -> list[dict[str, Any]]:
    """Median seconds of each layer and phase on each device, over the runs of one side."""
    keys: dict[LayerPhase, None] = dict.fromkeys(key for one in side for key in one.layers)
    devices = {rank: device for one in side for rank, device in one.devices.items()}
    rows = []
    for layer, phase in keys:
        seconds = {}
        for rank, device in sorted(devices.items()):
            cells = [
                (one.ranks.get(rank, {}) if len(one.devices) > 1 else one.layers).get((layer, phase))
                for one in side
            ]
            medians = [float(np.median(cell)) for cell in cells if cell is not None]
            seconds[f"{device} rank {rank}"] = float(np.median(medians)) if medians else None
        rows.append({"layer": layer, "phase": phase, "seconds": seconds})
    return rows


def device_columns(rows: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """A line for each layer and phase, a column for each device; too many for the width are put together."""
    every = [value for row in rows for value in row["seconds"].values() if value is not None]
    decimals = words.digits(max(every, default=0.0))
    phases = [row["phase"] for row in rows]
    columns = [
        Column(title="layer", cells=[words.name(row["layer"]) for row in rows], words=True),
        Column(title="phase", cells=phases, styles=[*map(colours.of, phases)], words=True),
    ]
    each = [
        Column(
            title=name, cells=[words.milliseconds(row["seconds"][name], decimals) for row in rows], needed=1
        )
        for name in rows[0]["seconds"]
    ]
    if left_out([*columns, *each], width):
        each = _spread(rows, decimals)
    return list(table([*columns, *each], width))


def _spread(rows: Sequence[Mapping[str, Any]], decimals: int) -> list[Column]:
    """The fastest, the median and the slowest device of each row, and which one that is."""
    known = [{name: one for name, one in row["seconds"].items() if one is not None} for row in rows]

    def cells(reduce: Any) -> list[str]:
        return [words.milliseconds(reduce(list(one.values())), decimals) if one else "-" for one in known]

    slowest = [max(one, key=lambda name: one[name]) if one else words.UNKNOWN for one in known]
    return [
        Column(title="fastest", cells=cells(min), needed=2),
        Column(title="median", cells=cells(np.median), needed=3),
        Column(title="slowest", cells=cells(max)),
        Column(title="which is", cells=slowest, words=True, needed=1),
    ]
