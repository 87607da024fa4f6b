"""The sweep itself: families in a random order, round after round, until the time is used up."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laptime.microbench.families import SweepFamily, all_families
from laptime.microbench.random_sizes import Draw, Supply, TooLarge
from laptime.microbench.row import SweepRow
from laptime.recorder.backends import backend_of

LARGEST_S = {"cpu": 0.05, "cuda": 0.02}  # by the device's peak: real operations take up to twice as long
STORE_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
LOW_SHARE = {"cpu": 0.1, "cuda": 0.5}  # of draws in bfloat16, where the device computes in it
_TRIES = 50
_LONG_S = 0.02
_UNEASY = 1.3
_SLEPT = 10_000_000  # cycles, to learn how long a cycle of torch's sleep kernel is

Call = Callable[[], Any]


class Taken(NamedTuple):
    """Microseconds of one call, on the device and on the host, and how many calls were timed."""

    device_us: float
    host_us: float
    calls: int


class HostStopwatch:
    """The CPU: host and device are one, so that handing over costs nothing beyond the call itself.

    In a training step the results of the forward pass stay alive, and each operation writes to memory that
    was last used long ago or never: that can take longer than the computing. So results are kept here too,
    and freed many at a time.
    """

    def __init__(self, *, held_bytes: int = 128 << 20, most: int = 15) -> None:
        self._held_bytes, self._most = held_bytes, most
        self._held: list[Any] = []
        self._held_now = 0

    def time(self, call: Call, *, kept: bool) -> Taken:
        """The call has run once before. `kept`: what it makes stays alive for a while."""
        now = time.perf_counter_ns
        samples: list[int] = []
        end = now() + 8_000_000
        # Three samples at least, unless they take over 50 ms.
        while (
            not samples
            or (now() < end and len(samples) < self._most)
            or (len(samples) < 3 and sum(samples) < 50_000_000)
        ):
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


class CudaStopwatch:
    """Events around calls that queue up behind a kernel that sleeps, so that the device never waits."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        begin, end = self._events
        for _ in range(2):
            begin.record()
            torch.cuda._sleep(_SLEPT)
            end.record()
            end.synchronize()
        self._cycles_per_s = _SLEPT / (float(begin.elapsed_time(end)) * 1e-3)

    def time(self, call: Call, *, kept: bool) -> Taken:
        """The call has run once before. What it makes is freed in the order of the stream."""
        begin = time.perf_counter()
        first_us, host_s = self._queued(call, 1, asleep_s=0.001)
        # A queue holds a thousand kernels: of a recurrent layer's, which are many, one call must do.
        fewest = 3 if host_s < 1e-3 else 1
        count = int(max(fewest, min(20, 3000.0 / max(first_us, 1.0))))  # for 3 ms
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


class Calm:
    """Whether the machine is idle: a small matrix product takes its usual time.

    Another process that takes a core for a second makes what is timed then two or three times too slow.
    """

    def __init__(self, device: torch.device) -> None:
        self._a = torch.rand(256, 256, device=device)
        self._times: list[float] = []

    def __call__(self) -> bool:
        """Time the product again, twice."""
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            torch.mm(self._a, self._a)
            seconds.append(time.perf_counter() - begin)
        insort(self._times, min(seconds))
        return min(seconds) <= _UNEASY * self._times[len(self._times) // 3]


class Sweep:
    """Times random operations on a device. `largest_s` and `store_bytes` bound the single operation.

    What was timed on a CPU while others kept it busy is left out, and counted in `disturbed`.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        seconds: float,
        families: Sequence[SweepFamily] | None = None,
        seed: int = 0,
        largest_s: float | None = None,
        store_bytes: int | None = None,
        watch: HostStopwatch | CudaStopwatch | None = None,
    ) -> None:
        self.device, self.seconds = device, seconds
        self.families = all_families() if families is None else families
        self.disturbed = 0
        self._draw = Draw(seed)
        self._cuda = device.type == "cuda"
        self._computes_low = _computes_in_bfloat16(device)
        self._watch = watch or (CudaStopwatch() if self._cuda else HostStopwatch())
        memory = backend_of("cpu").memory_bytes(torch.device("cpu"))
        free = int(torch.cuda.mem_get_info(device)[0]) if self._cuda else memory or 1 << 33
        self._largest_s = largest_s or LARGEST_S[device.type]
        self._store_bytes = store_bytes or min(STORE_BYTES[device.type], free // 16)

    def __iter__(self) -> Iterator[SweepRow]:
        end = time.monotonic() + self.seconds
        with torch.no_grad():
            supply = self._supply()
            calm: Callable[[], bool] = (lambda: True) if self._cuda else Calm(self.device)
            was_calm = calm()
            for row in self._rows(supply):
                is_calm = calm()
                if row is not None and was_calm and is_calm:
                    yield row
                elif row is not None:
                    self.disturbed += 1
                was_calm = is_calm
                if time.monotonic() > end:
                    return

    def _supply(self) -> Supply:
        """With the speeds that a product and a copy reach: to know what would take too long."""
        supply = Supply(
            self.device, draw=self._draw, largest_s=self._largest_s, store_bytes=self._store_bytes
        )
        size, count = (4096, 1 << 27) if self._cuda else (768, 1 << 22)
        count = min(count, self._store_bytes // 16)
        a = supply.take((min(size, int(count**0.5)),) * 2, torch.float32)
        x = supply.take((count,), torch.float32)
        supply.flops_per_s = 2 * len(a) ** 3 / self._seconds(partial(torch.mm, a, a))
        supply.bytes_per_s = 8 * count / self._seconds(x.clone)
        return supply

    def _seconds(self, call: Call) -> float:
        call()
        return self._watch.time(call, kept=False).device_us * 1e-6

    def _rows(self, supply: Supply) -> Iterator[SweepRow | None]:
        """Round after round without an end; None where a family had no member that fits."""
        while True:
            turns = [family for family in self.families for _ in range(family.share)]
            self._draw.random.shuffle(turns)
            for family in turns:
                yield from self._member(family, supply)

    def _member(self, family: SweepFamily, supply: Supply) -> Iterator[SweepRow | None]:
        """One draw of a family, each way. What does not fit or would take too long is drawn anew."""
        low = self._computes_low and family.low and self._draw.chance(LOW_SHARE[self.device.type])
        for _ in range(_TRIES):
            try:
                cases = family.make(supply, torch.bfloat16 if low else torch.float32)
            except TooLarge:
                continue
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            break
        else:
            cases = []
            yield None
        for case in cases:
            begin = time.perf_counter()
            operation = case.operation()
            if case.shown is not None or time.perf_counter() - begin < _LONG_S:
                case.call()  # warm up again: libraries prepare for repeated calls
            workspace = _workspace(case.call) if self._cuda else None
            taken = self._watch.time(case.call, kept=case.kept)
            yield SweepRow(operation=operation, workspace=workspace, **taken._asdict())


def _computes_in_bfloat16(device: torch.device) -> bool:
    """Rather than converting from it and to it."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _workspace(call: Call) -> int:
    """Temporary bytes that a call allocates and frees."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    made = torch.cuda.memory_allocated() - before
    del kept
    return max(0, int(torch.cuda.max_memory_allocated()) - before - max(0, made))
