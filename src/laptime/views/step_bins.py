"""A run condensed for drawing: a few hundred bins of its steps, its outliers, and one step looked at closely.

A bin holds neighbouring steps; its median hides a slow step, so the slowest of all bins are kept beside them.
Lines over the run and their outliers show every step; layer times, the histogram and the comparison of marked
steps are of those that count. A million layer times take half a second: one sort, no loop over bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, BUBBLE_COLUMNS, Account, How, KernelTime, LayerTime, Phase, Stage
from laptime.runs import Run, schema
from laptime.runs.select import Columns, Mask, SelectedLayers, SelectedSteps, kernel_traced

BINS = 300
MOST_POINTS = 60_000  # of layer times: layers x phases x ranks x bins, some 400 kB in a page
OUTLIERS = 120
_COARSE = 60  # bins in which outliers are detected, of at least ten steps each
_FAR = 3.0  # interquartile ranges above the third quartile of its bin
HISTOGRAM_BARS = 80
_QUARTILES = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "max": 1.0}

Column = NDArray[Any]
Whole = NDArray[np.int64]
Rows = dict[str, Column]


def of(rows: Rows, **wanted: Any) -> Rows:
    """The rows whose columns have these values."""
    here = np.ones(len(next(iter(rows.values()))), dtype=bool)
    for name, value in wanted.items():
        here &= rows[name] == value
    return {name: column[here] for name, column in rows.items()}


def by(rows: Rows, name: str) -> dict[Any, Rows]:
    """The rows of each value of a column: one sort, however many values there are."""
    values, place = np.unique(rows[name], return_inverse=True)
    order = np.argsort(place, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(place[order])) + 1)
    return {
        value: {column: array[part] for column, array in rows.items()}
        for value, part in zip(values.tolist(), parts, strict=False)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Columns by name, a row for each bin; seconds as they were stored."""

    stage: Stage  # of all but steps and learning: training, or validation where there is nothing else
    steps: Mapping[Stage, Rows]  # rank, step (the bin's middle), wall quartiles, means of the accounts
    slow_steps: Rows  # outliers: step, wall_s, usual_s, traced
    layers: Rows  # layer, phase, rank, step, median seconds
    slow_layers: Rows  # outliers: layer, phase, rank, step, seconds, usual_s
    learning: Mapping[Stage, Rows]  # step, epoch, seconds since the start, loss, top1, topn, NaN losses
    wall_s: Column  # of the steps that count
    marked: Mapping[bool, Column]  # the wall time of training steps with layer marks, and without


def digest(run: Run) -> Digest:
    """What the figures of a run are drawn from."""
    stages = {stage: run.selected(stage) for stage in Stage}
    stage = Stage.TRAIN if stages[Stage.TRAIN].every.rows else Stage.VALIDATION
    numbers = {stage: np.unique(steps.every["step"]) for stage, steps in stages.items()}
    between = {Stage.TRAIN: numbers[Stage.VALIDATION], Stage.VALIDATION: numbers[Stage.TRAIN]}
    layers, slow_layers = _layers(run.selected_layers(stage), between[stage])
    training = stages[Stage.TRAIN]
    return Digest(
        stage=stage,
        steps={stage: _step_bins(steps, between[stage]) for stage, steps in stages.items()},
        slow_steps=_slow_steps(stages[stage].every),
        layers=layers,
        slow_layers=slow_layers,
        learning=_learning(stages, between[Stage.TRAIN]),
        wall_s=stages[stage]["wall_s"],
        marked={marked: training["wall_s"][training["instrumented"] == marked] for marked in (False, True)},
    )


class _Groups:
    """Values by key, sorted within each: quantiles of every group at once."""

    def __init__(self, keys: Whole, values: Column) -> None:
        self._order = np.lexsort((values, keys))
        self._keys, self._values = keys[self._order], values[self._order]
        self._starts = np.flatnonzero(np.diff(self._keys, prepend=-1))
        self.keys: Whole = self._keys[self._starts]
        self.counts: Whole = np.diff(np.append(self._starts, len(keys)))

    def quantile(self, share: float) -> Column:
        """The quantile of each group, interpolated linearly."""
        at = self._starts + share * (self.counts - 1)
        below = at.astype(np.int64)
        above = np.minimum(below + 1, self._starts + self.counts - 1)
        between: Column = self._values[above] - self._values[below]
        return np.asarray(self._values[below] + (at - below) * between)

    def mean(self, column: Column, known: Mask | None = None) -> Column:
        """The mean of another column in each group, over known values; NaN where there are none."""
        rows = self._order
        chosen = ~np.isnan(column[rows]) if known is None else known[rows]
        values = np.where(chosen, column[rows], 0.0)
        counts = self.sum(chosen.astype(np.float64), ordered=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.sum(values, ordered=True) / counts

    def sum(self, column: Column, *, ordered: bool = False) -> Column:
        """The sum of another column in each group."""
        values = column if ordered else column[self._order]
        return np.add.reduceat(values, self._starts) if len(values) else np.zeros(0)

    def spread_out(self, of_groups: Column) -> Column:
        """The value of each row's group, in the original order of the rows."""
        of_rows = np.empty(len(self._order), dtype=of_groups.dtype)
        of_rows[self._order] = np.repeat(of_groups, self.counts)
        return of_rows


def _place(steps: Column, bins: int, *, coarse: bool = False) -> tuple[Whole, int]:
    """The bin of each step, and how many bins: one for each step of a short run; coarse ones hold ten."""
    if not len(steps):
        return np.zeros(0, dtype=np.int64), 1
    low, whole = int(steps.min()), int(steps.max()) - int(steps.min()) + 1
    most = max(1, min(bins, whole // 10)) if coarse else whole if whole <= 2 * bins else bins
    return (steps.astype(np.int64) - low) * most // whole, most


def _step_bins(steps: SelectedSteps, between: Column) -> Rows:
    every = steps.every
    place, bins = _place(every["step"], BINS)
    key = every["rank"].astype(np.int64) * bins + place
    walls, numbers = _Groups(key, every["wall_s"]), _Groups(key, every["step"])
    ranks, middles = walls.keys // bins, numbers.quantile(0.5)
    return {
        "rank": ranks,
        "device": np.array([steps.devices[int(rank)] for rank in ranks], dtype=object),
        "bin": walls.keys % bins,
        "step": middles,
        "after_gap": _after_gap(walls.keys, middles, between),
        "count": walls.counts,
        "mean_s": walls.mean(every["wall_s"]),
        **{f"{name}_s": walls.quantile(share) for name, share in _QUARTILES.items()},
        **{account.column: walls.mean(every[account.column]) for account in ACCOUNTS},
        "staleness": walls.mean(every["staleness"]),
        "bubble_s": walls.mean(np.sum([every[column] for column in BUBBLE_COLUMNS], axis=0)),
    }


def _after_gap(keys: Whole, steps: Column, between: Column) -> Mask:
    """Which bins are separated from the previous bin by steps of the other stage."""
    passed = np.searchsorted(between, steps)
    apart = (np.diff(keys) > 1) & (np.diff(passed) > 0)
    return np.append(False, apart) if len(steps) else np.zeros(0, dtype=np.bool_)


def _slow_steps(every: Columns) -> Rows:
    place, bins = _place(every["step"], _COARSE, coarse=True)
    at, usual = _far(every["rank"].astype(np.int64) * bins + place, every["wall_s"])
    slow = {"step": every["step"][at], "wall_s": every["wall_s"][at], "usual_s": usual}
    return _furthest(slow | {"traced": kernel_traced(every)[at]}, "wall_s")


def _far(keys: Whole, values: Column) -> tuple[NDArray[np.intp], Column]:
    """Indices of the outliers of each group, and the median of their group."""
    groups = _Groups(keys, values)
    q1, usual, q3 = (groups.quantile(share) for share in (0.25, 0.5, 0.75))
    far = np.where(groups.counts > 3, np.maximum(q3 + _FAR * (q3 - q1), 1.2 * usual), np.inf)
    at = np.flatnonzero(values > groups.spread_out(far))
    return at, groups.spread_out(usual)[at]


def _furthest(rows: Rows, name: str) -> Rows:
    """The rows furthest above the median of their group."""
    order = np.lexsort((rows["step"], rows["usual_s"] - rows[name]))[:OUTLIERS]
    return {column: values[order] for column, values in rows.items()}


def _layers(layers: SelectedLayers, between: Column) -> tuple[Rows, Rows]:
    """Bins of layer times, and their outliers."""
    every = layers.steps.every
    owner, step, seconds = layers.seconds()
    numbers, ranks = every["step"][step], every["rank"][step].astype(np.int64)
    lane = ranks * max(1, len(layers.rows.owners)) + owner
    units = len(np.unique(lane))
    place, bins = _place(numbers, int(min(BINS, max(20, MOST_POINTS // max(1, units)))))
    times, middles = _Groups(lane * bins + place, seconds), _Groups(lane * bins + place, numbers)
    coarse, count = _place(numbers, _COARSE, coarse=True)
    at, usual = _far(lane * count + coarse, seconds)

    def owners(lanes: Whole) -> Rows:
        names = list(layers.rows.owners)
        pairs = [names[int(index) % len(names)] for index in lanes]
        return {
            "rank": lanes // max(1, len(names)),
            "layer": np.array([layer for layer, _ in pairs], dtype=object),
            "phase": np.array([phase for _, phase in pairs], dtype=object),
        }

    binned = owners(times.keys // bins) | {
        "bin": times.keys % bins,
        "step": middles.quantile(0.5),
        "after_gap": _after_gap(times.keys, middles.quantile(0.5), between),
        "seconds": times.quantile(0.5),
    }
    slow = owners(lane[at]) | {"step": numbers[at], "seconds": seconds[at], "usual_s": usual}
    return binned, _furthest(slow, "seconds")


def _learning(stages: Mapping[Stage, SelectedSteps], between: Column) -> dict[Stage, Rows]:
    """Bins of loss and accuracy, of the lowest rank that knows a loss: of a pipeline, the last stage does."""
    tables = [steps.every for steps in stages.values()]
    since = _attempt_starts(tables)
    ranks = [every["rank"][every.known("loss")] for every in tables]
    ranks = [each for each in ranks if len(each)] or [every["rank"] for every in tables if every.rows]
    lowest = min((int(each.min()) for each in ranks), default=0)
    bins = {}
    for stage, steps in stages.items():
        rows = steps.every.where(np.asarray(steps.every["rank"] == lowest))
        place = _place(rows["step"], BINS)[0] if stage is Stage.TRAIN else rows["epoch"].astype(np.int64)
        began = np.array([since[int(attempt)] for attempt in rows["attempt"]], dtype=np.float64)
        numbers = _Groups(place, rows["step"])
        ends = _Groups(place, began + rows["start_s"] + rows["wall_s"])
        loss, known = rows["loss"], rows.known("loss")
        middles = numbers.quantile(0.5)
        # A validation point is a whole epoch, so its line has no gaps.
        gaps = _after_gap(numbers.keys, middles, between if stage is Stage.TRAIN else between[:0])
        bins[stage] = {
            "step": middles,
            "after_gap": gaps,
            "epoch": numbers.mean(rows["epoch"]),
            "at_s": ends.quantile(1.0),
            "loss": numbers.mean(loss, np.isfinite(loss)),
            "top1": numbers.mean(rows["top1"]),
            "topn": numbers.mean(rows["topn"]),
            "not_finite": numbers.sum((known & ~np.isfinite(loss)).astype(np.int64)),
        }
    return bins


def _attempt_starts(tables: list[Columns]) -> dict[int, float]:
    """Seconds to add to each attempt's clock so that it starts no earlier than the previous attempt ended."""
    starts: dict[int, float] = {}
    ended = before = 0.0
    for attempt in sorted({int(number) for every in tables for number in np.unique(every["attempt"])}):
        here = [every.where(np.asarray(every["attempt"] == attempt)) for every in tables]
        began = min(float(rows["start_s"].min()) for rows in here if rows.rows)
        before += max(0.0, ended - began)
        ended = max(float((rows["start_s"] + rows["wall_s"]).max()) for rows in here if rows.rows)
        starts[attempt] = before
    return starts


def histogram(wall_s: Column) -> tuple[float, float, Whole]:
    """(low, high, counts) up to eight interquartile ranges; what lies beyond is in the last count."""
    q1, median, q3, most = np.quantile(wall_s, (0.25, 0.5, 0.75, 0.99))
    low = float(wall_s.min())
    high = float(min(most, median + max(8 * (q3 - q1), 0.02 * median)))
    bars = np.floor((wall_s - low) / (high - low) * HISTOGRAM_BARS) if high > low else np.zeros(len(wall_s))
    places = np.minimum(HISTOGRAM_BARS - 1, bars).astype(np.int64)
    return low, high, np.bincount(places, minlength=HISTOGRAM_BARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """A step of one rank, as it was stored; kernels only where it was traced."""

    step: int
    device: str
    start_s: float  # on the clock of its layers and kernels
    wall_s: float
    accounts: Mapping[Account, float]  # those that are known
    layers: tuple[LayerTime, ...]
    kernels: tuple[KernelTime, ...]


def typical_step(run: Run) -> OneStep | None:
    """The traced step nearest to the median of traced steps, else a step with layer times, else None."""
    for stage in Stage:
        steps = run.selected(stage)
        every = steps.every
        traced = kernel_traced(every)
        marked = every["instrumented"] & steps.counted
        marked = marked if marked.any() else every["instrumented"]
        for mask in (traced, marked):
            if mask.any():
                mask = mask & (every["rank"] == every["rank"][mask].min())
                walls = np.where(mask, every["wall_s"], np.nan)
                place = int(np.nanargmin(np.abs(walls - np.nanmedian(walls))))
                return _one_step(run, steps, place)
    return None


def _one_step(run: Run, steps: SelectedSteps, place: int) -> OneStep | None:
    row = steps.every.row(place)
    key = {name: row[name] for name in ("stage", "attempt", "step", "rank")}
    layers = [
        LayerTime(
            **key | {"stage": steps.stage},
            layer=layer,
            phase=Phase(phase),
            **values | {"how": How(values["how"])},
        )
        for (layer, phase), values in run.tables.layers[steps.stage].of_step(place)
        if phase in tuple(Phase) and values["how"] in tuple(How)
    ]
    if not layers:
        return None
    kernels: list[KernelTime] = []
    for group in run.stored("kernels").row_groups(steps=range(row["step"], row["step"] + 1)):
        at = np.flatnonzero(group.column("step").to_numpy() == row["step"])
        traced = schema.kernels.values(group.take(at))
        kernels += [kernel for kernel in traced if all(getattr(kernel, name) == key[name] for name in key)]
    return OneStep(
        step=row["step"],
        device=row["device"],
        start_s=row["start_s"],
        wall_s=row["wall_s"],
        accounts={account: row[account.column] for account in ACCOUNTS if row[account.column] is not None},
        layers=tuple(sorted(layers, key=lambda row: row.start_s)),
        kernels=tuple(kernels),
    )
