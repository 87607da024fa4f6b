"""The order that layers are shown in, and which of them are shown where not all can be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from laptime.model import LayerSeconds, Phase
from laptime.views.run_view import RunView, StageView

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
_PHASES = tuple(phase.value for phase in Phase)


class _Named(Protocol):
    @property
    def layer(self) -> str: ...


Timed = TypeVar("Timed", bound=LayerSeconds)  # measured or predicted
Named = TypeVar("Named", bound=_Named)


def possible(layers: Sequence[LayerSeconds], sort: str) -> str:
    """`sort`, or by time where no layer has the phase that was asked for: validation has no backward pass."""
    return BY_TIME if sort in _PHASES and not any(layer.seconds(Phase(sort)) for layer in layers) else sort


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
    key = possible(layers, sort) if sort in _PHASES else BY_TIME
    places = sorted(range(len(every)), key=lambda place: -_seconds(every[place], key))
    return [every[place] for place in sorted(places[:most])], [every[place] for place in places[most:]]


def ordered(view: RunView, sort: str) -> RunView:
    """A run with the layers of both stages sorted, for `--json`."""
    stages = {stage: _sorted_stage(part, sort) for stage, part in view.stages.items()}
    return replace(view, stages=stages)


def _sorted_stage(part: StageView, sort: str) -> StageView:
    layers = part.layers.of(in_order(part.layers, sort))
    rows = like(part.layers_by_device, [layer.layer for layer in layers])
    return replace(part, layers=layers, layers_by_device=tuple(rows))


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
