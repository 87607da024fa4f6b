"""The harness, on a clock that is told the time: a known delay gives the known ratio."""

from collections.abc import Iterable, Iterator

import pytest
from benchmarks.harness import (
    Block,
    Size,
    paired_ratio,
    run_block,
    run_rounds,
    samples,
    turns,
    unpaired_ratio,
)


class FakeTime:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Work:
    """Steps of one second, on a machine that grows slower by `drift` at every step."""

    def __init__(self, time, drift=0.0):
        self.time, self.drift, self.steps_run, self.waits = time, drift, 0, 0
        self.batch = "batch"

    def step(self, batch):
        assert batch == "batch"
        self.time.now_s += 1.0 + self.drift * self.steps_run
        self.steps_run += 1

    def synchronize(self):
        self.waits += 1


class Delay:
    """An instrument that takes its time after each step, and much more to attach, to detach and at first."""

    def __init__(self, name, time, delay=0.0):
        self.name, self.time, self.delay, self.attached = name, time, delay, False

    def attach(self):
        self.attached = True
        self.time.now_s += 100.0

    def detach(self):
        self.attached = False
        self.time.now_s += 100.0

    def each(self, batches: Iterable[str]) -> Iterator[str]:
        for index, batch in enumerate(batches):
            yield batch
            self.time.now_s += self.delay if index else 50.0


SIZE = Size(warmup=2, steps=5)


def test_a_block_times_its_steps_and_nothing_around_them():
    time = FakeTime()
    block = run_block(Work(time), Delay("slow", time, 0.05), SIZE, now=time)
    assert block.steps == 5
    assert block.seconds == pytest.approx(5 * 1.05)
    assert block.step_s == pytest.approx([1.05] * 5)


def test_the_device_is_waited_for_around_a_block_and_never_inside():
    time = FakeTime()
    work = Work(time)
    run_block(work, Delay("bare", time), Size(warmup=2, steps=100), now=time)
    assert work.waits == 2


def test_an_instrument_is_detached_when_a_step_fails():
    time = FakeTime()
    work, variant = Work(time), Delay("slow", time)
    work.batch = "something else"
    with pytest.raises(AssertionError):
        run_block(work, variant, SIZE, now=time)
    assert not variant.attached


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.05, 2.45])
def test_a_known_delay_gives_the_known_ratio(delay):
    time = FakeTime()
    work = Work(time)
    variants = [Delay("bare", time), Delay("slow", time, delay)]
    blocks = run_rounds(
        lambda variant, index: run_block(work, variant, SIZE, index=index, now=time),
        variants,
        rounds=7,
        fewest=1,
        until=0.0,
    )
    found = paired_ratio(blocks, "slow")
    assert found.rounds == 7
    assert (found.ratio, found.low, found.high) == pytest.approx((1 + delay,) * 3)


def test_a_linear_drift_of_the_machine_cancels_between_a_round_and_its_mirror_image():
    time = FakeTime()
    work = Work(time, drift=0.002)
    variants = [Delay("bare", time), Delay("slow", time), Delay("third", time)]
    blocks = run_rounds(
        lambda variant, index: run_block(work, variant, SIZE, index=index, now=time),
        variants,
        rounds=12,
        fewest=1,
        until=0.0,
    )
    found = paired_ratio(blocks, "slow")
    assert found.ratio == pytest.approx(1.0, abs=0.003)
    assert found.low < 1.0 < found.high


def test_every_second_round_is_the_mirror_image_of_the_one_before_it():
    variants = [Delay(name, FakeTime()) for name in "abc"]
    orders = ["".join(one.name for one in turns(variants, index)) for index in range(6)]
    assert orders == ["abc", "cba", "bca", "acb", "cab", "bac"]


def test_rounds_go_on_while_another_one_fits_into_the_time():
    time = FakeTime()

    def block(variant, index):
        time.now_s += 10.0
        return Block(variant=variant.name, round=index, steps=1, seconds=1.0)

    variants = [Delay("bare", time)]
    assert len(run_rounds(block, variants, rounds=None, fewest=2, until=55.0, now=time)) == 5
    assert len(run_rounds(block, variants, rounds=None, fewest=2, until=0.0, now=time)) == 2


def test_blocks_of_different_length_are_compared_by_their_mean_step():
    blocks = [
        Block(variant="bare", round=0, steps=10, seconds=10.0),
        Block(variant="slow", round=0, steps=4, seconds=5.0),
    ]
    assert paired_ratio(blocks, "slow").ratio == pytest.approx(1.25)


def test_single_steps_are_the_samples_where_they_were_timed():
    timed = Block(variant="bare", round=0, steps=2, seconds=3.0, step_s=(1.0, 2.0))
    whole = Block(variant="bare", round=1, steps=2, seconds=8.0)
    assert samples([timed, whole]) == [1.0, 2.0, 4.0]


def test_what_is_left_after_detaching_compares_steps_before_and_after():
    before = [Block(variant="bare", round=0, steps=4, seconds=4.0, step_s=(1.0,) * 4)]
    after = [Block(variant="bare", round=0, steps=4, seconds=4.4, step_s=(1.1,) * 4)]
    found = unpaired_ratio(after, before)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
