"""Two samples of the same quantity: their ratio, its 95 % interval, and a verdict.

With several runs on a side the interval is over runs: runs of the same code differ by more than their steps
do. With one run each it is over steps, which are resampled in blocks, since consecutive steps are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.model.statistics import CONFIDENCE, Noise, summarize

Samples = NDArray[np.float64]
Rated = tuple[Samples, Samples]  # amounts, and the seconds that each took

RESAMPLES = 1000
BATCHES = 200
# Of two processes that run the same code. Where runs vary by 1 %, this margin calls 2 to 5 % of such pairs
# different, 2 % would call 9 to 12 % (simulated, tests/model/test_comparison.py).
RUN_TO_RUN = 0.03
DRIFT = 0.005  # of a machine between two groups of runs, which their spread does not show
EQUIVALENT = 0.05  # what differs by less than this is called equal
_WORSE = (Noise.STEADY, Noise.NOISY, Noise.UNRELIABLE, Noise.TOO_FEW, Noise.NONE)

# 97.5 % points of Student's t (Abramowitz and Stegun, table 26.10), between which 1/degrees is interpolated.
_T_DEGREES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60, math.inf])
_T_975 = np.array(
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.179, 2.131, 2.086, 2.042, 2,
     1.96]
)  # fmt: skip


class Verdict(StrEnum):
    """What can be said of B against A. docs/method.md defines each word."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"
    CANNOT_TELL = "cannot tell"


class IntervalOver(StrEnum):
    """What an interval is over."""

    RUNS = "runs"
    STEPS = "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B against A. `a` and `b` are medians or rates; over several runs, the geometric means of theirs.

    The interval is of 95 %. NaN where a side is empty or zero.
    """

    a: float
    b: float
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    over: IntervalOver
    verdict: Verdict | None = None
    noise_a: Noise
    noise_b: Noise
    count_a: int  # runs, or steps
    count_b: int

    @property
    def known(self) -> bool:
        """Whether there is a ratio."""
        return not math.isnan(self.ratio)

    @property
    def difference(self) -> float:
        """B - A."""
        return self.b - self.a

    @property
    def largest(self) -> float:
        """The larger side; 0 where neither is known."""
        return max((side for side in (self.a, self.b) if not math.isnan(side)), default=0.0)

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        row = asdict(self) | {"difference": self.difference}
        return row | {"unit": row.pop("over")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A run's samples of one quantity, the number that stands for them, and that number when resampled."""

    samples: Samples
    centre: float
    resampled: Callable[[np.random.Generator], Samples]


def compare_runs(a: Sequence[Samples], b: Sequence[Samples]) -> Comparison:
    """Compare two groups of runs by their medians; a run is its samples in the order they were taken."""
    return _compare([_medians(run) for run in a], [_medians(run) for run in b], more_is_better=False)


def compare_rates(a: Sequence[Rated], b: Sequence[Rated]) -> Comparison:
    """Compare two groups of runs by what they did a second: the whole amount over the whole time of a run.

    More is better. Steps that do not say their amount are left out on both sides of the fraction.
    """
    return _compare([_rates(*run) for run in a], [_rates(*run) for run in b], more_is_better=True)


def rate(amount: Samples, seconds: Samples) -> float:
    """The whole amount over the whole time, of the steps that say both; NaN where none does."""
    return _rates(amount, seconds).centre


def verdict_of(low: float, high: float, margin: float, *, more_is_better: bool = False) -> Verdict:
    """What an interval of B / A says. `margin` is the run-to-run noise that the interval does not contain."""
    low, high = low / (1.0 + margin), high * (1.0 + margin)
    if low > 1.0 or high < 1.0:
        return Verdict.FASTER if (low > 1.0) is more_is_better else Verdict.SLOWER
    equal = low > 1.0 / (1.0 + EQUIVALENT) and high < 1.0 + EQUIVALENT
    return Verdict.SAME if equal else Verdict.CANNOT_TELL


def _medians(samples: Samples) -> _Measured:
    values = np.asarray(samples, dtype=np.float64)
    values = values[~np.isnan(values)]
    centre = float(np.median(values)) if values.size else math.nan
    return _Measured(samples=values, centre=centre, resampled=lambda rng: block_medians(values, rng))


def _rates(amount: Samples, seconds: Samples) -> _Measured:
    known = ~np.isnan(amount) & (seconds > 0)
    amount, seconds = amount[known], seconds[known]
    whole = float(amount.sum() / seconds.sum()) if amount.size else math.nan
    return _Measured(
        samples=amount / seconds, centre=whole, resampled=lambda rng: _block_rates(amount, seconds, rng)
    )


def _compare(a: Sequence[_Measured], b: Sequence[_Measured], *, more_is_better: bool) -> Comparison:
    a, b = ([run for run in side if run.samples.size] for side in (a, b))
    over_runs = max(len(a), len(b)) > 1
    centres = [geometric_mean([run.centre for run in side]) for side in (a, b)]
    seen = [[summarize(run.samples) for run in side] for side in (a, b)]
    # The worst among the runs.
    noise = [max((run.noise for run in side), key=_WORSE.index, default=Noise.NONE) for side in seen]
    ratio = low = high = math.nan
    verdict = None
    if all(side and all(run.centre > 0 for run in side) for side in (a, b)):
        ratio = centres[1] / centres[0]
        if over_runs:
            low, high = _over_runs(*(np.log([run.centre for run in side]) for side in (a, b)))
            margin = DRIFT
        else:
            low, high = _over_steps(a[0], b[0])
            margin = max(RUN_TO_RUN, *(run.spread / 2 for side in seen for run in side))
        verdict = verdict_of(low, high, margin, more_is_better=more_is_better)
        if not over_runs and Noise.TOO_FEW in noise:
            verdict = Verdict.CANNOT_TELL
    counts = [len(side) if over_runs else sum(run.samples.size for run in side) for side in (a, b)]
    return Comparison(
        a=centres[0],
        b=centres[1],
        ratio=ratio,
        low=low,
        high=high,
        over=IntervalOver.RUNS if over_runs else IntervalOver.STEPS,
        verdict=verdict,
        noise_a=noise[0],
        noise_b=noise[1],
        count_a=counts[0],
        count_b=counts[1],
    )


def geometric_mean(centres: Sequence[float]) -> float:
    """Of several runs, which are compared by ratios; the mean where one is 0, NaN where there are none."""
    if not centres:
        return math.nan
    return float(np.exp(np.mean(np.log(centres))) if min(centres) > 0 else np.mean(centres))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a geometric mean over runs, by Student's t; NaN where there is but one."""
    if len(values) < 2 or min(values) <= 0:
        return math.nan, math.nan
    logs = np.log(values)
    reach = _t_975(len(values) - 1.0) * float(logs.std(ddof=1)) / math.sqrt(len(values))
    return math.exp(float(logs.mean()) - reach), math.exp(float(logs.mean()) + reach)


def _t_975(degrees: float) -> float:
    """The 97.5 % point of Student's t."""
    places = 1.0 / _T_DEGREES
    return float(np.interp(1.0 / max(degrees, 1.0), places[::-1], _T_975[::-1]))


def _over_runs(a: Samples, b: Samples) -> tuple[float, float]:
    """Welch's t interval on the logarithms of one number per run, such as its median.

    A single run is held against the spread of the several, as one more of them would be (Crawford and Howell
    1998): the interval is wide, and rightly so.
    """
    if min(a.size, b.size) == 1:
        several = a if a.size > 1 else b
        error, degrees = float(several.std(ddof=1)) * math.sqrt(1 + 1 / several.size), several.size - 1.0
    else:
        parts = [float(group.var(ddof=1)) / group.size for group in (a, b)]
        error, degrees = math.sqrt(sum(parts)), float(a.size + b.size - 2)
        if error:
            degrees = sum(parts) ** 2 / sum(
                part**2 / (group.size - 1) for part, group in zip(parts, (a, b), strict=True)
            )
    reach = _t_975(degrees) * error
    centre = float(b.mean() - a.mean())
    return math.exp(centre - reach), math.exp(centre + reach)


def _over_steps(a: _Measured, b: _Measured) -> tuple[float, float]:
    """A bootstrap interval of B / A."""
    rng = np.random.default_rng(0)
    below, above = a.resampled(rng), b.resampled(rng)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / below
    ratios[~np.isfinite(ratios)] = np.nan  # a resampled median of 0: an account that few steps have
    low, high = np.nanquantile(ratios, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def block_medians(samples: Samples, rng: np.random.Generator) -> Samples:
    """Medians of resampled series, drawn in circular blocks of consecutive steps (Politis and Romano 1992).

    A long series is first made one of batch medians, whose mean has the spread of the whole median: that
    takes milliseconds where drawing a million steps a thousand times would take minutes.
    """
    size = samples.size // BATCHES
    if size < 3:
        return np.asarray(np.median(samples[_block_indices(samples, rng)], axis=1))
    batches = np.median(samples[: size * BATCHES].reshape(BATCHES, size), axis=1)
    means = batches[_block_indices(batches, rng)].mean(axis=1)
    return np.asarray(means * (np.median(samples) / batches.mean()))


def _block_rates(amount: Samples, seconds: Samples, rng: np.random.Generator) -> Samples:
    """Rates of resampled series: whole amount over whole time, drawn in the same blocks as medians are."""
    size = seconds.size // BATCHES
    if size >= 3:
        amount, seconds = (
            column[: size * BATCHES].reshape(BATCHES, size).sum(1) for column in (amount, seconds)
        )
    rows = _block_indices(amount / seconds, rng)
    return np.asarray(amount[rows].sum(axis=1) / seconds[rows].sum(axis=1))


def _block_indices(samples: Samples, rng: np.random.Generator) -> NDArray[np.int64]:
    """The indices of each resampled series, one per row: blocks of neighbouring samples."""
    count, length = samples.size, block_length(samples)
    starts = rng.integers(0, count, (RESAMPLES, -(-count // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count


def block_length(samples: Samples) -> int:
    """Steps in a block: as far as they are correlated, and at least the cube root of their number."""
    count = int(samples.size)
    least: int = max(1, round(math.pow(count, 1 / 3)))
    if count < 8:
        return least
    most = max(least, count // 4)
    bound = 2.0 / math.sqrt(count)
    centred = np.argsort(np.argsort(samples)) - (count - 1) / 2  # ranks: a single slow step is no correlation
    variance = float(centred @ centred)
    for lag in range(1, most):
        if float(centred[:-lag] @ centred[lag:]) < bound * variance:
            return max(least, lag)
    return most
