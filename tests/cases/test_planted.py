"""Sleeps that scripts take outside their networks: each belongs to the account that the definitions name."""

import pytest

from laptime.record import ACCOUNTS, Account
from tests.cases.harness import Case, spent

HOST = (Account.HOST,)
HOST_OR_DATA = (Account.HOST, Account.DATA_WAIT)


def assert_slept(ran: Case, seconds: float, accounts: tuple[Account, ...]) -> None:
    """These accounts hold what was slept; every other holds little next to it."""
    held = spent(ran.steps, *accounts)
    assert held >= 0.98 * seconds, ran.books()
    for account in ACCOUNTS:
        if account not in accounts:
            held = spent(ran.steps, account)
            assert held < 0.2 * seconds, f"{account} holds too much\n{ran.books()}"


@pytest.mark.parametrize("name", ["average_kept", "average_validated"])
def test_work_after_a_validation_batch_is_the_validation_steps_host_time(name, case):
    ran = case(name)
    host = [step.host_s for step in ran.of("validation")]
    assert len(host) == 24, ran.books()
    assert min(host) >= 0.98 * 0.02, ran.books()
    assert_slept(ran, 24 * 0.02, HOST)
    host_while_training = spent(ran.of("train"), Account.HOST)
    assert host_while_training < 0.2 * 24 * 0.02, ran.books()


def test_plotting_after_an_evaluation_is_host_time(case):
    assert_slept(case("no_eval"), 8 * 0.03, HOST)


def test_a_generators_work_is_the_hosts_or_waiting_for_data(case):
    """The first of 28 batches is made before there is a network to record."""
    assert_slept(case("generator"), 27 * 0.01, HOST_OR_DATA)


def test_fetching_a_batch_before_backward_is_no_loss(case):
    assert_slept(case("fetch_before_backward"), 12 * 0.02, HOST_OR_DATA)


def test_an_environments_moves_are_host_time(case):
    assert_slept(case("reinforcement"), 6 * 10 * 0.01, HOST)


@pytest.mark.parametrize(("phase", "seconds"), [("forward", 0.003), ("backward", 0.006)])
def test_a_slow_autograd_function_is_charged_to_the_layers_that_apply_it(phase, seconds, case):
    held = case("custom_function").layer_seconds(phase)
    planted = 16 * seconds
    for layer in ("0", "3"):
        assert held[layer] >= 0.98 * planted, held
    assert all(held[layer] < 0.2 * planted for layer in held.keys() - {"0", "3"}), held


def test_updates_inside_backward_are_update_time(case):
    """Each of six optimizers steps from a hook: their time is in no layer's backward."""
    ran = case("update_in_backward")
    updates, backward = ran.layer_seconds("update"), ran.layer_seconds("backward")
    for layer in ("0", "2", "4"):
        assert updates[layer] > 0, updates
    assert sum(updates.values()) == pytest.approx(spent(ran.steps, Account.UPDATE)), ran.books()
    assert sum(backward.values()) == pytest.approx(spent(ran.steps, Account.BACKWARD)), ran.books()
