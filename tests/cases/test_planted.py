"""Sleeps that scripts take outside their networks: each belongs to the account that the definitions name."""

import statistics

import pytest

from laptime.model import ACCOUNTS, Account
from tests.cases.harness import Case, spent

HOST = (Account.HOST,)
HOST_OR_DATA = (Account.HOST, Account.DATA_WAIT)


def assert_slept(ran: Case, *, times: int, seconds: float, accounts: tuple[Account, ...]) -> None:
    """These accounts hold all of the sleeps; in a typical step every other holds little next to one."""
    held = spent(ran.steps, *accounts)
    assert held >= 0.98 * times * seconds, ran.books()
    for stage in {step.stage for step in ran.steps}:
        for account in set(ACCOUNTS) - set(accounts):
            typical = statistics.median(spent([step], account) for step in ran.of(stage))
            assert typical < 0.2 * seconds, f"{account} holds too much\n{ran.books()}"


@pytest.mark.parametrize("name", ["average_kept", "average_validated"])
def test_work_after_a_validation_batch_is_the_validation_steps_host_time(name, case):
    """All 24 hold theirs, so none has joined the training step that follows."""
    ran = case(name)
    host = [step.host_s for step in ran.of("validation")]
    assert len(host) == 24, ran.books()
    assert min(host) >= 0.98 * 0.02, ran.books()
    assert_slept(ran, times=24, seconds=0.02, accounts=HOST)


def test_plotting_after_an_evaluation_is_host_time(case):
    assert_slept(case("no_eval"), times=8, seconds=0.03, accounts=HOST)


def test_a_generators_work_is_the_hosts_or_waiting_for_data(case):
    """The first of 28 batches is made before there is a network to record."""
    assert_slept(case("generator"), times=27, seconds=0.01, accounts=HOST_OR_DATA)


def test_fetching_a_batch_before_backward_is_no_loss(case):
    assert_slept(case("fetch_before_backward"), times=12, seconds=0.02, accounts=HOST_OR_DATA)


def test_an_environments_moves_are_host_time(case):
    """Five moves a step."""
    assert_slept(case("reinforcement"), times=6, seconds=5 * 0.02, accounts=HOST)


@pytest.mark.parametrize(("phase", "seconds"), [("forward", 0.003), ("backward", 0.006)])
def test_a_slow_autograd_function_is_charged_to_the_layers_that_apply_it(phase, seconds, case):
    typical = {
        layer: statistics.median(times)
        for layer, times in case("custom_function").layer_seconds(phase).items()
    }
    for layer in ("0", "3"):
        assert typical[layer] >= 0.98 * seconds, typical
    assert all(typical[layer] < 0.2 * seconds for layer in typical.keys() - {"0", "3"}), typical


def test_updates_inside_backward_are_update_time(case):
    """Each of six optimizers steps from a hook: their time is in no layer's backward."""
    ran = case("update_in_backward")
    updates, backward = ran.layer_seconds("update"), ran.layer_seconds("backward")
    for layer in ("0", "2", "4"):
        assert min(updates[layer]) > 0, updates
    for layers, account in ((updates, Account.UPDATE), (backward, Account.BACKWARD)):
        charged = sum(sum(times) for times in layers.values())
        assert charged == pytest.approx(spent(ran.steps, account)), f"{account}\n{ran.books()}"
