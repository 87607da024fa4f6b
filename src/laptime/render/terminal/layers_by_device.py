"""Layer time per device, a column for each rank, as lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from laptime.render.terminal.columns import Column, left_out, table
from laptime.views import format, palette


def device_columns(rows: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """A line for each layer and phase, a column for each device; too many for the width are put together."""
    every = [value for row in rows for value in row["seconds"].values() if value is not None]
    decimals = format.digits(max(every, default=0.0))
    phases = [row["phase"] for row in rows]
    columns = [
        Column(title="layer", cells=[format.name(row["layer"]) for row in rows], words=True),
        Column(title="phase", cells=phases, styles=[*map(palette.of, phases)], words=True),
    ]
    each = [
        Column(
            title=name, cells=[format.milliseconds(row["seconds"][name], decimals) for row in rows], needed=1
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
        return [format.milliseconds(reduce(list(one.values())), decimals) if one else "-" for one in known]

    slowest = [max(one, key=lambda name: one[name]) if one else format.UNKNOWN for one in known]
    return [
        Column(title="fastest", cells=cells(min), needed=2),
        Column(title="median", cells=cells(np.median), needed=3),
        Column(title="slowest", cells=cells(max)),
        Column(title="which is", cells=slowest, words=True, needed=1),
    ]
