"""Ctrl-C and SIGTERM: each counted once, and passed on to child processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SAME_S = 1.0  # a terminal and a launcher both deliver one Ctrl-C
KILL_S = 10.0  # until a process is killed that does not stop
CHILD = "LAPTIME_CHILD"  # in the environment of the processes that laptime starts

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


class Requests:
    """Which signal came first, and how many came since. The same one twice within a second counts once."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.times = 0
        self.last_s = 0.0

    def hear(self, number: int) -> bool:
        """Count a signal; False if it is a repetition."""
        now = time.monotonic()
        if self.times and now - self.last_s < SAME_S:
            return False
        self.first = number if self.first is None else self.first
        self.times, self.last_s = self.times + 1, now
        return True

    @property
    def ending(self) -> KeyboardInterrupt:
        """The exception to raise for it."""
        return Terminated() if self.first == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def hearing(heard: Callable[[int], None]) -> Iterator[None]:
    """Call `heard` with SIGINT or SIGTERM when they come. Only a main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: Any) -> None:
        heard(number)

    earlier = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Relay:
    """Starts processes and hands every request to stop on to them, so that each hears it once.

    They have sessions of their own, out of a terminal's reach, and hear SIGTERM: one that is not up yet ends
    by that without a word.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.requests = Requests()
        self._say = say
        self._started: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this lasts, signals end the child processes and not this one. All have ended afterwards."""
        with hearing(self._heard):
            try:
                yield
            finally:
                self.kill()

    def _heard(self, number: int) -> None:
        if not self.requests.hear(number):
            return
        if number == signal.SIGINT and self.requests.times == 1:
            self._say(STOPPING)
        for process in self._started:
            process.terminate()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process; raises if a signal has arrived."""
        self.check()
        environment = {**os.environ, **(options.pop("env", None) or {}), CHILD: "1"}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )
        self._started.append(process)
        return process

    def pause(self, seconds: float) -> None:
        """Wait. Kill processes that do not stop after a second signal."""
        time.sleep(seconds)
        if self.requests.times > 1 and time.monotonic() - self.requests.last_s > KILL_S:
            self.kill()

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """The status of a process, once it has one."""
        while (status := process.poll()) is None:
            self.pause(0.05)
        return status

    def kill(self) -> None:
        """Kill processes that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._started.clear()

    def check(self) -> None:
        """Raise the exception for a signal that has arrived."""
        if self.requests.times:
            raise self.requests.ending


def end_with_parent() -> None:
    """A process that laptime started ends when its parent is gone, even one that was killed. Linux only."""
    if os.environ.get(CHILD) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
