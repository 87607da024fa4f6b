"""Time per layer and phase over many steps. A million rows take a fraction of a second, in numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from laptime.model import Layer, LayerSeconds, Phase, Statistics, summarize
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.runs import text_table
from laptime.runs.select import LayerCells, Samples, SelectedLayers


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummary(LayerSeconds):
    """One layer over many steps. Its seconds are means over all of them, which add up to the accounts.

    `forward`, `backward` and `update` are of the steps in which the layer ran; None where it never did. A
    step without an update counts as 0 s of it: with gradient accumulation over three or more steps the
    median of `update` is 0, and its mean is what an update takes divided among them.
    """

    kind: str
    parameters: int
    calls: int  # per step, in the first phase seen: 2 for a module used twice
    forward: Statistics | None
    backward: Statistics | None
    update: Statistics | None
    median_s: float  # the sum of the phases' medians: a typical step
    share: float  # of the summed `total_s`
    busy_s: float | None  # medians over kernel-traced steps, summed over the phases
    idle_s: float | None
    memory_bytes: int | None  # the largest seen
    how: Mapping[Phase, str]  # how the times were obtained: measured, allocated, …
    trainable: bool | None  # None of what is no layer of the network
    compiled: bool
    activation_bytes: int | None
    peak_bytes: int | None

    @property
    def is_module(self) -> bool:
        """Whether it is a part of the network, and not the loss or what is in no layer."""
        return self.layer not in (LOSS_LAYER, OTHER_LAYER)

    @property
    def spread(self) -> float | None:
        """Interquartile range over the median, as if the phases were slow together: the widest it can be."""
        ranges = [summary.q3 - summary.q1 for phase in Phase if (summary := self.phase(phase))]
        return sum(ranges) / self.median_s if self.median_s else None

    def phase(self, phase: Phase) -> Statistics | None:
        """Of the steps in which the layer ran."""
        statistics: Statistics | None = getattr(self, phase.value)
        return statistics


class LayerSummaries(Sequence[LayerSummary]):
    """Layers in network order, then "(loss)" and "(other)". Kernel-traced steps give only busy and idle time.

    `skipped` says how many first steps of each attempt were left out (0 where no other steps were left);
    `traced` is True where every step was kernel-traced, so that the times include the tracer's cost. `steps`
    have layer times, `updates` of them an update: fewer where gradients are accumulated. `compute_s` is what
    the compute accounts of exactly these steps take in the mean.
    """

    def __init__(
        self,
        summaries: Iterable[LayerSummary],
        *,
        skipped: int,
        traced: bool,
        steps: int,
        updates: int,
        compute_s: float,
    ) -> None:
        self._summaries = tuple(summaries)
        self.skipped = skipped
        self.traced = traced
        self.steps = steps
        self.updates = updates
        self.compute_s = compute_s

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

    def of(self, summaries: Iterable[LayerSummary]) -> LayerSummaries:
        """Other summaries of the same steps, as sorted ones are."""
        return LayerSummaries(
            summaries,
            skipped=self.skipped,
            traced=self.traced,
            steps=self.steps,
            updates=self.updates,
            compute_s=self.compute_s,
        )

    @property
    def total_s(self) -> float:
        """All layers together in the mean step."""
        return sum(layer.total_s for layer in self)

    @property
    def named_share(self) -> float:
        """The share of their time charged to a named unit, not to "(other)"; NaN without times."""
        return sum(layer.share for layer in self if layer.layer != OTHER_LAYER) if self else math.nan

    def __repr__(self) -> str:
        if not self._summaries:
            return "no layers"
        header = ["layer", "kind", "parameters", "calls"]
        header += ["forward ms", "backward ms", "update ms", "total ms", "median ms", "share"]
        busy = any(layer.busy_s is not None for layer in self)
        rows = [_cells(layer, busy) for layer in self]
        return text_table.table(header + ["busy ms", "idle ms"] * busy, rows, left=2)


def _cells(layer: LayerSummary, busy: bool) -> list[str]:
    cells = [text_table.name(layer.layer), text_table.name(layer.kind), f"{layer.parameters:,}"]
    cells += [str(layer.calls), *(_mean(layer, phase) for phase in Phase)]
    cells += [text_table.milliseconds(layer.total_s), text_table.milliseconds(layer.median_s)]
    cells.append(text_table.share(layer.share))
    return cells + [text_table.milliseconds(layer.busy_s), text_table.milliseconds(layer.idle_s)] * busy


def _mean(layer: LayerSummary, phase: Phase) -> str:
    """A mean with half the interquartile range over the median: `1.234 ±3%`."""
    statistics = layer.phase(phase)
    if statistics is None:
        return "-"
    return f"{text_table.milliseconds(layer.seconds(phase))} ±{statistics.spread / 2:.0%}"


def summarize_layers(layers: SelectedLayers, network: Sequence[Layer]) -> LayerSummaries:
    """Layer summaries of the steps that count and have layer marks."""
    cells: dict[str, dict[str, LayerCells]] = {}
    updated = np.zeros_like(layers.timed)
    for (layer, phase), phase_cells in layers.rows.cells(layers.timed | layers.traced):
        cells.setdefault(layer, {})[phase] = phase_cells
        if phase == Phase.UPDATE:
            updated[phase_cells.step] = True
    rows = [
        _summary(layer, cells.get(layer.name, {}), layers, described=place < len(network))
        for place, layer in enumerate(_ordered(network, cells))
    ]
    whole = sum(row["forward_s"] + row["backward_s"] + row["update_s"] for row in rows)
    summaries = (LayerSummary(**row, share=math.nan) for row in rows)
    return LayerSummaries(
        [replace(row, share=row.total_s / whole) if whole else row for row in summaries],
        skipped=layers.skipped,
        traced=layers.all_traced,
        steps=layers.count,
        updates=int(np.count_nonzero(updated & layers.timed)),
        compute_s=layers.steps.compute_s(layers.timed),
    )


def _ordered(network: Sequence[Layer], measured: Iterable[str]) -> list[Layer]:
    """Every layer of the network, then what was measured beside it, the units that are no module last."""
    known = {layer.name for layer in network}
    beside = [name for name in measured if name not in known and name not in (LOSS_LAYER, OTHER_LAYER)]
    pseudo = [name for name in (LOSS_LAYER, OTHER_LAYER) if name in measured and name not in known]
    return [*network, *(Layer(name=name, path=name, kind="") for name in beside + pseudo)]


def _summary(
    layer: Layer, phases: Mapping[str, LayerCells], layers: SelectedLayers, *, described: bool
) -> dict[str, Any]:
    steps = layers.count
    statistics: dict[str, Statistics] = {}
    means = dict.fromkeys(Phase, 0.0)
    for phase in Phase:
        cells = phases.get(phase)
        seconds = cells.seconds[layers.timed[cells.step]] if cells is not None else np.zeros(0)
        if not seconds.size:
            continue
        means[phase] = float(seconds.sum()) / steps
        missing = steps - seconds.size if phase is Phase.UPDATE else 0
        statistics[phase] = summarize(np.append(seconds, np.zeros(missing)) if missing > 0 else seconds)
    first = next((phases[phase] for phase in Phase if phase in phases), None)
    memory = [float(np.nanmax(c.memory_bytes)) for c in phases.values() if not np.isnan(c.memory_bytes).all()]
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "parameters": layer.parameters,
        "calls": 0 if first is None else round(float(np.median(first.calls))),
        **{f"{phase.value}_s": means[phase] for phase in Phase},
        **{phase.value: statistics.get(phase) for phase in Phase},
        "median_s": sum(statistic.median for statistic in statistics.values()),
        "busy_s": _summed_medians(cells.busy_s for cells in phases.values()),
        "idle_s": _summed_medians(cells.idle_s for cells in phases.values()),
        "memory_bytes": int(max(memory)) if memory else None,
        "how": {phase: layers.rows.how((layer.name, phase.value)) for phase in Phase if phase in phases},
        "trainable": layer.trainable if described else None,
        "compiled": described and layer.compiled,
        "activation_bytes": layer.activation_bytes,
        "peak_bytes": layer.peak_bytes,
    }


def _summed_medians(samples: Iterable[Samples]) -> float | None:
    known = [sample[~np.isnan(sample)] for sample in samples]
    medians = [float(np.median(sample)) for sample in known if sample.size]
    return sum(medians) if medians else None
