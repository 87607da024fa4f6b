"""Ranks that are asked to stop: all of them after the same step, and none of them waits for ever."""

import threading

import pytest
from torch.distributed import HashStore, PrefixStore

from laptime.training import stop_signals
from laptime.training.stop_signals import StopBarrier

STEPS = 2000


class Rank:
    """One of several ranks that wait for each other within every step, as for each other's gradients."""

    def __init__(self, rank, store, meeting):
        self.rank, self.ranks = rank, meeting.parties
        self._store, self._meeting = store, meeting
        self.taken = 0
        self.asked = threading.Event()

    def store(self, name, *, first):
        return PrefixStore(name, self._store)

    def train(self):
        agreed = StopBarrier(self)
        with agreed.open():
            for step in range(1, STEPS + 1):
                if not agreed.may_begin(step, asked=self.asked.is_set()):
                    return
                self._meeting.wait()
                self.taken = step


@pytest.mark.parametrize("asked", [[0], [2], [0, 1, 2]])
def test_all_ranks_stop_after_the_same_step_whichever_was_asked(asked, monkeypatch):
    monkeypatch.setattr(stop_signals, "LOOK_S", 0.001)
    meeting = threading.Barrier(3, timeout=20)
    store = HashStore()
    ranks = [Rank(number, store, meeting) for number in range(3)]
    for number in asked:
        ranks[number].asked.set()
    threads = [threading.Thread(target=rank.train) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert len({rank.taken for rank in ranks}) == 1
    assert ranks[0].taken < STEPS


def test_ranks_that_nobody_asks_take_every_step():
    meeting = threading.Barrier(2, timeout=20)
    store = HashStore()
    ranks = [Rank(number, store, meeting) for number in range(2)]
    threads = [threading.Thread(target=rank.train) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert [rank.taken for rank in ranks] == [STEPS, STEPS]
