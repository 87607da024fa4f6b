"""Where the time of the steps went: account by account, and layer by layer and phase by phase.

A million rows take a fraction of a second, in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from laptime.files.text import one_line
from laptime.model import ACCOUNTS, Account, Layer, LayerSeconds, Phase, Statistics, summarize
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.runs.select import LayerCells, Mask, Samples, SelectedLayers, SelectedSteps

_WIDEST = 48  # characters of a name in a table

# -- accounts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSummary:
    """One account over many steps. `total_s` and `share` are NaN where the account is unknown."""

    account: Account
    seconds: Statistics
    total_s: float
    share: float
    half_in: int  # the fewest steps that hold half of it
    traced: bool = False  # from the kernel-traced steps: a share of their wall time, outside the sum of 1


class AccountSummaries(dict[Account, AccountSummary]):
    """Every account, in the order of the columns. The shares add up to 1, those marked `traced` left out.

    Kernel-traced steps do not count where there are others, since the tracer slows them; only `idle` comes
    from them, as nothing else can tell it.
    """

    def __init__(self, summaries: Mapping[Account, AccountSummary], wall: Statistics, skipped: int) -> None:
        super().__init__(summaries)
        self.wall = wall
        self.skipped = skipped  # first steps left out of each attempt; 0 where no others were left

    def rows(self, traced: str = " (traced)") -> Iterator[tuple[str, str, str, str]]:
        """Account, median ms, total s and share as text, the wall time last."""
        for each in self.values():
            name = each.account.value + (traced if each.traced else "")
            total = "-" if math.isnan(each.total_s) else f"{each.total_s:.3f}"
            share = "-" if math.isnan(each.share) else f"{each.share:.1%}"
            yield name, _with_spread(each.seconds.median, each.seconds), total, share
        wall = self.wall
        yield "wall", _with_spread(wall.median, wall), f"{wall.mean * wall.count:.3f}", "100.0%"

    def __repr__(self) -> str:
        if not self.wall.count:
            return "no steps"
        return _table(("account", "median ms", "total s", "share"), [*self.rows()], left=1)


def summarize_accounts(steps: SelectedSteps) -> AccountSummaries:
    """Account summaries of the steps that count."""
    summaries = {account: _account(account, steps, steps.counted) for account in ACCOUNTS}
    if steps.traced.any() and not steps.all_traced and not summaries[Account.IDLE].seconds.count:
        summaries[Account.IDLE] = replace(_account(Account.IDLE, steps, steps.traced), traced=True)
    return AccountSummaries(summaries, summarize(steps["wall_s"]), steps.skipped)


def _account(account: Account, steps: SelectedSteps, mask: Mask) -> AccountSummary:
    seconds = steps.every[account.column][mask]
    known = seconds[~np.isnan(seconds)]
    wall = float(steps.every["wall_s"][mask].sum())
    total = float(known.sum()) if known.size else math.nan
    largest_first = np.cumsum(np.sort(known)[::-1])
    return AccountSummary(
        account=account,
        seconds=summarize(seconds),
        total_s=total,
        share=total / wall if wall else math.nan,
        half_in=int(np.searchsorted(largest_first, largest_first[-1] / 2)) + 1 if known.size else 0,
    )


# -- layers ----------------------------------------------------------------------------------------


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
    median_s: float  # of all phases together, over the steps in which the layer ran
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LayerSummaries(Sequence[LayerSummary]):
    """Layers in network order, then "(loss)" and "(other)". Traced steps give only busy and idle time."""

    summaries: tuple[LayerSummary, ...]
    skipped: int  # first steps left out of each attempt; 0 where no other steps were left
    traced: bool  # whether every step was kernel-traced, so that the times include the tracer's cost
    steps: int  # that have layer times
    updates: int  # how many of them have an update: fewer where gradients are accumulated
    compute_s: float  # what the compute accounts of exactly these steps take in the mean

    @overload
    def __getitem__(self, index: int | str) -> LayerSummary: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LayerSummary, ...]: ...
    def __getitem__(self, index: int | str | slice) -> LayerSummary | tuple[LayerSummary, ...]:
        """By place, or by a layer's name."""
        if not isinstance(index, str):
            return self.summaries[index]
        for summary in self.summaries:
            if summary.layer == index:
                return summary
        raise KeyError(index)

    def __len__(self) -> int:
        return len(self.summaries)

    def of(self, summaries: Iterable[LayerSummary]) -> LayerSummaries:
        """Other summaries of the same steps, as sorted ones are."""
        return replace(self, summaries=tuple(summaries))

    @property
    def total_s(self) -> float:
        """All layers together in the mean step."""
        return sum(layer.total_s for layer in self)

    @property
    def named_share(self) -> float:
        """The share of their time charged to a named unit, not to "(other)"; NaN without times."""
        return sum(layer.share for layer in self if layer.layer != OTHER_LAYER) if self else math.nan

    def __repr__(self) -> str:
        if not self.summaries:
            return "no layers"
        header = ["layer", "kind", "parameters", "calls"]
        header += ["forward ms", "backward ms", "update ms", "total ms", "median ms", "share"]
        busy = any(layer.busy_s is not None for layer in self)
        rows = []
        for layer in self:
            row = [_short(layer.layer), _short(layer.kind), f"{layer.parameters:,}", str(layer.calls)]
            row += [_with_spread(layer.seconds(phase), layer.phase(phase)) for phase in Phase]
            row += [_milliseconds(layer.total_s), _milliseconds(layer.median_s)]
            row.append("-" if math.isnan(layer.share) else f"{layer.share:.1%}")
            rows.append(row + [_milliseconds(layer.busy_s), _milliseconds(layer.idle_s)] * busy)
        return _table(header + ["busy ms", "idle ms"] * busy, rows, left=2)


def summarize_layers(layers: SelectedLayers, network: Sequence[Layer]) -> LayerSummaries:
    """Layer summaries of the steps that count and have layer marks."""
    cells: dict[str, dict[str, LayerCells]] = {}
    updated = np.zeros_like(layers.timed)
    for (layer, phase), phase_cells in layers.rows.cells(layers.timed | layers.traced):
        cells.setdefault(layer, {})[phase] = phase_cells
        if phase == Phase.UPDATE:
            updated[phase_cells.step] = True
    # Every layer of the network, then what was measured beside it, the units that are no module last.
    known = {layer.name for layer in network}
    beside = sorted((name for name in cells if name not in known), key=lambda name: _LAST.get(name, 0))
    rows = [_layer(layer, cells.get(layer.name, {}), layers, described=True) for layer in network]
    rows += [
        _layer(Layer(name=name, path=name, kind=""), cells[name], layers, described=False) for name in beside
    ]
    whole = sum(row.total_s for row in rows)
    return LayerSummaries(
        summaries=tuple(replace(row, share=row.total_s / whole) if whole else row for row in rows),
        skipped=layers.skipped,
        traced=layers.all_traced,
        steps=layers.count,
        updates=int(np.count_nonzero(updated & layers.timed)),
        compute_s=layers.steps.compute_s(layers.timed),
    )


_LAST = {LOSS_LAYER: 1, OTHER_LAYER: 2}


def _layer(
    layer: Layer, phases: Mapping[str, LayerCells], layers: SelectedLayers, *, described: bool
) -> LayerSummary:
    steps = layers.count
    seconds: dict[str, Any] = {}
    whole, ran = np.zeros(len(layers.timed)), np.zeros_like(layers.timed)  # by step: all phases together
    for phase in Phase:
        cells = phases.get(phase)
        timed = cells.seconds[layers.timed[cells.step]] if cells is not None else np.zeros(0)
        seconds |= {f"{phase.value}_s": float(timed.sum()) / steps if timed.size else 0.0, phase.value: None}
        if cells is not None and timed.size:
            missing = steps - timed.size if phase is Phase.UPDATE else 0
            statistics = summarize(np.append(timed, np.zeros(max(0, missing))))
            seconds[phase.value] = statistics
            whole[cells.step] += cells.seconds
            ran[cells.step] = True
    first = next((phases[phase] for phase in Phase if phase in phases), None)
    memory = [float(np.nanmax(c.memory_bytes)) for c in phases.values() if not np.isnan(c.memory_bytes).all()]
    return LayerSummary(
        layer=layer.name,
        kind=layer.kind,
        parameters=layer.parameters,
        calls=0 if first is None else round(float(np.median(first.calls))),
        **seconds,
        median_s=float(np.median(whole[ran & layers.timed])) if ran.any() else 0.0,
        share=math.nan,
        busy_s=_summed_medians(cells.busy_s for cells in phases.values()),
        idle_s=_summed_medians(cells.idle_s for cells in phases.values()),
        memory_bytes=int(max(memory)) if memory else None,
        how={phase: layers.rows.how((layer.name, phase.value)) for phase in Phase if phase in phases},
        trainable=layer.trainable if described else None,
        compiled=described and layer.compiled,
        activation_bytes=layer.activation_bytes,
        peak_bytes=layer.peak_bytes,
    )


def _summed_medians(samples: Iterable[Samples]) -> float | None:
    known = [sample[~np.isnan(sample)] for sample in samples]
    medians = [float(np.median(sample)) for sample in known if sample.size]
    return sum(medians) if medians else None


# -- plain-text tables: what a notebook or a REPL shows of a summary --------------------------------


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Rows under a header; the first `left` columns are words, the rest are numbers."""
    columns = []
    for place, column in enumerate(zip(header, *rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if place < left else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _short(text: str) -> str:
    """A name on one line; its middle is left out where it is too long."""
    shown = one_line(text)
    half = _WIDEST // 2
    return shown if len(shown) <= _WIDEST else f"{shown[: half - 1]}…{shown[-half:]}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None or math.isnan(seconds) else f"{seconds * 1e3:.3f}"


def _with_spread(seconds: float, statistics: Statistics | None) -> str:
    """Milliseconds with half the interquartile range over the median: `1.234 ±3%`."""
    if statistics is None or not statistics.count:
        return "-"
    return f"{_milliseconds(seconds)} ±{statistics.spread / 2:.0%}"
