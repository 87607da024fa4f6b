"""How step time and loss went over a run: at most sixty numbers of each, and a line of small blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.model import Stage
from laptime.runs import Run

BINS = 60
LEVELS = "▁▂▃▄▅▆▇█"
UNKNOWN = "×"
_FLAT = 0.25  # a line that stays within this share of its median should not look like mountains
_HIGHEST = 3.0  # times the median; what is higher is cut there, or one spike would flatten all the rest

Samples = NDArray[np.float64]
Line = Sequence[float | None]


def course(run: Run, stage: Stage, wall_s: Samples) -> dict[str, Any]:
    """`step_s` and `largest_s`, the median and the largest step of each bin, and `loss` where it was logged.

    `wall_s` are the steps that step times are told from, in the order they were taken; a bin holds as many as
    the next. A loss is of every step, the mean over the ranks; null is a bin without a finite one.
    """
    bins = _bins(wall_s[np.isfinite(wall_s)])
    return {
        "steps": int(wall_s.size),
        "step_s": [float(np.median(one)) for one in bins],
        "largest_s": [float(one.max()) for one in bins],
        "loss": _loss(run, stage),
    }


def _loss(run: Run, stage: Stage) -> dict[str, Any] | None:
    every = run.selected(stage).every
    every = every.where(every.known("loss"))
    if not every.rows:
        return None
    steps = every["attempt"].astype(np.int64) << 40 | every["step"].astype(np.int64)
    _, place = np.unique(steps, return_inverse=True)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        losses = np.bincount(place, every["loss"]) / np.bincount(place)
    means = [_finite_mean(one) for one in _bins(losses)]
    return {
        "bins": means,
        "first": means[0],
        "last": means[-1] if np.isfinite(losses[-1]) else None,  # a run that ends in NaN ends in NaN
        "steps": int(losses.size),
        "not_finite": int(np.count_nonzero(~np.isfinite(losses))),
    }


def _bins(values: Samples) -> list[Samples]:
    return np.array_split(values, min(BINS, values.size)) if values.size else []


def _finite_mean(values: Samples) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def shorter(values: Line, most: int) -> list[float | None]:
    """At most `most` numbers: the medians of neighbours; none where none of them is known."""
    places = np.array_split(np.arange(len(values)), min(most, len(values))) if values else []
    known = [[value for at in one if (value := values[at]) is not None] for one in places]
    return [float(np.median(one)) if one else None for one in known]


def blocks(values: Line, *, least_range: float = 0.0) -> str:
    """A block for each number, from the lowest to the highest; a cross where none is known.

    `least_range` is the least that the whole height stands for.
    """
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN * len(values)
    low, high = min(known), max(known)
    top = len(LEVELS) - 1
    short = max(0.0, least_range - (high - low)) / top
    low, high = low - short * (top // 2), high + short * (top - top // 2)  # flat is a level, not between two
    step = (high - low) / top or 1.0
    return "".join(UNKNOWN if value is None else LEVELS[round((value - low) / step)] for value in values)


def step_blocks(medians: Sequence[float], most: int) -> str:
    """Step times as blocks: flat where they are steady, and with spikes cut where they would flatten it."""
    if not medians:
        return ""
    middle = float(np.median(medians))
    cut = [min(one, _HIGHEST * middle) for one in medians]
    return blocks(shorter(cut, most), least_range=2 * _FLAT * middle)
