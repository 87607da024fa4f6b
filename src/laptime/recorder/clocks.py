"""Clocks: where the timeline of a step is read. One per kind of device; a fake one for exact tests.

A clock stamps (`now`) and later tells the time between stamps (`read`). On the CPU a stamp is a host time.
On CUDA it is an event on the compute stream, so an interval is exposed time on the device and nothing
waits for it: the events are read back once the device has passed the last of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from laptime.errors import UnsupportedDevice

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
        """Called at the start of a step: hold on to the stream that computes."""
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


class CudaClock:
    """Pooled CUDA events on the compute stream.

    A fresh `torch.cuda.Event` recorded through its Python wrapper costs about 40 µs on a slow host; a pooled
    one recorded by the C method on a held stream, a few.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = f"cuda:{device.index if device.index is not None else torch.cuda.current_device()}"
        self.deferred = True
        self._index = torch.device(self.device).index
        self._pool: list[torch.cuda.Event] = []
        self._record = torch._C._CudaEventBase.record
        self._address = -1
        self.follow()

    def now(self) -> Stamp:
        try:
            event = self._pool.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        self._record(event, self._stream)
        return event

    def ready(self, stamp: Stamp) -> bool:
        return bool(stamp.query())

    def wait(self, stamp: Stamp) -> None:
        stamp.synchronize()

    def read(self, stamps: Sequence[Stamp]) -> list[float]:
        """Milliseconds between neighbours: summed, float32 milliseconds lose less than counted from afar."""
        elapsed = torch._C._CudaEventBase.elapsed_time
        return [elapsed(a, b) for a, b in itertools.pairwise(stamps)]

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        self._pool.extend(stamps)

    def follow(self) -> None:
        # Asking for the stream object takes 14 µs on a slow host; its address, a fraction of one.
        address = torch._C._cuda_getCurrentRawStream(self._index)
        if address != self._address:
            self._address = address
            self._stream = torch.cuda.current_stream(self._index)


def clock_for(device: torch.device) -> Clock:
    """The clock that times this device."""
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise UnsupportedDevice(
        f"laptime cannot time {device.type!r} devices yet (it would need their event API); "
        "move the network to 'cpu' or 'cuda' to record it"
    )
