"""The order of exchanges, against closed forms and against a simulation with SimPy's own resources."""

import time

import numpy as np
import pytest
import simpy

from laptime.errors import PlanError
from laptime.simulate.exchange_order import (
    ServerLink,
    ValidationPause,
    WorkerPace,
    local,
    play,
    synchronous,
)

FREE = ServerLink(push_s=0.0, pull_s=0.0, apply_s=0.0)
EQUAL = WorkerPace(step_s=1.0)


def after_first_round(exchanges, worker=None):
    """Staleness while all workers train, from each one's second gradient on."""
    all_there = exchanges.at_s <= min(
        exchanges.at_s[exchanges.worker == number].max() for number in range(len(exchanges.workers))
    )
    chosen = all_there & (exchanges.step > 0)
    if worker is not None:
        chosen &= exchanges.worker == worker
    return exchanges.staleness[chosen]


# -- closed forms --------------------------------------------------------------------------------------------


def test_one_worker_computes_pushes_updates_and_pulls_one_after_the_other():
    played = play(
        [EQUAL], ServerLink(push_s=0.2, pull_s=0.3, apply_s=0.1), updates=10, staleness=None, seed=0
    )
    assert played.at_s == pytest.approx(1.3 + 1.6 * np.arange(10))
    assert played.seconds == pytest.approx(16.0)
    assert played.staleness.tolist() == [0] * 10
    assert played.workers[0].computing_s == pytest.approx(10.0)
    assert played.workers[0].waiting_s == pytest.approx(6.0)


@pytest.mark.parametrize("workers", [2, 7, 64])
def test_gradients_of_equal_workers_on_a_free_link_are_stale_by_all_others(workers):
    played = play([EQUAL] * workers, FREE, updates=20, staleness=None, seed=0)
    assert played.staleness[:workers].tolist() == list(range(workers))  # all began with version 0
    assert set(after_first_round(played).tolist()) == {workers - 1}
    assert played.staleness_percentile(95) == workers - 1
    assert played.seconds_per_update == pytest.approx(1 / workers)


@pytest.mark.parametrize("slow", ["push_s", "pull_s", "apply_s"])
def test_what_a_server_does_longest_limits_its_updates(slow):
    link = ServerLink(**({"push_s": 0.01, "pull_s": 0.01, "apply_s": 0.01} | {slow: 0.5}))
    played = play([EQUAL] * 16, link, updates=50, staleness=None, seed=0)
    assert np.diff(played.at_s)[50:-50] == pytest.approx(0.5)
    assert set(after_first_round(played)[32:].tolist()) == {15}


def test_servers_share_what_an_exchange_occupies_and_a_workers_own_link_does_not_get_faster():
    link = {"push_s": 0.4, "pull_s": 0.4, "apply_s": 0.4}
    four = play([EQUAL], ServerLink(**link, servers=4), updates=5, staleness=None, seed=0)
    assert four.seconds == pytest.approx(5 * 1.3)
    own = ServerLink(**link, servers=4, worker_push_s=0.4, worker_pull_s=0.3)
    assert play([EQUAL], own, updates=5, staleness=None, seed=0).seconds == pytest.approx(5 * 1.8)


def test_a_straggler_at_a_third_of_the_speed_reads_three_rounds_of_the_others():
    workers = [WorkerPace(step_s=1.0, slowdown=3.0), *[EQUAL] * 4]
    played = play(workers, FREE, updates=300, staleness=None, seed=0)
    assert after_first_round(played, worker=0).mean() == pytest.approx(3 * 4, abs=0.2)
    assert after_first_round(played, worker=1).mean() == pytest.approx(3 + 1 / 3, abs=0.02)
    assert played.workers[1].waiting_s == 0.0  # nobody waits for it
    assert played.seconds == pytest.approx(900.0)


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_nobody_gets_further_ahead_of_the_straggler_than_the_bound(bound):
    workers = [WorkerPace(step_s=1.0, slowdown=3.0), *[EQUAL] * 4]
    played = play(workers, FREE, updates=100, staleness=bound, seed=0)
    done = np.zeros(5, dtype=int)
    ahead = []
    for update in played:
        done[update.worker] += 1
        ahead.append(done.max() - done.min())
    assert max(ahead) == bound + 1  # one more is applied, and then waits for its answer
    # Fast workers end a bound's worth of their own steps before the straggler at most.
    last_s = [played.at_s[played.worker == worker].max() for worker in range(5)]
    assert last_s[0] == pytest.approx(300.0)
    assert min(last_s[1:]) >= 300.0 - 3 * (bound + 1)
    assert played.workers[1].waiting_s > 150


def test_a_bound_that_is_never_met_changes_nothing():
    workers = [WorkerPace(step_s=1.0, spread=0.2)] * 6
    link = ServerLink(push_s=0.01, pull_s=0.02, apply_s=0.01)
    free = play(workers, link, updates=40, staleness=None, seed=3)
    bound = play(workers, link, updates=40, staleness=40, seed=3)
    assert bound.at_s.tolist() == free.at_s.tolist()
    assert bound.read_version.tolist() == free.read_version.tolist()


def test_a_bound_of_zero_is_synchronous():
    workers = [WorkerPace(step_s=1.0, spread=0.3)] * 5
    link = ServerLink(push_s=0.0, pull_s=0.0, apply_s=0.25)
    served = play(workers, link, updates=30, staleness=0, seed=1)
    waited = synchronous(workers, exchange_s=0.25, updates=30, seed=1)
    assert served.at_s == pytest.approx(waited.at_s)
    assert served.version.tolist() == waited.version.tolist()
    assert served.read_version.tolist() == waited.read_version.tolist()
    assert served.mean_staleness == waited.mean_staleness == 0.0
    for one, other in zip(served.workers, waited.workers, strict=True):
        assert one.waiting_s == pytest.approx(other.waiting_s)


def test_in_a_round_all_gradients_come_before_the_update():
    link = ServerLink(push_s=0.1, pull_s=0.2, apply_s=0.05)
    played = play([EQUAL] * 4, link, updates=1, staleness=0, seed=0)
    assert played.at_s == pytest.approx([1.45] * 4)
    assert sorted(played.answered_s) == pytest.approx([1.65, 1.85, 2.05, 2.25])


def test_a_synchronous_step_is_the_slowest_workers_and_the_exchange():
    workers = [EQUAL, WorkerPace(step_s=1.0, slowdown=3.0)]
    played = synchronous(workers, exchange_s=0.5, updates=4, seed=0)
    assert played.at_s == pytest.approx(np.repeat([3.5, 7.0, 10.5, 14.0], 2))
    assert played.seconds_per_update == pytest.approx(3.5)
    assert [each.waiting_s for each in played.workers] == pytest.approx([10.0, 2.0])


def test_local_workers_wait_only_where_they_average():
    workers = [EQUAL, WorkerPace(step_s=1.0, slowdown=3.0)]
    played = local(workers, exchange_s=0.5, updates=5, average_every=2, seed=0)
    fast, slow = (played.at_s[played.worker == number] for number in (0, 1))
    assert fast == pytest.approx([1.0, 6.5, 7.5, 13.0, 14.0])
    assert slow == pytest.approx([3.0, 6.5, 9.5, 13.0, 16.0])
    assert played.staleness.tolist() == [0] * 10
    assert np.all(np.diff(played.at_s) >= 0)
    assert played.workers[1].waiting_s == pytest.approx(1.0)


def test_validations_stop_all_workers_or_with_servers_the_first():
    pause = ValidationPause(every=2, seconds=10.0)
    served = play([EQUAL] * 2, FREE, updates=4, staleness=None, seed=0, validation=pause)
    assert served.at_s[served.worker == 0].tolist() == [1.0, 2.0, 13.0, 14.0]
    assert served.at_s[served.worker == 1].tolist() == [1.0, 2.0, 3.0, 4.0]
    workers = [EQUAL, WorkerPace(step_s=2.0)]
    waited = synchronous(workers, exchange_s=0.0, updates=4, seed=0, validation=pause)
    assert waited.at_s[::2].tolist() == [2.0, 4.0, 16.0, 18.0]
    alone = local(workers, exchange_s=0.0, updates=4, average_every=4, seed=0, validation=pause)
    assert alone.at_s[alone.worker == 0].tolist() == [1.0, 2.0, 15.0, 18.0]


# -- against SimPy's resources -------------------------------------------------------------------------------


def by_resources(workers, link, updates, bound):
    """The same rules with a queue for each direction and for the processor; equal times in any order."""
    env = simpy.Environment()
    up, processor, down = (simpy.Resource(env) for _ in range(3))
    version, done, waiting, rows = [0], [0] * len(workers), [], []

    def occupy(resource, seconds):
        with resource.request() as turn:
            yield turn
            yield env.timeout(seconds)

    def work(number, pace):
        read = 0
        for compute_s in pace.times(updates, np.random.default_rng([5, number])):
            yield env.timeout(compute_s)
            if not pace.near:
                yield from occupy(up, link.push_s)
            yield from occupy(processor, link.apply_s)
            version[0] += 1
            done[number] += 1
            rows.append((env.now, number, read, version[0]))
            for event in waiting:
                event.succeed()
            waiting.clear()
            while bound is not None and done[number] - min(done) > bound:
                waiting.append(env.event())
                yield waiting[-1]
            read = version[0]
            if not pace.near:
                yield from occupy(down, link.pull_s)

    for number, pace in enumerate(workers):
        env.process(work(number, pace))
    env.run()
    return rows


@pytest.mark.parametrize("bound", [None, 1, 4])
@pytest.mark.parametrize("near", [0, 3])  # workers on the server's host, whose gradients overtake the others
@pytest.mark.parametrize(
    "link",
    [
        ServerLink(push_s=0.01, pull_s=0.013, apply_s=0.004),
        ServerLink(push_s=0.2, pull_s=0.1, apply_s=0.05),
        ServerLink(push_s=0.05, pull_s=0.3, apply_s=0.01),
        ServerLink(push_s=0.02, pull_s=0.03, apply_s=0.25),
    ],
)
def test_queues_that_are_computed_are_those_that_are_played(link, near, bound):
    workers = [
        WorkerPace(step_s=1.0, spread=0.3, slowdown=3.0 if n == 2 else 1.0, near=n < near) for n in range(8)
    ]
    played = play(workers, link, updates=40, staleness=bound, seed=5)
    rows = by_resources(workers, link, 40, bound)
    assert played.at_s == pytest.approx([row[0] for row in rows])
    assert played.worker.tolist() == [row[1] for row in rows]
    assert played.read_version.tolist() == [row[2] for row in rows]
    assert played.version.tolist() == [row[3] for row in rows]


# -- times ---------------------------------------------------------------------------------------------------


def test_times_have_the_mean_and_the_spread_that_are_asked_for():
    times = np.array(list(WorkerPace(step_s=2.0, spread=0.25).times(200_000, np.random.default_rng(0))))
    assert times.mean() == pytest.approx(2.0, rel=0.01)
    assert times.std() / times.mean() == pytest.approx(0.25, rel=0.01)
    assert times.min() > 0


def test_a_seed_gives_the_same_order_again_and_another_seed_another():
    workers = [WorkerPace(step_s=1.0, spread=0.2)] * 8
    one, same, other = (play(workers, FREE, updates=20, staleness=None, seed=seed) for seed in (1, 1, 2))
    assert one.at_s.tolist() == same.at_s.tolist()
    assert one.worker.tolist() == same.worker.tolist()
    assert one.worker.tolist() != other.worker.tolist()


def test_a_workers_time_is_all_accounted_for():
    workers = [WorkerPace(step_s=1.0, spread=0.2)] * 3
    link = ServerLink(push_s=0.2, pull_s=0.1, apply_s=0.1)
    played = play(
        workers,
        link,
        updates=20,
        staleness=None,
        seed=1,
        validation=ValidationPause(every=20, seconds=7.0),
    )
    for number, spent in enumerate(played.workers):
        end_s = played.answered_s[played.worker == number].max() + (7.0 if number == 0 else 0.0)
        assert spent.computing_s + spent.waiting_s + spent.validating_s == pytest.approx(end_s)


def test_half_a_million_exchanges_take_seconds_of_processor_time():
    workers = [WorkerPace(step_s=0.1, spread=0.1)] * 512
    link = ServerLink(push_s=1e-4, pull_s=1e-4, apply_s=5e-5)
    began = time.process_time()
    played = play(workers, link, updates=1000, staleness=None, seed=1)
    assert len(played) == 512_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: WorkerPace(step_s=0.0),
        lambda: WorkerPace(step_s=1.0, spread=-0.1),
        lambda: ServerLink(push_s=-1.0, pull_s=0.0, apply_s=0.0),
        lambda: ServerLink(push_s=0.0, pull_s=0.0, apply_s=0.0, servers=0),
        lambda: ValidationPause(every=0, seconds=1.0),
        lambda: play([], FREE, updates=1, staleness=None, seed=0),
        lambda: play([EQUAL], FREE, updates=1, staleness=-1, seed=0),
        lambda: local([EQUAL], exchange_s=0.0, updates=1, average_every=0, seed=0),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(wrong):
    with pytest.raises(PlanError) as refused:
        wrong()
    assert "\n" not in str(refused.value)
