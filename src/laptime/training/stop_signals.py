"""Ctrl-C and SIGTERM: counted once each, passed on to child processes, and obeyed by all ranks together."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from laptime.training.ranks import Ranks

SAME_S = 1.0  # a terminal and a launcher both deliver one Ctrl-C
KILL_S = 10.0  # until a process is killed that does not stop
LOOK_S = 0.2  # between two looks at the store of the ranks, which take 0.1 ms in a thread
CLOSING_S = 60  # in which ranks that were asked to stop take their last step and save it
ORPHAN_S = 15.0  # until a process is killed that goes on without its parent
CHILD = "LAPTIME_CHILD"  # in the environment of the processes that laptime starts: which process did

STOPPING = "stopping after this step; press Ctrl-C again to stop at once"


class Terminated(KeyboardInterrupt):
    """SIGTERM, as Slurm and Kubernetes send it: the same as Ctrl-C, with the status that they look for."""


INTERRUPTED: dict[int, type[KeyboardInterrupt]] = {
    130: KeyboardInterrupt,
    -signal.SIGINT: KeyboardInterrupt,
    143: Terminated,
    -signal.SIGTERM: Terminated,
}
"""The statuses of a process that was asked to stop, and what to raise for them."""


class StopRequests:
    """Signals that came. The first asks to end after the running step; the second ends at once.

    The same one twice within a second counts once.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.times = 0
        self._first: int | None = None
        self._last_s = 0.0
        self._say = say

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while this lasts. Only a main thread hears signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.times and now - self._last_s < SAME_S:
            return
        self._first = number if self._first is None else self._first
        self.times, self._last_s = self.times + 1, now
        if number == signal.SIGINT and self.times == 1:
            self._say(STOPPING)
        self._act()

    def _act(self) -> None:
        if self.times > 1:
            raise self.ending

    @property
    def ending(self) -> KeyboardInterrupt:
        """The exception to raise for the first signal."""
        return Terminated() if self._first == signal.SIGTERM else KeyboardInterrupt()

    def check(self) -> None:
        """Raise the exception for a signal that has arrived."""
        if self.times:
            raise self.ending


class Process(Protocol):
    """A process of this machine (`subprocess.Popen`) or of another."""

    returncode: int | None

    def poll(self) -> int | None:
        """The status; None while it runs."""

    def terminate(self) -> None:
        """Ask it to stop."""

    def kill(self) -> None:
        """End it at once."""

    def wait(self) -> int:
        """Wait for its end; the status."""


class Relay(StopRequests):
    """Starts processes and hands every request to stop on to them, so that each hears it once.

    They have sessions of their own, out of a terminal's reach, and hear SIGTERM: one that is not up yet ends
    by that without a word.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(say)
        self._started: list[Process] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this lasts, signals end the child processes and not this one. All have ended afterwards."""
        with super().listening():
            try:
                yield
            finally:
                self._kill()

    def _act(self) -> None:
        for process in self._started:
            process.terminate()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process; raises if a signal has arrived."""
        self.check()
        environment = {**os.environ, CHILD: str(os.getpid())}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )
        self.adopt(process)
        return process

    def adopt(self, process: Process) -> None:
        """Hand requests to stop on to a process that was started elsewhere."""
        self._started.append(process)

    def pause(self) -> None:
        """Before another look at the processes. Those that go on after a second signal are killed."""
        time.sleep(0.05)
        if self.times > 1 and time.monotonic() - self._last_s > KILL_S:
            self._kill()

    def _kill(self) -> None:
        running = [process for process in self._started if process.poll() is None]
        for process in running:
            process.kill()
        for process in running:
            process.wait()
        self._started.clear()


def end_with_parent() -> None:
    """A process that laptime started ends when its parent is gone, even one that was killed. Linux only.

    It hears SIGTERM. One that waits for something that went with its parent, such as a parameter server, does
    not get to its end by that, and is killed.
    """
    parent = int(os.environ.pop(CHILD, "0"))  # its own children have another one
    if not parent or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    try:
        handle = os.pidfd_open(parent)
    except OSError:
        handle = -1
    if os.getppid() != parent:  # it has died while this process was starting
        raise Terminated
    if handle >= 0:
        threading.Thread(target=_end_orphan, args=(handle,), daemon=True).start()


def _end_orphan(parent: int) -> None:
    select.select([parent], [], [])  # readable when it has ended
    time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGKILL)


class StopBarrier:
    """Ranks stop after the same step, the furthest that any of them had begun when it heard of the request.

    A rank that waits for another inside a step cannot answer, so a thread of each does. Once it has told how
    far its rank has come, the rank begins no further step until all have told; so the furthest step is one
    that every rank can still reach, and none goes beyond it. Costs nothing before a request.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        # A connection of its own: waiting on the other would block this one.
        self._store = ranks.store("stop", first=False)
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
