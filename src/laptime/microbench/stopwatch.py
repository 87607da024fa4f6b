"""Device and launch time of a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Call = Callable[[], Any]


class Taken(NamedTuple):
    """Microseconds of one call, on the device and on the host, and how many calls were timed."""

    device_us: float
    host_us: float
    calls: int


class Stopwatch(Protocol):
    """Times calls on one device."""

    def time(self, call: Call, *, kept: bool) -> Taken:
        """The call has run once before. `kept`: what it makes stays alive for a while."""
        ...


class HostStopwatch:
    """The CPU: host and device are one, so that handing over costs nothing beyond the call itself.

    In a training step the results of the forward pass stay alive, and each operation writes to memory that
    was last used long ago or never: that can take longer than the computing. So results are kept here too,
    and freed many at a time.
    """

    def __init__(self, *, held_bytes: int = 128 << 20, enough_s: float = 0.008, most: int = 15) -> None:
        self._held_bytes, self._enough_s, self._most = held_bytes, enough_s, most
        self._held: list[Any] = []
        self._held_now = 0

    def time(self, call: Call, *, kept: bool) -> Taken:
        now = time.perf_counter_ns
        samples: list[int] = []
        end = now() + int(self._enough_s * 1e9)
        while not samples or (now() < end and len(samples) < self._most) or _few(samples):
            begin = now()
            result = call()
            samples.append(now() - begin)
            if kept:
                self._hold(result)
            del result
        return Taken(device_us=median(samples) / 1e3, host_us=0.0, calls=len(samples))

    def _hold(self, result: Any) -> None:
        parts = result if isinstance(result, tuple | list) else (result,)
        self._held.append(result)
        self._held_now += sum(part.nbytes for part in parts if isinstance(part, Tensor))
        if self._held_now > self._held_bytes or len(self._held) > 1000:
            self._held.clear()
            self._held_now = 0


def _few(samples: list[int]) -> bool:
    """Whether more samples are needed: three, unless they take over 50 ms."""
    return len(samples) < 3 and sum(samples) < 50_000_000


class CudaStopwatch:
    """Events around calls that queue up behind a kernel that sleeps, so that the device never waits."""

    def __init__(self, device: torch.device, *, enough_s: float = 0.003, most: int = 20) -> None:
        self._enough_s, self._most = enough_s, most
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._device = device
        self._cycles_per_s = self._sleeping()

    def time(self, call: Call, *, kept: bool) -> Taken:
        begin = time.perf_counter()
        first_us, host_s = self._queued(call, 1, asleep_s=0.001)
        # A queue holds a thousand kernels: of a recurrent layer's, which are many, one call must do.
        fewest = 3 if host_s < 1e-3 else 1
        count = int(max(fewest, min(self._most, self._enough_s * 1e6 / max(first_us, 1.0))))
        asleep_s = min(0.05, 2 * count * host_s + 1e-4)
        device_us, host_s = self._queued(call, count, asleep_s=asleep_s)
        if host_s * count > asleep_s and time.perf_counter() - begin < 1.0:  # the device had to wait: again
            device_us, host_s = self._queued(call, count, asleep_s=min(0.2, 3 * count * host_s))
        return Taken(device_us=device_us, host_us=host_s * 1e6, calls=count)

    def _queued(self, call: Call, count: int, *, asleep_s: float) -> tuple[float, float]:
        begin, end = self._events
        torch.cuda._sleep(int(asleep_s * self._cycles_per_s))
        begin.record()
        start = time.perf_counter()
        for _ in range(count):
            call()
        host_s = (time.perf_counter() - start) / count
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / count, host_s

    def _sleeping(self) -> float:
        """Cycles per second of torch's sleep kernel."""
        begin, end = self._events
        for _ in range(2):
            begin.record()
            torch.cuda._sleep(10_000_000)
            end.record()
            end.synchronize()
        return 10_000_000 / (float(begin.elapsed_time(end)) * 1e-3)


def stopwatch_for(device: torch.device) -> Stopwatch:
    """The stopwatch for a device."""
    return CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()
