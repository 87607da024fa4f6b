"""Makes all ranks stop after the same step when one of them gets a signal. Costs nothing before that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from laptime.training.ranks import Ranks
from laptime.training.stop_signals import Terminated

LOOK_S = 0.2  # between two looks at the store, which take 0.1 ms in a thread


class StopBarrier:
    """Ranks stop after the same step, the furthest that any of them had begun when it heard of the request.

    A rank that waits for another inside a step cannot answer, so a thread of each does. Once it has told how
    far its rank has come, the rank begins no further step until all have told; so the furthest step is one
    that every rank can still reach, and none goes beyond it.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._store = ranks.store(
            "stop", first=False
        )  # a connection of its own: waiting on the other would block this one
        self._lock = threading.Lock()
        self._begun = 0
        self._told = False  # whether this rank has reported its step
        self._last: int | None = None
        self._known, self._closed = threading.Event(), threading.Event()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Listen for requests to stop while this lasts."""
        thread = threading.Thread(target=self._listen, name="laptime-agreement", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join()

    def may_begin(self, step: int, *, asked: bool) -> bool:
        """Whether this rank takes the step; False: all stop here. `asked`: this rank got a signal."""
        if asked and not self._told:
            try:
                self._store.set("asked", "yes")
            except RuntimeError:
                raise Terminated from None  # the launcher is gone, and with it the store
        with self._lock:
            if not self._told:
                self._begun = step
                return True
        self._known.wait()
        if self._last is None:
            raise Terminated
        return step <= self._last

    def _listen(self) -> None:
        try:
            if not self._there(["asked"]):
                return
            with self._lock:
                self._told = True
            self._store.set(str(self._ranks.rank), str(self._begun))
            everyone = [str(rank) for rank in range(self._ranks.ranks)]
            if self._there(everyone):
                self._last = max(int(self._store.get(rank)) for rank in everyone)
        except RuntimeError:  # the launcher is gone
            self._told = True
        self._known.set()

    def _there(self, keys: list[str]) -> bool:
        """Wait until the store has the keys; False if the training ends before."""
        while not self._closed.wait(LOOK_S):
            if self._store.check(keys):
                return True
        return False
