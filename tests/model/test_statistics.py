import math

import numpy as np
import pytest

from laptime.model import Noise, ratio_interval, summarize
from laptime.model.statistics import bootstrap_ranks


def test_the_median_lies_inside_its_own_interval():
    samples = np.random.default_rng(1).lognormal(size=101)
    statistics = summarize(samples)
    assert statistics.low <= statistics.median <= statistics.high
    assert statistics.q1 <= statistics.median <= statistics.q3


def test_the_closed_form_agrees_with_actual_resampling():
    rng = np.random.default_rng(2)
    samples = np.sort(rng.normal(10, 1, size=51))
    medians = np.median(samples[rng.integers(0, 51, (20000, 51))], axis=1)
    low, high = np.quantile(medians, (0.025, 0.975), method="nearest")
    ranks = bootstrap_ranks(51)
    assert abs(np.searchsorted(samples, low) - ranks[0]) <= 1
    assert abs(np.searchsorted(samples, high) - ranks[1]) <= 1


@pytest.mark.parametrize("count", [200, 201])
def test_the_exact_and_the_normal_form_meet(count):
    low, high = bootstrap_ranks(count)
    assert low == pytest.approx(100 - 14, abs=2)
    assert high == pytest.approx(100 + 14, abs=2)


def test_the_interval_covers_the_true_median_about_95_percent_of_the_time():
    rng = np.random.default_rng(3)
    draws = [summarize(rng.normal(5, 1, size=40)) for _ in range(500)]
    covered = sum(s.low <= 5 <= s.high for s in draws) / 500
    assert 0.91 <= covered <= 0.99


def test_noise_verdicts_follow_the_spread():
    rng = np.random.default_rng(4)
    assert summarize(rng.normal(1, 0.005, 200)).noise is Noise.STEADY
    assert summarize(rng.normal(1, 0.06, 200)).noise is Noise.NOISY
    assert summarize(rng.normal(1, 0.4, 200)).noise is Noise.UNRELIABLE
    assert summarize([1.0, 1.0]).noise is Noise.TOO_FEW
    assert summarize([]).noise is Noise.NONE


def test_nan_samples_are_left_out_of_the_count():
    assert summarize([1.0, math.nan, 3.0]).count == 2


def test_a_ratio_of_medians_is_bounded_by_its_interval():
    rng = np.random.default_rng(5)
    ratio, low, high = ratio_interval(rng.normal(1.02, 0.01, 300), rng.normal(1.0, 0.01, 300))
    assert low < ratio < high
    assert low > 1.01
    assert high < 1.03


def test_a_ratio_of_nothing_is_nan():
    assert all(math.isnan(value) for value in ratio_interval([], [1.0]))
