"""Workers on shared processors: even shares, none more than it can use, as with time slices."""

import numpy as np
import pytest

from laptime.errors import PlanError
from laptime.simulate.exchange_order import ServerLink, ValidationPause, WorkerPace, local, play, synchronous
from laptime.simulate.shared_cores import Job, SharedCores

TWO = SharedCores(count=2)
FREE = ServerLink(push_s=0.0, pull_s=0.0, apply_s=0.0)
EQUAL = WorkerPace(step_s=1.0)


def test_four_equal_workers_take_twice_as_long_on_two_cores():
    assert TWO.ends([Job(seconds=1.0)] * 4) == pytest.approx([2.0] * 4)
    assert TWO.ends([Job(seconds=1.0)] * 2) == pytest.approx([1.0] * 2)


def test_who_is_ready_leaves_its_share_to_the_others():
    # Three on two cores at 2/3 each: the short one is ready at 1.5 s; the others have a core each then.
    assert TWO.ends([Job(seconds=1.0), Job(seconds=2.0), Job(seconds=2.0)]) == pytest.approx([1.5, 2.5, 2.5])


def test_a_slow_worker_leaves_what_it_cannot_use():
    rates = TWO.rates([Job(seconds=1.0, most=1 / 3), *[Job(seconds=1.0)] * 3])
    assert rates == pytest.approx([1 / 3, *[5 / 9] * 3])
    assert sum(rates) == pytest.approx(2.0)


def test_a_group_takes_a_share_for_each_rank():
    assert TWO.rates([Job(seconds=1.0, ranks=2), Job(seconds=1.0)]) == pytest.approx([2 / 3, 2 / 3])


def test_taking_turns_costs_only_where_cores_are_short():
    cores = SharedCores(count=2, turns=1.25)
    assert cores.ends([Job(seconds=1.0)] * 4) == pytest.approx([2.5] * 4)
    assert cores.ends([Job(seconds=1.0)] * 2) == pytest.approx([1.0] * 2)


def by_slices(jobs, cores, slice_s=1e-3):
    """The same by time slices that go round: when each is ready."""
    left = np.array([job.seconds for job in jobs])
    ends, at_s = np.zeros(len(jobs)), 0.0
    while (left > 0).any():
        waiting = [place for place in range(len(jobs)) if left[place] > 0]
        for place, rate in zip(waiting, cores.rates([jobs[place] for place in waiting]), strict=True):
            left[place] -= rate * slice_s
            if left[place] <= 0:
                ends[place] = at_s + slice_s
        at_s += slice_s
    return ends


def test_ends_are_those_of_time_slices():
    random = np.random.default_rng(0)
    jobs = [
        Job(seconds=float(seconds), most=0.4 if seconds < 1 else 1.0) for seconds in random.uniform(0.3, 3, 7)
    ]
    assert TWO.ends(jobs) == pytest.approx(by_slices(jobs, TWO), abs=0.01)


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_enough_cores_change_nothing_for_servers(bound):
    workers = [WorkerPace(step_s=1.0, spread=0.2, slowdown=3.0 if n == 1 else 1.0) for n in range(4)]
    link = ServerLink(push_s=0.1, pull_s=0.2, apply_s=0.05)
    pause = ValidationPause(every=5, seconds=2.0)
    alone = play(workers, link, updates=20, staleness=bound, seed=1, validation=pause)
    many = SharedCores(count=8)
    shared = play(workers, link, updates=20, staleness=bound, seed=1, validation=pause, cores=many)
    assert shared.at_s == pytest.approx(alone.at_s)
    assert shared.read_version.tolist() == alone.read_version.tolist()
    for one, other in zip(shared.workers, alone.workers, strict=True):
        assert one.waiting_s == pytest.approx(other.waiting_s, abs=1e-6)


def test_a_worker_that_waits_for_the_link_leaves_its_core_to_the_others():
    # One of three is near the server and computes alone while the others wait for 10 s exchanges.
    workers = [WorkerPace(step_s=1.0, near=True), EQUAL, EQUAL]
    link = ServerLink(push_s=5.0, pull_s=5.0, apply_s=0.0)
    made = play(workers, link, updates=10, staleness=None, seed=0, cores=SharedCores(count=1))
    near_s = np.diff(made.answered_s[made.worker == 0])
    assert np.median(near_s) == pytest.approx(1.0)
    assert near_s.max() == pytest.approx(2.0, abs=1.0)


def test_a_call_to_the_server_is_computed_by_one_rank_of_a_group():
    group = WorkerPace(step_s=1.0, ranks=2, call_s=0.5)
    made = play([group], FREE, updates=4, staleness=None, seed=0, cores=SharedCores(count=1))
    assert made.at_s == pytest.approx([2.5, 5.0, 7.5, 10.0])
    own = play([group], FREE, updates=4, staleness=None, seed=0)
    assert own.at_s == pytest.approx([1.5, 3.0, 4.5, 6.0])


def test_synchronous_steps_take_what_cores_allow():
    made = synchronous([EQUAL] * 4, exchange_s=0.5, updates=3, seed=0, cores=TWO)
    assert made.at_s[::4] == pytest.approx([2.5, 5.0, 7.5])
    slow = [*[EQUAL] * 3, WorkerPace(step_s=1.0, slowdown=3.0)]
    # The slow one needs 3 s whatever the others do, who are ready after 1.8 s.
    assert synchronous(slow, exchange_s=0.0, updates=1, seed=0, cores=TWO).seconds == pytest.approx(3.0)


def test_local_workers_share_cores_between_two_averages():
    made = local([EQUAL] * 4, exchange_s=0.5, updates=4, average_every=2, seed=0, cores=TWO)
    assert made.at_s[made.worker == 0] == pytest.approx([2.0, 4.5, 6.5, 9.0])
    pause = ValidationPause(every=2, seconds=1.0)
    judged = local(
        [EQUAL] * 4, exchange_s=0.5, updates=4, average_every=4, seed=0, validation=pause, cores=TWO
    )
    assert judged.at_s[judged.worker == 0] == pytest.approx([2.0, 4.0, 8.0, 10.5])


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 2, "turns": 0.5}, {"count": 1.5}])
def test_impossible_cores_are_refused(wrong):
    with pytest.raises(PlanError, match="give 1 or more"):
        SharedCores(**wrong)
