"""The order that layers are shown in, and which of them are shown where not all can be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Layer = Mapping[str, Any]

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
_PHASES = ("forward", "backward", "update")


def possible(layers: Sequence[Layer], sort: str) -> str:
    """`sort`, or by time where no layer has the phase that was asked for: validation has no backward pass."""
    return BY_TIME if sort in _PHASES and not any(one[sort] for one in layers) else sort


def in_order(layers: Sequence[Layer], sort: str) -> list[Layer]:
    """The layers sorted; equal ones stay in network order, which `content` has them in."""
    sort = possible(layers, sort)
    if sort == "network":
        return list(layers)
    if sort == "name":
        return sorted(layers, key=lambda one: _natural(one["layer"]))
    return sorted(layers, key=lambda one: -_seconds(one, sort))


def largest(layers: Sequence[Layer], sort: str, most: int | None) -> tuple[list[Layer], list[Layer]]:
    """(shown, put together): the `most` with the most time, by the phase that is sorted by if it is one.

    One row too many is shown: the row that stands for it would be as long.
    """
    every = in_order(layers, sort)
    if most is None or len(every) <= most + 1:
        return every, []
    key = possible(layers, sort) if sort in _PHASES else BY_TIME
    places = sorted(range(len(every)), key=lambda place: -_seconds(every[place], key))
    return [every[place] for place in sorted(places[:most])], [every[place] for place in places[most:]]


def ordered(found: Mapping[str, Any], sort: str) -> dict[str, Any]:
    """A run's content with the layers of both stages sorted, for programs that want them so."""
    stages = {stage: _sorted_stage(found[stage], sort) for stage in ("train", "validation") if found[stage]}
    return {**found, **stages}


def _sorted_stage(part: Mapping[str, Any], sort: str) -> dict[str, Any]:
    layers = in_order(part["layers"], sort)
    rows = like(part["layers_by_device"], [one["layer"] for one in layers])
    return {**part, "layers": layers, "layers_by_device": rows}


def like(rows: Sequence[Layer], names: Sequence[str]) -> list[Layer]:
    """Those rows of `names`, in their order; the phases of a layer stay as they are."""
    place = {name: at for at, name in enumerate(names)}
    return sorted((row for row in rows if row["layer"] in place), key=lambda row: place[row["layer"]])


def _seconds(layer: Layer, sort: str) -> float:
    found = layer["total_s"] if sort == BY_TIME else (layer[sort] or {}).get("median")
    return float(found or 0.0)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """`layer2` before `layer10`."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    return [(False, int(one), "") if one[0] in "0123456789" else (True, 0, one.casefold()) for one in parts]
