"""Two samples of the same quantity: their ratio, how far it can be trusted, and a verdict.

With several runs on a side the run is the unit: runs of the same code differ by more than their steps do.
With one run each there is nothing but steps, and consecutive steps are alike, so they are drawn in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.model.statistics import CONFIDENCE, NOISY_SPREAD, Noise, summarize

Samples = NDArray[np.float64]
Rated = tuple[Samples, Samples]  # amounts, and the seconds that each took

RESAMPLES = 1000
BATCHES = 200
RUN_TO_RUN = 0.02  # two processes that run the same code on a quiet machine differ by this much
WIDE = 1.2  # an interval whose ends are further apart says too little to call two things equal

# 97.5 % points of Student's t (Abramowitz and Stegun, table 26.10), between which 1/degrees is interpolated.
_T_DEGREES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60, math.inf])
_T_975 = np.array(
    [
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
        2.228,
        2.179,
        2.131,
        2.086,
        2.042,
        2.0,
        1.96,
    ]
)


class Verdict(StrEnum):
    """What can be said of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"  # that could be told from noise
    NOISY = "too noisy"  # to judge


class Unit(StrEnum):
    """What the interval is over."""

    RUNS = "runs"
    STEPS = "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B against A. `a` and `b` are medians or rates; over several runs, the geometric means of theirs.

    The interval is of 95 %. NaN where a side is empty or zero.
    """

    a: float
    b: float
    ratio: float
    low: float
    high: float
    unit: Unit
    verdict: Verdict | None
    noise_a: Noise
    noise_b: Noise
    count_a: int  # runs, or steps
    count_b: int


def compare_runs(a: Sequence[Samples], b: Sequence[Samples], *, more_is_better: bool = False) -> Comparison:
    """Compare two groups of runs, each run a series of samples in the order they were taken."""
    a, b = [_known(one) for one in a], [_known(one) for one in b]
    a, b = [one for one in a if one.size], [one for one in b if one.size]
    if len(a) > 1 or len(b) > 1:
        medians = [np.array([float(np.median(one)) for one in side]) for side in (a, b)]
        return _over_runs(medians, _facts(a, b), more_is_better)
    steps = [side[0] if side else np.empty(0) for side in (a, b)]
    centres = [float(np.median(one)) if one.size else math.nan for one in steps]
    rng = np.random.default_rng(0)
    drawn = [block_medians(one, rng) for one in steps] if all(one > 0 for one in centres) else steps
    return _over_steps(centres, drawn, steps, _facts(a, b), more_is_better)


def compare_rates(a: Sequence[Rated], b: Sequence[Rated]) -> Comparison:
    """Compare two groups of runs by what they did a second: the whole amount over the whole time of a run.

    More is better. Steps that do not say their amount are left out on both sides of the fraction.
    """
    a, b = ([_counted(*one) for one in side] for side in (a, b))
    a, b = ([one for one in side if one[0].size] for side in (a, b))
    noise = _facts(*([amount / seconds for amount, seconds in side] for side in (a, b)))
    if len(a) > 1 or len(b) > 1:
        return _over_runs([np.array([rate(*one) for one in side]) for side in (a, b)], noise, True)
    steps = [side[0][0] / side[0][1] if side else np.empty(0) for side in (a, b)]
    rates = [rate(*side[0]) if side else math.nan for side in (a, b)]
    rng = np.random.default_rng(0)
    drawn = [block_rates(*side[0], rng) for side in (a, b)] if all(one > 0 for one in rates) else steps
    return _over_steps(rates, drawn, steps, noise, True)


def rate(amount: Samples, seconds: Samples) -> float:
    """The whole amount over the whole time, of the steps that say both; NaN where none does."""
    amount, seconds = _counted(amount, seconds)
    return float(amount.sum() / seconds.sum()) if amount.size else math.nan


def _counted(amount: Samples, seconds: Samples) -> Rated:
    known = ~np.isnan(amount) & (seconds > 0)
    return amount[known], seconds[known]


def _known(samples: Samples) -> Samples:
    values = np.asarray(samples, dtype=np.float64)
    return values[~np.isnan(values)]


def _facts(a: Sequence[Samples], b: Sequence[Samples]) -> dict[str, Any]:
    return {"noise_a": _noise(a), "noise_b": _noise(b)}


def _noise(runs: Sequence[Samples]) -> Noise:
    """The worst verdict among the runs."""
    order = (Noise.STEADY, Noise.NOISY, Noise.UNRELIABLE, Noise.TOO_FEW, Noise.NONE)
    return max((summarize(one).noise for one in runs), key=order.index, default=Noise.NONE)


# -- runs ------------------------------------------------------------------------------------------


def _over_runs(centres: Sequence[Samples], noise: Mapping[str, Any], more_is_better: bool) -> Comparison:
    """Welch's t interval on the logarithms of one number per run, such as its median.

    One run against several is held against their spread, as one more of them would be (Crawford and Howell
    1998): the interval is wide, and rightly so.
    """
    noise = {**noise, "count_a": centres[0].size, "count_b": centres[1].size}
    if any(group.size == 0 or (group <= 0).any() for group in centres):
        means = [float(np.mean(group)) if group.size else math.nan for group in centres]
        return _unknown(means[0], means[1], Unit.RUNS, noise)
    logs = [np.log(group) for group in centres]
    centre = float(logs[1].mean() - logs[0].mean())
    spread, degrees = _welch(*logs)
    reach = _t(degrees) * spread
    low, high = math.exp(centre - reach), math.exp(centre + reach)
    verdict = _verdict(low, high, 0.0, more_is_better)
    return Comparison(
        a=float(np.exp(logs[0].mean())),
        b=float(np.exp(logs[1].mean())),
        ratio=math.exp(centre),
        low=low,
        high=high,
        unit=Unit.RUNS,
        verdict=verdict,
        **noise,
    )


def _welch(a: Samples, b: Samples) -> tuple[float, float]:
    """Standard error of the difference of two means, and its degrees of freedom."""
    if min(a.size, b.size) == 1:
        many = a if a.size > 1 else b
        return float(many.std(ddof=1)) * math.sqrt(1 + 1 / many.size), many.size - 1.0
    parts = [float(group.var(ddof=1)) / group.size for group in (a, b)]
    total = sum(parts)
    if not total:
        return 0.0, float(a.size + b.size - 2)
    degrees = total**2 / sum(part**2 / (group.size - 1) for part, group in zip(parts, (a, b), strict=True))
    return math.sqrt(total), degrees


def _t(degrees: float) -> float:
    """The 97.5 % point of Student's t."""
    places = 1.0 / _T_DEGREES
    return float(np.interp(1.0 / max(degrees, 1.0), places[::-1], _T_975[::-1]))


# -- steps -----------------------------------------------------------------------------------------


def _over_steps(
    centres: Sequence[float],
    drawn: Sequence[Samples],
    steps: Sequence[Samples],
    noise: Mapping[str, Any],
    more_is_better: bool,
) -> Comparison:
    """A bootstrap of B / A: of each side its number, the same of resampled series, and its steps."""
    noise = {**noise, "count_a": steps[0].size, "count_b": steps[1].size}
    if not all(centre > 0 for centre in centres):
        return _unknown(centres[0], centres[1], Unit.STEPS, noise)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = drawn[1] / drawn[0]
    ratios[~np.isfinite(ratios)] = np.nan  # a resampled median of 0: an account that few steps have
    low, high = np.nanquantile(ratios, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    spread = max(summarize(one).spread for one in steps)
    verdict = _verdict(float(low), float(high), max(RUN_TO_RUN, spread / 2), more_is_better)
    few = Noise.TOO_FEW in (noise["noise_a"], noise["noise_b"])
    return Comparison(
        a=centres[0],
        b=centres[1],
        ratio=centres[1] / centres[0],
        low=float(low),
        high=float(high),
        unit=Unit.STEPS,
        verdict=Verdict.NOISY if few else verdict,
        **noise,
    )


def block_medians(samples: Samples, rng: np.random.Generator, resamples: int = RESAMPLES) -> Samples:
    """Medians of resampled series, drawn in circular blocks of consecutive steps (Politis and Romano 1992).

    A long series is first made one of batch medians, whose mean has the spread of the whole median: that
    takes milliseconds where drawing a million steps a thousand times would take minutes.
    """
    size = samples.size // BATCHES
    if size < 3:
        return np.asarray(np.median(_draws(samples, rng, resamples), axis=1))
    batches = np.median(samples[: size * BATCHES].reshape(BATCHES, size), axis=1)
    means = _draws(batches, rng, resamples).mean(axis=1)
    return np.asarray(means * (np.median(samples) / batches.mean()))


def block_rates(
    amount: Samples, seconds: Samples, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Samples:
    """Rates of resampled series: whole amount over whole time, drawn in the same blocks as medians are."""
    size = seconds.size // BATCHES
    if size >= 3:
        amount, seconds = (one[: size * BATCHES].reshape(BATCHES, size).sum(1) for one in (amount, seconds))
    places = _places(amount / seconds, rng, resamples)
    return np.asarray(amount[places].sum(axis=1) / seconds[places].sum(axis=1))


def _draws(samples: Samples, rng: np.random.Generator, resamples: int) -> Samples:
    """One resampled series per row."""
    return np.asarray(samples[_places(samples, rng, resamples)])


def _places(samples: Samples, rng: np.random.Generator, resamples: int) -> NDArray[np.int64]:
    """Which of the samples each resampled series has: blocks of neighbours, a series per row."""
    count, length = samples.size, block_length(samples)
    starts = rng.integers(0, count, (resamples, -(-count // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count


def block_length(samples: Samples) -> int:
    """Steps in a block: at least the cube root of their number, and as far as they are correlated."""
    count = int(samples.size)
    least: int = max(1, round(math.pow(count, 1 / 3)))
    if count < 8:
        return least
    most = max(least, count // 4)
    bound = 2.0 / math.sqrt(count)
    centred = np.argsort(np.argsort(samples)) - (count - 1) / 2  # ranks: one slow step is no correlation
    variance = float(centred @ centred)
    for lag in range(1, most):
        if float(centred[:-lag] @ centred[lag:]) < bound * variance:
            return max(least, lag)
    return most


# -- verdicts --------------------------------------------------------------------------------------


def _verdict(low: float, high: float, margin: float, more_is_better: bool) -> Verdict:
    """A difference counts where the whole interval lies beyond 1, and by more than the margin."""
    if low > 1.0 + margin or high < 1.0 / (1.0 + margin):
        higher = low > 1.0
        return Verdict.FASTER if higher is more_is_better else Verdict.SLOWER
    return Verdict.NOISY if high / low > WIDE or margin > NOISY_SPREAD else Verdict.SAME


def _unknown(a: float, b: float, unit: Unit, noise: Mapping[str, Any]) -> Comparison:
    nan = math.nan
    return Comparison(a=a, b=b, ratio=nan, low=nan, high=nan, unit=unit, verdict=None, **noise)
