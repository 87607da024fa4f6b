import dataclasses

import pytest

from laptime.errors import UnbalancedStep
from laptime.model import ACCOUNTS, Account, Step


def test_a_step_that_does_not_balance_cannot_be_constructed():
    with pytest.raises(UnbalancedStep, match=r"add up to 0\.5"):
        Step(step=0, start_s=0.0, wall_s=1.0, forward_s=0.5)


def test_a_negative_account_cannot_be_constructed():
    with pytest.raises(UnbalancedStep, match="host is negative"):
        Step(step=0, start_s=0.0, wall_s=1.0, forward_s=1.5, host_s=-0.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_account_that_is_not_finite_cannot_be_constructed(value):
    with pytest.raises(UnbalancedStep, match="not a finite number"):
        Step(step=0, start_s=0.0, wall_s=1.0, forward_s=value)


def test_replacing_an_account_checks_the_balance_again():
    step = Step(step=0, start_s=0.0, wall_s=1.0, forward_s=1.0)
    with pytest.raises(UnbalancedStep):
        dataclasses.replace(step, forward_s=0.9)


def test_what_is_left_over_is_published_as_unexplained():
    step = Step.closed(step=3, start_s=0.0, wall_s=1.0, seconds={Account.FORWARD: 0.6, Account.HOST: 0.3})
    assert step.unexplained_s == pytest.approx(0.1)
    assert sum(value or 0.0 for value in step.accounts().values()) == pytest.approx(step.wall_s)


def test_accounts_that_exceed_the_wall_time_are_refused():
    with pytest.raises(UnbalancedStep, match="unexplained is negative"):
        Step.closed(step=3, start_s=0.0, wall_s=1.0, seconds={Account.FORWARD: 1.2})


def test_idle_is_unknown_rather_than_zero_without_a_trace():
    assert Step(step=0, start_s=0.0, wall_s=0.0).idle_s is None


def test_every_account_has_a_column():
    step = Step(step=0, start_s=0.0, wall_s=0.0)
    assert tuple(step.accounts()) == ACCOUNTS
