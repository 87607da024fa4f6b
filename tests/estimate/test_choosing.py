"""The cheapest within some hours and the fastest under a price, among what fits and has a price."""

import math

import pytest

from laptime.errors import PredictionError
from laptime.estimate.choose_device import choose, money
from laptime.model.prediction import Prediction


def cheapest_within(found, hours):
    return choose(found, within=hours)


def fastest_under(found, dollars):
    return choose(found, under=dollars)


def made(device, hours, price=1.0, *, memory=8, batch=32, gpus=1, spread=0.1, **change):
    """A training of 100 steps that takes so many hours."""
    step_s = hours * 36
    values = {
        "network": "net", "device": device, "batch": batch, "precision": "fp32", "mode": "training",
        "step_s": step_s, "interval_s": (step_s * (1 - spread), step_s * (1 + spread)), "busy_s": step_s,
        "host_s": 0.0, "phases": {}, "layer_times": (), "bottleneck": "", "uncovered": {},
        "peak_memory_bytes": 0, "reserved_memory_bytes": 4 * 2**30, "basis": "",
        "device_memory_bytes": None if memory is None else memory * 2**30, "gpus": gpus,
        "samples": 100 * batch * gpus, "epochs": 1, "price_per_hour": price,
    }  # fmt: skip
    return Prediction(**{**values, **change})


SLOW, MIDDLE, FAST = made("slow", 10, 0.5), made("middle", 4, 2.0), made("fast", 1, 12.0)


def test_the_cheapest_that_is_in_time_is_chosen_and_the_next_named():
    choice = cheapest_within([FAST, SLOW, MIDDLE], 5)
    assert (choice.chosen, choice.runner_up) == (MIDDLE, FAST)
    assert "middle with batch 32: 4.00 h, $8.00; next is fast" in choice.why
    assert cheapest_within([FAST, SLOW, MIDDLE], 20).chosen is SLOW


def test_the_fastest_that_is_affordable_is_chosen():
    choice = fastest_under([FAST, SLOW, MIDDLE], 10)
    assert (choice.chosen, choice.runner_up) == (MIDDLE, SLOW)
    assert fastest_under([FAST, SLOW, MIDDLE], 12).chosen is FAST


def test_what_differs_by_rounding_alone_goes_by_price_and_then_by_name():
    dear, cheap, same = made("a", 4, 2.0), made("c", 4 * (1 + 1e-12), 1.0), made("b", 4 * (1 + 2e-12), 1.0)
    choice = fastest_under([dear, cheap, same], 10)
    assert (choice.chosen, choice.runner_up) == (same, cheap)
    assert sorted([dear, cheap, same], key=choice.rank) == [same, cheap, dear]
    assert cheapest_within([cheap, same], 5).chosen is same
    assert cheapest_within([made("a", 3e-3 * (1 + 1e-12), 1.0), made("b", 2e-3, 1.5)], 5).chosen.device == "b"


def test_several_gpus_cost_as_many_times_the_price():
    four = made("middle", 2, 2.0, gpus=4)
    assert fastest_under([MIDDLE, four], 15).chosen is MIDDLE
    assert fastest_under([MIDDLE, four], 16).chosen is four
    assert "4 × middle" in fastest_under([MIDDLE, four], 16).why


def test_the_runner_up_is_another_device_if_there_is_one():
    again = made("slow", 9, 0.5, batch=64)
    choice = cheapest_within([SLOW, again, MIDDLE], 20)
    assert (choice.chosen, choice.runner_up) == (again, MIDDLE)
    assert cheapest_within([SLOW, again], 20).runner_up is SLOW
    assert "no other qualifies" in cheapest_within([SLOW], 20).why


def test_where_none_is_in_time_the_fastest_comes_closest_and_where_none_is_affordable_the_cheapest():
    choice = cheapest_within([SLOW, MIDDLE, FAST], 0.5)
    assert (choice.chosen, choice.closest) == (None, FAST)
    assert "none: fast with batch 32 comes closest with 1.00 h" in choice.why
    assert fastest_under([SLOW, MIDDLE, FAST], 1).closest is SLOW


def test_what_does_not_fit_or_has_no_price_is_left_out_and_told():
    small, blank = made("small", 1, 0.1, memory=2), made("blank", 1, 0.1, memory=None)
    free = made("free", 1, None)
    choice = cheapest_within([small, blank, free, SLOW], 20)
    assert choice.chosen is SLOW
    assert choice.considered == 1
    told = "; ".join(choice.left_out)
    for words in ("small with batch 32, needs 4.0 of 2.0 GiB", "memory is not known (blank)", "price: free"):
        assert words in told
    assert "nothing that fits has a price" in cheapest_within([small, blank, free], 20).why


def test_an_interval_that_reaches_beyond_the_limit_is_told():
    assert "would be 4.40 h, beyond the limit" in cheapest_within([MIDDLE], 4.2).why
    assert "would be $8.80, beyond the limit" in fastest_under([MIDDLE], 8.5).why
    assert "beyond" not in cheapest_within([MIDDLE], 4.5).why


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_a_number_above_0(limit):
    for limited in (cheapest_within, fastest_under):
        with pytest.raises(PredictionError, match="above 0"):
            limited([SLOW], limit)


def test_a_choice_needs_the_whole_training():
    with pytest.raises(PredictionError, match="samples and epochs"):
        cheapest_within([made("slow", 1, epochs=None)], 3)


def test_both_limits_hold_at_once_and_the_cheapest_of_them_is_taken():
    choice = choose([FAST, SLOW, MIDDLE], within=5, under=10)
    assert (choice.chosen, choice.runner_up, choice.by) == (MIDDLE, None, "dollars")
    assert choice.wanted == "the cheapest within 5 h and under $10"
    assert [choice.qualifies(one) for one in (FAST, SLOW, MIDDLE)] == [False, False, True]
    assert (
        choose([FAST, SLOW], within=5, under=10).closest is FAST
    )  # 1.2 times the price, not 2 times the hours


def test_what_qualifies_ranks_first_and_of_equal_ones_the_cheaper():
    dear = made("dear", 4, 9.0)
    choice = fastest_under([dear, SLOW, MIDDLE], 40)
    assert sorted([dear, SLOW, MIDDLE], key=choice.rank) == [MIDDLE, dear, SLOW]
    assert choice.chosen is MIDDLE
    small = made("small", 1, 0.1, memory=2)
    assert sorted([small, FAST, MIDDLE], key=cheapest_within([small, FAST, MIDDLE], 2).rank) == [
        FAST,
        MIDDLE,
        small,
    ]


def test_short_trainings_have_minutes_and_cents_that_count():
    assert "15.0 min, $0.025" in cheapest_within([made("slow", 0.25, 0.1)], 1).why
    assert "3.6 s, $0.00010" in cheapest_within([made("slow", 0.001, 0.1)], 1).why


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(12.5, "$12.50"), (0.0123, "$0.012"), (0, "$0.00"), (-3, "$-3.00"), (math.nan, "$nan")],
)
def test_any_number_of_dollars_is_written(dollars, text):
    assert money(dollars) == text
