"""The budget: how many steps carry marks, from what marks cost."""

import pytest

from laptime.measure.budget import Budget


def test_the_budget_leaves_most_steps_bare_when_marks_are_dear():
    budget = Budget(0.02)
    drawn = 0
    for _ in range(2000):
        instrumented = budget.draw()
        drawn += instrumented
        budget.observe(1.10 if instrumented else 1.0, instrumented=instrumented)
    assert budget.share == pytest.approx(0.2, abs=0.02)
    assert drawn / 2000 == pytest.approx(0.2, abs=0.05)
    assert budget.overhead().ratio == pytest.approx(1.1)


def test_the_budget_marks_most_steps_when_marks_are_cheap():
    budget = Budget(0.02)
    for _ in range(500):
        instrumented = budget.draw()
        budget.observe(1.001 if instrumented else 1.0, instrumented=instrumented)
    assert budget.share == 0.9
