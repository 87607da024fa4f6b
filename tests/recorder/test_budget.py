"""The budget: how many steps carry marks, from what marks cost; on a made-up machine, so nothing is timed."""

import math
import random

import pytest

from laptime.recorder.budget import Budget, MarkOverhead

MARKS = {True: 34, False: 10}


def steady(_: int, __: random.Random) -> float:
    return 1e-3


def noisy(_: int, chance: random.Random) -> float:
    """Half of the steps lie within a third of the median, and one in fifty takes ten times as long."""
    return 1e-3 * chance.lognormvariate(0.0, 0.25) * (10.0 if chance.random() < 0.02 else 1.0)


def drifting(number: int, chance: random.Random) -> float:
    """Twice as slow and back again, every few thousand steps: another program comes and goes."""
    return noisy(number, chance) * (1.5 + 0.5 * math.sin(number / 500))


def sinking(number: int, chance: random.Random) -> float:
    return noisy(number, chance) * max(1.0, 4.0 - number / 500)


def train(budget, walls, *, cost_s, steps=10_000, lag=512, seed=1):
    """The share of the time that marks took, and which steps had them. Books are closed `lag` steps late."""
    chance = random.Random(seed)
    bare_s, marked, open_books = 0.0, [], []
    for number in range(steps):
        instrumented = budget.draw(early=number in (1, 2))
        wall_s = walls(number, chance)
        bare_s += wall_s
        wall_s += cost_s * instrumented
        if number in (1, 2):
            budget.look_early(wall_s, marks=MARKS[instrumented], instrumented=instrumented)
        marked.append(instrumented)
        open_books.append((wall_s, instrumented))
        if len(open_books) == lag:
            for each_s, kind in open_books:
                budget.observe(each_s, instrumented=kind, marks=MARKS[kind])
            open_books.clear()
    return cost_s * sum(marked) / bare_s, marked


@pytest.mark.parametrize("walls", [steady, noisy, drifting, sinking])
@pytest.mark.parametrize("cost_s", [20e-6, 150e-6, 600e-6])
def test_a_whole_run_pays_no_more_than_its_budget(walls, cost_s):
    budget = Budget(0.02)
    budget.mark_s = 0.5e-6  # counted: 24 marks and the rest are 186 µs
    paid, marked = train(budget, walls, cost_s=cost_s)
    assert paid <= 0.02
    assert sum(marked[-2000:]) > 0  # no part of a run stays dark


def test_marks_that_cost_four_times_what_was_counted_are_found_out():
    budget = Budget(0.02)
    budget.mark_s = 0.5e-6
    paid, marked = train(budget, drifting, cost_s=800e-6, steps=8000)
    assert paid <= 0.02
    assert sum(marked) > 80


def test_a_short_run_has_layer_times_of_steps_that_are_not_its_first():
    budget = Budget(0.02)
    budget.mark_s = 0.5e-6
    _, marked = train(budget, steady, cost_s=200e-6, steps=20)
    assert marked[1:3] == [True, True]
    assert sum(marked) <= 4


def test_the_budget_leaves_most_steps_bare_when_marks_are_dear():
    budget = Budget(0.02)
    _, marked = train(budget, lambda *_: 1.0, cost_s=0.1, steps=4000, lag=1)
    assert budget.share == pytest.approx(0.2, abs=0.02)
    assert sum(marked) / 4000 == pytest.approx(0.2, abs=0.05)
    assert budget.overhead().ratio == pytest.approx(1.1)
    assert budget.paid()["paid"] == pytest.approx(0.02, abs=0.005)


def test_the_budget_marks_most_steps_when_marks_are_cheap():
    budget = Budget(0.02)
    train(budget, lambda *_: 1.0, cost_s=0.001, steps=500, lag=1)
    assert budget.share == 0.9


def test_noise_does_not_make_marks_of_long_steps_dear():
    budget = Budget(0.02)
    budget.mark_s = 1e-6
    _, marked = train(budget, lambda n, chance: 50 * noisy(n, chance), cost_s=200e-6, steps=300, lag=32)
    assert sum(marked) > 150


def test_a_cost_is_measured_beside_bare_neighbours_whatever_drifts():
    pairs = MarkOverhead()
    chance = random.Random(0)
    for number in range(4000):
        instrumented = chance.random() < (0.5 if number < 1000 else 0.01)  # most marks in the slow part
        wall_s = 5.0 if number < 1000 else 1.0
        pairs.take(wall_s * (1.1 if instrumented else 1.0), instrumented=instrumented)
    ratio, low, high = pairs.interval()
    assert ratio == low == high == pytest.approx(1.1)


def test_only_steps_of_one_kind_are_compared():
    pairs = MarkOverhead()
    for number in range(400):
        update = number % 4 == 3
        instrumented = number % 8 == 7  # always one with an update
        wall_s = 3.0 if update else 1.0
        pairs.take(wall_s * (1.1 if instrumented else 1.0), instrumented=instrumented, kind=update)
    assert pairs.interval()[0] == pytest.approx(1.1)


def test_a_cost_that_noise_hides_is_not_called_measured():
    budget = Budget(0.5)
    budget.mark_s = 1e-6
    chance = random.Random(0)
    for number in range(60):
        budget.observe(chance.choice((0.5, 3.0)), instrumented=number % 3 == 0, marks=MARKS[number % 3 == 0])
    found = budget.overhead()
    assert (found.how, found.ratio) == ("unknown", None)
    assert found.high - found.low > 0.2
    assert found.estimated == pytest.approx(1.0, abs=0.01)
    assert budget.paid()["paid_how"] == "estimated"


def test_marks_that_seem_to_save_time_are_not_believed():
    budget = Budget(0.5)
    for number in range(100):
        budget.observe(0.9 if number % 5 == 0 else 1.0, instrumented=number % 5 == 0)
    assert budget.overhead().how == "unknown"


def test_without_bare_steps_a_cost_is_counted():
    budget = Budget(0.02, every_step=True)
    budget.mark_s = 1e-6
    for _ in range(50):
        budget.observe(1e-3, instrumented=True, marks=34)
    found = budget.overhead()
    assert (found.how, found.bare_steps, found.pairs) == ("estimated", 0, 0)
    assert found.ratio == pytest.approx(1.034)
    assert budget.paid() == {"marked_share": 1.0, "paid": pytest.approx(0.034), "paid_how": "estimated"}
