"""How step time and loss went over a run: at most sixty numbers of each, and a line of small blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laptime.runs.select import Columns, Samples, SelectedSteps, step_keys

BINS = 60
LEVELS = "▁▂▃▄▅▆▇█"
UNKNOWN = "×"
_FLAT = 0.25  # variation within this share of the median is drawn nearly flat
_HIGHEST = 3.0  # times the median; what is higher is cut there, or one spike would flatten all the rest

Line = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCourse:
    """The mean loss of each bin, over the ranks; None is a bin without a finite one."""

    bins: tuple[float | None, ...]
    first: float | None
    last: float | None  # of a run that ends in NaN, None
    steps: int
    not_finite: int  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a stage went: the median and the largest step of each bin, and the loss where it was logged."""

    steps: int
    step_s: tuple[float, ...]
    largest_s: tuple[float, ...]
    loss: LossCourse | None


def course(steps: SelectedSteps, wall_s: Samples) -> Course:
    """`wall_s` are the steps that count, in the order they were taken; a bin holds as many as the next.

    A loss is of every step.
    """
    bins = _bins(wall_s[np.isfinite(wall_s)])
    return Course(
        steps=int(wall_s.size),
        step_s=tuple(float(np.median(values)) for values in bins),
        largest_s=tuple(float(values.max()) for values in bins),
        loss=_loss(steps.every.where(steps.every.known("loss"))),
    )


def _loss(logged: Columns) -> LossCourse | None:
    if not logged.rows:
        return None
    _, place = np.unique(step_keys(logged), return_inverse=True)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        losses = np.bincount(place, logged["loss"]) / np.bincount(place)
    finite = [values[np.isfinite(values)] for values in _bins(losses)]
    means = tuple(float(values.mean()) if values.size else None for values in finite)
    return LossCourse(
        bins=means,
        first=means[0],
        last=means[-1] if np.isfinite(losses[-1]) else None,
        steps=int(losses.size),
        not_finite=int(np.count_nonzero(~np.isfinite(losses))),
    )


def _bins(values: Samples) -> list[Samples]:
    return np.array_split(values, min(BINS, values.size)) if values.size else []


def shorter(values: Line, most: int) -> list[float | None]:
    """At most `most` numbers: medians of neighbouring values; None where all of them are unknown."""
    places = np.array_split(np.arange(len(values)), min(most, len(values))) if values else []
    known = [[value for at in group if (value := values[at]) is not None] for group in places]
    return [float(np.median(group)) if group else None for group in known]


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
    """Step times as blocks; small variation is drawn flat and spikes are clipped."""
    if not medians:
        return ""
    middle = float(np.median(medians))
    cut = [min(median, _HIGHEST * middle) for median in medians]
    return blocks(shorter(cut, most), least_range=2 * _FLAT * middle)
