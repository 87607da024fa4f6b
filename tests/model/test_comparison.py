import math

import numpy as np
import pytest

from laptime.model.comparison import (
    RUN_TO_RUN,
    IntervalOver,
    Verdict,
    block_length,
    block_medians,
    compare_rates,
    compare_runs,
    rate,
    verdict_of,
)


def steps(median, *, count=200, spread=0.01, seed=0):
    return median * (1 + spread * np.random.default_rng(seed).standard_normal(count))


def test_a_clear_difference_between_two_runs_is_a_verdict():
    found = compare_runs([steps(1.0)], [steps(1.2, seed=1)])
    assert found.verdict is Verdict.SLOWER
    assert found.over is IntervalOver.STEPS
    assert found.low < found.ratio < found.high
    assert compare_runs([steps(1.2)], [steps(1.0, seed=1)]).verdict is Verdict.FASTER


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
    assert found.over is IntervalOver.RUNS
    assert (found.count_a, found.count_b) == (4, 4)
    assert found.verdict is Verdict.SLOWER


def test_runs_that_scatter_cannot_be_told_apart_however_many_steps_they_have():
    a = [steps(1.0, count=5000), steps(1.6, count=5000), steps(0.8, count=5000)]
    b = [steps(1.1, count=5000), steps(0.9, count=5000), steps(1.7, count=5000)]
    assert compare_runs(a, b).verdict is Verdict.CANNOT_TELL


def test_the_interval_over_runs_is_welchs():
    a, b = [[math.exp(x)] for x in (0.0, 0.2, 0.1)], [[math.exp(x)] for x in (0.5, 0.7, 0.6)]
    found = compare_runs([np.array(x) for x in a], [np.array(x) for x in b])
    reach = 2.776 * math.sqrt(2 * 0.01 / 3)  # four degrees of freedom
    assert math.log(found.ratio) == pytest.approx(0.5)
    assert math.log(found.low) == pytest.approx(0.5 - reach, abs=1e-3)
    assert math.log(found.high) == pytest.approx(0.5 + reach, abs=1e-3)


def test_one_run_against_several_is_held_against_their_spread():
    several = [steps(1.0 + 0.01 * place, seed=place) for place in range(4)]
    assert compare_runs(several, [steps(1.02)]).verdict is Verdict.CANNOT_TELL
    assert compare_runs(several, [steps(2.0)]).verdict is Verdict.SLOWER


def test_a_few_steps_are_too_few():
    assert compare_runs([steps(1.0, count=4)], [steps(3.0, count=4)]).verdict is Verdict.CANNOT_TELL


def test_a_difference_within_the_noise_of_the_steps_cannot_be_told():
    noisy = compare_runs([steps(1.0, spread=0.1, count=2000)], [steps(1.04, spread=0.1, count=2000, seed=1)])
    assert noisy.low > 1.0
    assert noisy.verdict is Verdict.CANNOT_TELL


@pytest.mark.parametrize(
    ("interval", "margin", "verdict"),
    [
        ((1.063, 1.239), 0.07, Verdict.CANNOT_TELL),
        ((1.063, 1.239), 0.03, Verdict.SLOWER),
        ((0.99, 1.01), 0.03, Verdict.SAME),
        ((0.99, 1.01), 0.10, Verdict.CANNOT_TELL),
        ((0.90, 1.10), 0.0, Verdict.CANNOT_TELL),
        ((1.001, 1.002), 0.005, Verdict.SAME),
        ((0.80, 0.90), 0.03, Verdict.FASTER),
    ],
)
def test_an_interval_has_the_verdict_that_its_distance_from_one_allows(interval, margin, verdict):
    assert verdict_of(*interval, margin) is verdict
    turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}.get(verdict, verdict)
    assert verdict_of(*interval, margin, more_is_better=True) is turned
    assert verdict_of(1 / interval[1], 1 / interval[0], margin) is turned


def identical_run(rng):
    """Steps of the same code: runs vary by 1 %, steps by 3 %, slowly and at once; a few are much slower."""
    count = 100
    slow = np.convolve(rng.standard_normal(count + 19), np.ones(20) / math.sqrt(20), "valid")
    late = (rng.random(count) < 0.02) * rng.exponential(0.3, count)
    return math.exp(rng.normal(0, 0.01)) * (1 + 0.02 * rng.standard_normal(count) + 0.01 * slow + late)


@pytest.mark.parametrize(("runs", "comparisons"), [(1, 100), (2, 200), (3, 200), (5, 200)])
def test_identical_code_is_hardly_ever_called_faster_or_slower(runs, comparisons):
    rng = np.random.default_rng(runs)
    groups = [[[identical_run(rng) for _ in range(runs)] for _ in "ab"] for _ in range(comparisons)]
    verdicts = [compare_runs(*pair).verdict for pair in groups]
    wrong = sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts)
    assert wrong <= 0.05 * comparisons


def test_one_run_each_that_differ_by_less_than_run_to_run_noise_are_never_faster_or_slower():
    found = compare_runs([steps(1.0, count=5000)], [steps(1.0 + 0.9 * RUN_TO_RUN, count=5000, seed=1)])
    assert found.low > 1.0
    assert found.verdict is Verdict.CANNOT_TELL


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
    assert (found.over, found.verdict, found.count_a) == (IntervalOver.RUNS, Verdict.SLOWER, 3)
    assert compare_rates([], groups[0]).verdict is None
