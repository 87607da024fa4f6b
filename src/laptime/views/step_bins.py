"""A run condensed for drawing: a few hundred bins of its steps, however many there are, and its outliers.

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

from laptime.model import ACCOUNTS, Stage
from laptime.runs import Run
from laptime.runs.select import Columns, Mask, SelectedLayers, SelectedSteps

BINS = 300
MOST_POINTS = 60_000  # of layer times: layers x phases x ranks x bins, some 400 kB in a page
OUTLIERS = 120
_COARSE = 60  # bins in which outliers are detected, of at least ten steps each
_FAR = 3.0  # interquartile ranges above the third quartile of its bin
_BARS = 80  # of the histogram

Column = NDArray[Any]
Whole = NDArray[np.int64]
Rows = dict[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Columns by name, a row for each bin; seconds as they were stored."""

    stage: Stage  # of layers and spread: training, or validation where there is nothing else
    steps: Rows  # stage, rank, step (the bin's middle), wall quartiles, means of the accounts
    slow_steps: Rows  # outliers: stage, rank, step, wall_s, usual_s, traced
    layers: Rows  # layer, phase, rank, step, median seconds
    slow_layers: Rows  # outliers: layer, phase, rank, step, seconds, usual_s
    learning: Rows  # stage, step, epoch, seconds since the start, loss, top1, topn, lost (NaN losses)
    marked: Rows  # marked (True or False), quantiles of the wall time of such training steps
    spread: Rows  # wall_s bin centres and counts


def digest(run: Run) -> Digest:
    """What the figures of a run are drawn from."""
    stages = {stage: run.selected(stage) for stage in Stage}
    stage = Stage.TRAIN if stages[Stage.TRAIN].every.rows else Stage.VALIDATION
    numbers = {stage: np.unique(steps.every["step"]) for stage, steps in stages.items()}
    between = {Stage.TRAIN: numbers[Stage.VALIDATION], Stage.VALIDATION: numbers[Stage.TRAIN]}
    layers, slow_layers = _layers(run.selected_layers(stage), between[stage])
    return Digest(
        stage=stage,
        steps=_joined([_step_bins(steps, between[stage]) for stage, steps in stages.items()]),
        slow_steps=_furthest(_joined([_slow_steps(steps) for steps in stages.values()]), "wall_s"),
        layers=layers,
        slow_layers=slow_layers,
        learning=_learning(stages, between[Stage.TRAIN]),
        marked=_marked(stages[Stage.TRAIN]),
        spread=_spread(stages[stage]["wall_s"]),
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


def _place(steps: Column, bins: int) -> tuple[Whole, int]:
    """The bin of each step, and how many there are; a short run has one for every step."""
    if not len(steps):
        return np.zeros(0, dtype=np.int64), 1
    low, whole = int(steps.min()), int(steps.max()) - int(steps.min()) + 1
    most = whole if whole <= 2 * bins else bins
    return (steps.astype(np.int64) - low) * most // whole, most


def _coarse(steps: Column) -> tuple[Whole, int]:
    """Bins of at least ten steps."""
    if not len(steps):
        return np.zeros(0, dtype=np.int64), 1
    low, whole = int(steps.min()), int(steps.max()) - int(steps.min()) + 1
    most = max(1, min(_COARSE, whole // 10))
    return (steps.astype(np.int64) - low) * most // whole, most


def _step_bins(steps: SelectedSteps, between: Column) -> Rows:
    every = steps.every
    place, bins = _place(every["step"], BINS)
    key = every["rank"].astype(np.int64) * bins + place
    walls, numbers = _Groups(key, every["wall_s"]), _Groups(key, every["step"])
    ranks, middles = walls.keys // bins, numbers.quantile(0.5)
    return {
        "stage": np.full(len(ranks), steps.stage.value, dtype=object),
        "rank": ranks,
        "device": np.array([steps.devices[int(rank)] for rank in ranks], dtype=object),
        "bin": walls.keys % bins,
        "step": middles,
        "after_gap": _after_gap(walls.keys, middles, between),
        "count": walls.counts,
        "mean_s": walls.mean(every["wall_s"]),
        **{f"{name}_s": walls.quantile(share) for name, share in _QUARTILES.items()},
        **{account.column: walls.mean(every[account.column]) for account in ACCOUNTS},
    }


_QUARTILES = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "max": 1.0}


def _after_gap(keys: Whole, steps: Column, between: Column) -> Mask:
    """Which bins are separated from the previous bin by steps of the other stage."""
    passed = np.searchsorted(between, steps)
    apart = (np.diff(keys) > 1) & (np.diff(passed) > 0)
    return np.append(False, apart) if len(steps) else np.zeros(0, dtype=np.bool_)


def _slow_steps(steps: SelectedSteps) -> Rows:
    every = steps.every
    place, bins = _coarse(every["step"])
    at, usual = _far(every["rank"].astype(np.int64) * bins + place, every["wall_s"])
    return {
        "stage": np.full(len(at), steps.stage.value, dtype=object),
        "rank": every["rank"][at],
        "traced": ~np.isnan(every["idle_s"][at]),
        "step": every["step"][at],
        "wall_s": every["wall_s"][at],
        "usual_s": usual,
    }


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
    coarse, count = _coarse(numbers)
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


def _learning(stages: Mapping[Stage, SelectedSteps], between: Column) -> Rows:
    """Bins of loss and accuracy, of the lowest rank: all ranks log the same training."""
    since = _attempt_starts([steps.every for steps in stages.values()])
    lowest = min((int(steps.every["rank"].min()) for steps in stages.values() if steps.every.rows), default=0)
    stage_rows = []
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
        stage_rows.append(
            {
                "stage": np.full(len(numbers.keys), stage.value, dtype=object),
                "bin": numbers.keys,
                "step": middles,
                "after_gap": gaps,
                "epoch": numbers.mean(rows["epoch"]),
                "at_s": ends.quantile(1.0),
                "loss": numbers.mean(loss, np.isfinite(loss)),
                "top1": numbers.mean(rows["top1"]),
                "topn": numbers.mean(rows["topn"]),
                "lost": numbers.sum((known & ~np.isfinite(loss)).astype(np.int64)),
                "count": numbers.counts,
            }
        )
    return _joined(stage_rows)


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


def _marked(steps: SelectedSteps) -> Rows:
    """Quantiles of training steps with and without layer marks, for a box each."""
    groups = _Groups(steps["instrumented"].astype(np.int64), steps["wall_s"])
    shares = {"low": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "high": 0.95}
    return {
        "marked": groups.keys.astype(np.bool_),
        "count": groups.counts,
        "mean_s": groups.mean(steps["wall_s"]),
        **{f"{name}_s": groups.quantile(share) for name, share in shares.items()},
    }


def _spread(wall_s: Column) -> Rows:
    """A histogram up to eight interquartile ranges; what lies beyond is counted in the last bar."""
    if not len(wall_s):
        return {name: np.zeros(0) for name in ("bin", "lo", "hi", "count")}
    q1, median, q3, most = np.quantile(wall_s, (0.25, 0.5, 0.75, 0.99))
    low = float(wall_s.min())
    high = float(min(most, median + max(8 * (q3 - q1), 0.02 * median)))
    bars = np.floor((wall_s - low) / (high - low) * _BARS) if high > low else np.zeros(len(wall_s))
    bins, counts = np.unique(np.minimum(_BARS - 1, bars), return_counts=True)
    return {
        "bin": bins,
        "lo": np.full(len(bins), low),
        "hi": np.full(len(bins), high),
        "count": counts,
    }


def _joined(parts: list[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
