"""Median, quartiles, a bootstrap interval and a verdict on noise: every printed number knows its spread."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95


class Noise(StrEnum):
    """A verdict on how far a median can be trusted."""

    STEADY = "steady"
    NOISY = "noisy"
    UNRELIABLE = "unreliable"
    TOO_FEW = "too few"
    NONE = "none"


# Half of the samples lie within this share of the median. 3 % is what a quiet machine with the malloc
# settings of docs/method.md gives; past 15 % a difference of a few per cent cannot be seen at all.
STEADY_SPREAD = 0.03
NOISY_SPREAD = 0.15
FEWEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A sample in six numbers and a word. `low` and `high` bound the median with 95 % confidence."""

    count: int
    mean: float
    median: float
    q1: float
    q3: float
    low: float
    high: float
    noise: Noise

    @property
    def spread(self) -> float:
        """Interquartile range over the median; 0 where the median is 0."""
        return (self.q3 - self.q1) / self.median if self.median else 0.0


def summarize(samples: ArrayLike) -> Statistics:
    """Statistics of raw samples. NaN samples are left out; an empty sample gives NaN and `Noise.NONE`."""
    values = np.asarray(samples, dtype=np.float64).ravel()
    values = np.sort(values[~np.isnan(values)])
    count = int(values.size)
    if count == 0:
        nan = math.nan
        return Statistics(count=0, mean=nan, median=nan, q1=nan, q3=nan, low=nan, high=nan, noise=Noise.NONE)
    q1, median, q3 = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    noise = Noise.UNRELIABLE
    if count < FEWEST:
        noise = Noise.TOO_FEW
    elif q3 - q1 <= STEADY_SPREAD * abs(median):
        noise = Noise.STEADY
    elif q3 - q1 <= NOISY_SPREAD * abs(median):
        noise = Noise.NOISY
    low, high = bootstrap_ranks(count)
    return Statistics(
        count=count,
        mean=float(values.mean()),
        median=median,
        q1=q1,
        q3=q3,
        low=float(values[low]),
        high=float(values[high]),
        noise=noise,
    )


@lru_cache(maxsize=4096)
def bootstrap_ranks(count: int, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Ranks (from 0) of the order statistics that bound the bootstrap distribution of the median.

    A resampled median is at most x(k) exactly when at least half of the draws fall on x(1)…x(k), so its
    distribution is binomial (Efron 1979, section 3) and needs no resampling.
    """
    tail = (1.0 - confidence) / 2.0
    need = count // 2 + 1
    if count > 200:  # the normal limit is within one rank from here on
        reach = 1.96 * math.sqrt(count) / 2.0
        return max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach))

    def at_most(rank: int) -> float:  # P(at least `need` of `count` draws succeed)
        p = (rank + 1) / count
        draws = range(need, count + 1)
        return math.fsum(math.comb(count, hits) * p**hits * (1.0 - p) ** (count - hits) for hits in draws)

    low = bisect.bisect_right(range(count), tail, key=at_most)
    return low, min(count - 1, bisect.bisect_left(range(count), 1.0 - tail, key=at_most))


def ratio_interval(
    numerator: Sequence[float] | NDArray[np.float64],
    denominator: Sequence[float] | NDArray[np.float64],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Ratio of two medians with its 95 % bootstrap interval: (ratio, low, high).

    Fine for samples taken in turns in one process; it cannot repair samples taken at different times.
    """
    top = np.asarray(numerator, dtype=np.float64)
    bottom = np.asarray(denominator, dtype=np.float64)
    if not top.size or not bottom.size:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(seed)
    tops = np.median(top[rng.integers(0, top.size, (resamples, top.size))], axis=1)
    bottoms = np.median(bottom[rng.integers(0, bottom.size, (resamples, bottom.size))], axis=1)
    low, high = np.quantile(tops / bottoms, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(np.median(top) / np.median(bottom)), float(low), float(high)
