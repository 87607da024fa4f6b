"""Time per layer and phase over many steps. A million rows take a fraction of a second, in numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from laptime.model import Layer, LayerTime, Phase, Statistics, Step, summarize
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.runs import text_table
from laptime.runs.select import Columns, Mask, first_steps, warm
from laptime.runs.table_reader import StoredTable

_COLUMNS = (
    "stage",
    "attempt",
    "step",
    "rank",
    "layer",
    "phase",
    "seconds",
    "calls",
    "busy_s",
    "idle_s",
    "memory_bytes",
)
_ADDED = ("seconds", "calls", "busy_s", "idle_s")  # over the calls of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummary:
    """One layer over many steps. A phase is None where the layer was never seen in it.

    A step without an update counts as 0 s of it, as in the accounts: with gradient accumulation over three or
    more steps the median of `update` is 0, and its mean is what an update takes divided among them.
    """

    layer: str
    kind: str
    parameters: int
    calls: int  # per step, in the first phase seen: 2 for a module used twice
    forward: Statistics | None
    backward: Statistics | None
    update: Statistics | None
    total_s: float  # the sum of the phases' medians: a typical step
    sum_s: float  # every second measured, of the same steps
    share: float  # of the summed `total_s`
    busy_s: float | None  # medians over kernel-traced steps, summed over the phases
    idle_s: float | None
    memory_bytes: int | None  # the largest seen


class LayerSummaries(Sequence[LayerSummary]):
    """Layers in network order, then "(loss)" and "(other)". Kernel-traced steps give only busy and idle time.

    `skipped` says how many first steps of each attempt were left out (0 where no other steps were left);
    `traced` is True where every step was kernel-traced, so that the times include the tracer's cost. `steps`
    have layer times, `updates` of them an update: fewer where gradients are accumulated.
    """

    def __init__(
        self,
        summaries: Iterable[LayerSummary],
        *,
        skipped: int,
        traced: bool,
        steps: int = 0,
        updates: int = 0,
    ) -> None:
        self._summaries = tuple(summaries)
        self.skipped = skipped
        self.traced = traced
        self.steps = steps
        self.updates = updates

    @overload
    def __getitem__(self, index: int | str) -> LayerSummary: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LayerSummary, ...]: ...
    def __getitem__(self, index: int | str | slice) -> LayerSummary | tuple[LayerSummary, ...]:
        """By place, or by a layer's name."""
        if not isinstance(index, str):
            return self._summaries[index]
        for summary in self._summaries:
            if summary.layer == index:
                return summary
        raise KeyError(index)

    def __len__(self) -> int:
        return len(self._summaries)

    def __repr__(self) -> str:
        if not self._summaries:
            return "no layers"
        header = ["layer", "kind", "parameters", "calls"]
        header += ["forward ms", "backward ms", "update ms", "total ms", "share"]
        busy = any(one.busy_s is not None for one in self)
        rows = [_cells(one, busy) for one in self]
        return text_table.table(header + ["busy ms", "idle ms"] * busy, rows, left=2)


def _cells(one: LayerSummary, busy: bool) -> list[str]:
    cells = [text_table.name(one.layer), text_table.name(one.kind), f"{one.parameters:,}", str(one.calls)]
    cells += [text_table.spread(phase) for phase in (one.forward, one.backward, one.update)]
    cells += [text_table.milliseconds(one.total_s), text_table.share(one.share)]
    return cells + [text_table.milliseconds(one.busy_s), text_table.milliseconds(one.idle_s)] * busy


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseCells:
    """One layer in one phase: a sample per step, rank and attempt."""

    seconds: NDArray[np.float64]
    calls: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    idle_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]


def summarize_layers(
    layers: StoredTable[LayerTime],
    steps: StoredTable[Step],
    network: Sequence[Layer],
    *,
    stage: str,
    skip: int,
) -> LayerSummaries:
    """Layer summaries of one stage's steps."""
    columns = Columns(layers, _COLUMNS)
    columns.only(columns.equals("stage", stage))
    books = Columns(steps, ("stage", "attempt", "rank", "step"))
    books.only(books.equals("stage", stage))
    past = warm(columns, first_steps(books), skip)
    skipped = skip if past.any() else 0
    if skipped:
        columns.only(past)
    traced = ~np.isnan(columns["idle_s"])
    all_traced = bool(traced.all() and columns.rows)
    cells = _cells_by_layer(columns)
    timed = _steps_among(columns, None if all_traced or not traced.any() else ~traced)
    updates = _steps_among(columns, columns.equals("phase", Phase.UPDATE) & (all_traced | ~traced))
    rows = [
        _summary(layer, cells.get(layer.name, {}), all_traced, timed) for layer in _ordered(network, cells)
    ]
    whole = sum(row["total_s"] for row in rows)
    return LayerSummaries(
        (LayerSummary(**row, share=row["total_s"] / whole if whole else math.nan) for row in rows),
        skipped=skipped,
        traced=all_traced,
        steps=timed,
        updates=updates,
    )


def _steps_among(columns: Columns, mask: Mask | None) -> int:
    """How many steps, of all ranks and attempts, these rows are of. Ticked off a list: no sort."""
    if not columns.rows:
        return 0
    place = columns["step"] - columns["step"].min()
    wide = int(place.max()) + 1
    for name in ("attempt", "rank"):
        low, high = int(columns[name].min()), int(columns[name].max())
        if high > low:
            place = place + (columns[name].astype(np.int64) - low) * wide
            wide *= high - low + 1
    seen = np.zeros(wide, dtype=np.bool_)
    seen[place if mask is None else place[mask]] = True
    return int(np.count_nonzero(seen))


def _ordered(network: Sequence[Layer], measured: Iterable[str]) -> list[Layer]:
    """Every layer of the network, then what was measured beside it, the units that are no module last."""
    known = {layer.name for layer in network}
    beside = [name for name in measured if name not in known and name not in (LOSS_LAYER, OTHER_LAYER)]
    pseudo = [name for name in (LOSS_LAYER, OTHER_LAYER) if name in measured and name not in known]
    return [*network, *(Layer(name=name, path=name, kind="") for name in beside + pseudo)]


def _summary(layer: Layer, phases: Mapping[str, _PhaseCells], all_traced: bool, steps: int) -> dict[str, Any]:
    timed = {}
    for phase, cells in phases.items():
        seconds = cells.seconds if all_traced else cells.seconds[np.isnan(cells.idle_s)]
        if seconds.size:
            missing = steps - seconds.size if phase == Phase.UPDATE else 0
            timed[phase] = np.append(seconds, np.zeros(missing)) if missing > 0 else seconds
    statistics = {phase: summarize(seconds) for phase, seconds in timed.items()}
    first = next((phases[phase] for phase in Phase if phase in phases), None)
    memory = [float(np.nanmax(c.memory_bytes)) for c in phases.values() if not np.isnan(c.memory_bytes).all()]
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "parameters": layer.parameters,
        "calls": 0 if first is None else round(float(np.median(first.calls))),
        **{phase.value: statistics.get(phase) for phase in Phase},
        "total_s": sum(one.median for one in statistics.values()),
        "sum_s": sum(float(seconds.sum()) for seconds in timed.values()),
        "busy_s": _summed_medians(cells.busy_s for cells in phases.values()),
        "idle_s": _summed_medians(cells.idle_s for cells in phases.values()),
        "memory_bytes": int(max(memory)) if memory else None,
    }


def _summed_medians(samples: Iterable[NDArray[np.float64]]) -> float | None:
    known = [sample[~np.isnan(sample)] for sample in samples]
    medians = [float(np.median(sample)) for sample in known if sample.size]
    return sum(medians) if medians else None


def _cells_by_layer(columns: Columns) -> dict[str, dict[str, _PhaseCells]]:
    """Rows added up per layer, phase, attempt, rank and step, then split by layer and phase.

    One integer names such a cell, so that a single sort brings its rows, and its layer's cells, together.
    """
    if not columns.rows:
        return {}
    words = columns.words["phase"]
    key = columns["layer"].astype(np.int64) * len(words) + columns["phase"]
    cells_per_group = 1
    for name in ("attempt", "rank", "step"):
        low, high = int(columns[name].min()), int(columns[name].max())
        if high > low:
            key *= high - low + 1
            key += columns[name]
            key -= low
        cells_per_group *= high - low + 1
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    together = {name: columns.taken(name, order).astype(np.float64, copy=False) for name in _ADDED}
    most = columns.taken("memory_bytes", order).astype(np.float64, copy=False)
    if len(starts) < len(key):  # else every cell has one row, as where no layer is called twice in a step
        together = {name: np.add.reduceat(values, starts) for name, values in together.items()}
        most = np.fmax.reduceat(most, starts)
    summed = together | {"memory_bytes": most}
    group = key[starts] // cells_per_group
    edges = [*np.flatnonzero(np.diff(group, prepend=-1)), len(group)]
    found: dict[str, dict[str, _PhaseCells]] = {}
    for low, high in pairwise(edges):
        layer, phase = divmod(int(group[low]), len(words))
        cells = _PhaseCells(**{name: values[low:high] for name, values in summed.items()})
        found.setdefault(columns.words["layer"][layer], {})[words[phase]] = cells
    return found
