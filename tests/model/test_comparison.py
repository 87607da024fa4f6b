import math

import numpy as np
import pytest

from laptime.model.comparison import (
    Unit,
    Verdict,
    block_length,
    block_medians,
    compare_rates,
    compare_runs,
    rate,
)


def steps(median, *, count=200, spread=0.01, seed=0):
    return median * (1 + spread * np.random.default_rng(seed).standard_normal(count))


def test_a_clear_difference_between_two_runs_is_a_verdict():
    found = compare_runs([steps(1.0)], [steps(1.2, seed=1)])
    assert found.verdict is Verdict.SLOWER
    assert found.unit is Unit.STEPS
    assert found.low < found.ratio < found.high
    assert compare_runs([steps(1.2)], [steps(1.0, seed=1)]).verdict is Verdict.FASTER


def test_more_samples_a_second_is_faster():
    assert compare_runs([steps(100)], [steps(130, seed=1)], more_is_better=True).verdict is Verdict.FASTER


def test_the_same_steps_are_no_difference():
    assert compare_runs([steps(1.0)], [steps(1.0, seed=1)]).verdict is Verdict.SAME


def test_two_processes_that_differ_by_one_per_cent_are_not_told_apart():
    found = compare_runs([steps(1.0, count=5000)], [steps(1.01, count=5000, seed=1)])
    assert found.low > 1.0
    assert found.verdict is Verdict.SAME


def test_several_runs_tell_one_per_cent_apart():
    a = [steps(1.0 + 0.001 * place, seed=place) for place in range(4)]
    b = [steps(1.01 + 0.001 * place, seed=place + 9) for place in range(4)]
    found = compare_runs(a, b)
    assert found.unit is Unit.RUNS
    assert (found.count_a, found.count_b) == (4, 4)
    assert found.verdict is Verdict.SLOWER


def test_runs_that_scatter_are_too_noisy_however_many_steps_they_have():
    a = [steps(1.0, count=5000), steps(1.6, count=5000), steps(0.8, count=5000)]
    b = [steps(1.1, count=5000), steps(0.9, count=5000), steps(1.7, count=5000)]
    assert compare_runs(a, b).verdict is Verdict.NOISY


def test_the_interval_over_runs_is_welchs():
    a, b = [[math.exp(x)] for x in (0.0, 0.2, 0.1)], [[math.exp(x)] for x in (0.5, 0.7, 0.6)]
    found = compare_runs([np.array(x) for x in a], [np.array(x) for x in b])
    reach = 2.776 * math.sqrt(2 * 0.01 / 3)  # four degrees of freedom
    assert math.log(found.ratio) == pytest.approx(0.5)
    assert math.log(found.low) == pytest.approx(0.5 - reach, abs=1e-3)
    assert math.log(found.high) == pytest.approx(0.5 + reach, abs=1e-3)


def test_one_run_against_several_is_held_against_their_spread():
    several = [steps(1.0 + 0.01 * place, seed=place) for place in range(4)]
    assert compare_runs(several, [steps(1.02)]).verdict is Verdict.SAME
    assert compare_runs(several, [steps(2.0)]).verdict is Verdict.SLOWER


def test_a_few_steps_are_too_few():
    assert compare_runs([steps(1.0, count=4)], [steps(3.0, count=4)]).verdict is Verdict.NOISY


def test_noise_widens_what_counts_as_a_difference():
    noisy = compare_runs([steps(1.0, spread=0.1, count=2000)], [steps(1.04, spread=0.1, count=2000, seed=1)])
    assert noisy.verdict is Verdict.SAME


@pytest.mark.parametrize("empty", [[], [np.empty(0)], [np.full(5, np.nan)], [np.zeros(9)]])
def test_nothing_or_zero_on_one_side_gives_no_ratio(empty):
    for found in (compare_runs([steps(1.0)], empty), compare_runs(empty, [steps(1.0)])):
        assert math.isnan(found.ratio)
        assert found.verdict is None


def test_correlated_steps_are_drawn_in_longer_blocks():
    rng = np.random.default_rng(0)
    slow = np.repeat(rng.standard_normal(40), 25)  # 25 steps alike
    assert block_length(rng.standard_normal(1000)) == 10
    assert block_length(slow) >= 20


def test_blocks_widen_the_interval_of_correlated_steps():
    rng = np.random.default_rng(0)
    alike = 10 + np.repeat(rng.standard_normal(20), 20)
    mixed = rng.permutation(alike)
    assert block_medians(alike, rng).std() > 2 * block_medians(mixed, rng).std()


def test_long_series_have_the_interval_of_the_median():
    rng = np.random.default_rng(0)
    samples = 10 + rng.standard_normal(20_000)
    expected = math.sqrt(math.pi / 2) / math.sqrt(20_000)  # of a normal sample's median
    assert block_medians(samples, rng).std() == pytest.approx(expected, rel=0.25)


def test_a_rate_is_the_whole_amount_over_the_whole_time():
    seconds = np.array([0.1, 0.1, 0.1, 0.7])
    assert rate(np.full(4, 10.0), seconds) == pytest.approx(40.0)
    assert rate(np.array([10.0, math.nan, 10.0, 10.0]), seconds) == pytest.approx(30 / 0.9)
    assert math.isnan(rate(np.full(4, math.nan), seconds))


@pytest.mark.parametrize("count", [40, 5000])
def test_rates_are_compared_as_they_are_shown(count):
    a, b = (steps(0.01, count=count), steps(0.008, count=count, seed=1))
    amount = np.full(count, 16.0)
    found = compare_rates([(amount, a)], [(amount, b)])
    assert found.a == pytest.approx(rate(amount, a))
    assert found.ratio == pytest.approx(rate(amount, b) / rate(amount, a))
    assert found.low < found.ratio < found.high
    assert found.verdict is Verdict.FASTER


def test_rates_of_several_runs_are_compared_over_runs():
    groups = [[(np.full(50, 8.0), steps(s, count=50, seed=i)) for i in range(3)] for s in (0.01, 0.02)]
    found = compare_rates(*groups)
    assert (found.unit, found.verdict, found.count_a) == (Unit.RUNS, Verdict.SLOWER, 3)
    assert compare_rates([], groups[0]).verdict is None
