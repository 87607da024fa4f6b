"""Clocks: where the timeline of a step is read. The host's, and a fake one for exact tests.

A clock stamps (`now`) and later tells the time between stamps (`read`). On the CPU a stamp is a host time.
On an accelerator (`backends`) it is an event on the compute stream, so an interval is exposed time on the
device and nothing waits for it: events are read back once the device has passed the last of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

Stamp = Any


class Clock(Protocol):
    """What the recorder asks of a clock."""

    device: str
    deferred: bool  # stamps can be read only after the device has passed them

    def now(self) -> Stamp:
        """A stamp on the timeline, cheap enough to take hundreds of times a step."""
        ...

    def ready(self, stamp: Stamp) -> bool:
        """Whether the device has passed this stamp. Never waits."""
        ...

    def wait(self, stamp: Stamp) -> None:
        """Block until the device has passed this stamp: the one place where laptime synchronises."""
        ...

    def read(self, stamps: Sequence[Stamp]) -> list[float]:
        """Milliseconds between neighbouring stamps."""
        ...

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        """Take back stamps that are no longer needed."""
        ...

    def follow(self) -> None:
        """Called at the start of a step: keep the compute stream."""
        ...


class HostClock:
    """The host's monotonic clock: the timeline of a step on the CPU."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.deferred = False
        self.now = time.perf_counter_ns

    def ready(self, stamp: Stamp) -> bool:
        return True

    def wait(self, stamp: Stamp) -> None:
        pass

    def read(self, stamps: Sequence[Stamp]) -> list[float]:
        return [(b - a) * 1e-6 for a, b in itertools.pairwise(stamps)]

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        pass

    def follow(self) -> None:
        pass


class FakeClock(HostClock):
    """A clock that moves only when told to, so that tests are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.time_ns = 0
        self.now = lambda: self.time_ns

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass."""
        self.time_ns += round(seconds * 1e9)
