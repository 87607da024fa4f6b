"""The sweep itself: families in a random order, round after round, until the time is used up."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from laptime.microbench.families import SweepFamily, all_families
from laptime.microbench.random_sizes import Bounds, Draw, Supply, TooLarge
from laptime.microbench.row import SweepRow
from laptime.microbench.stopwatch import Call, Stopwatch, stopwatch_for
from laptime.recorder.environment import memory_bytes

LARGEST_S = {"cpu": 0.05, "cuda": 0.02}  # by the device's peak: real operations take up to twice as long
STORE_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
LOW_SHARE = {"cpu": 0.1, "cuda": 0.5}  # of draws in bfloat16, where the device computes in it
_TRIES = 50
_LONG_S = 0.02
_UNEASY = 1.3


class Calm:
    """Whether the machine is idle: a small matrix product takes its usual time.

    Another process that takes a core for a second makes what is timed then two or three times too slow.
    """

    def __init__(self, device: torch.device) -> None:
        self._a = torch.rand(256, 256, device=device)
        self._times: list[float] = []

    def __call__(self) -> bool:
        """Time the product again."""
        seconds = min(self._once() for _ in range(2))
        insort(self._times, seconds)
        return seconds <= _UNEASY * self._times[len(self._times) // 3]

    def _once(self) -> float:
        begin = time.perf_counter()
        torch.mm(self._a, self._a)
        return time.perf_counter() - begin


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
        watch: Stopwatch | None = None,
    ) -> None:
        self.device, self.seconds = device, seconds
        self.families = all_families() if families is None else families
        self.dtypes = dtypes_of(device)
        self.disturbed = 0
        self._draw = Draw(seed)
        self._watch = watch or stopwatch_for(device)
        self._largest_s = largest_s or LARGEST_S[device.type]
        self._store_bytes = store_bytes or min(STORE_BYTES[device.type], _memory(device) // 16)

    def __iter__(self) -> Iterator[SweepRow]:
        end = time.monotonic() + self.seconds
        with torch.no_grad():
            supply = self._supply()
            calm: Callable[[], bool] = Calm(self.device) if self.device.type == "cpu" else lambda: True
            was_calm = calm()
            while True:
                turns = [family for family in self.families for _ in range(family.share)]
                self._draw.random.shuffle(turns)
                for family in turns:
                    for row in self._member(family, supply):
                        is_calm = calm()
                        if was_calm and is_calm:
                            yield row
                        else:
                            self.disturbed += 1
                        was_calm = is_calm
                        if time.monotonic() > end:
                            return
                    if time.monotonic() > end:  # though no member was found
                        return

    def _supply(self) -> Supply:
        """With the speeds that a product and a copy reach: to know what would take too long."""
        bounds = Bounds(largest_s=self._largest_s, store_bytes=self._store_bytes)
        supply = Supply(self.device, draw=self._draw, bounds=bounds)
        size, count = (4096, 1 << 27) if self.device.type == "cuda" else (768, 1 << 22)
        count = min(count, self._store_bytes // 16)
        a = supply.take((min(size, int(count**0.5)),) * 2, torch.float32)
        x = supply.take((count,), torch.float32)
        multiplied, copied = self._seconds(partial(torch.mm, a, a)), self._seconds(x.clone)
        supply.bounds = replace(
            bounds, flops_per_s=2 * len(a) ** 3 / multiplied, bytes_per_s=8 * count / copied
        )
        return supply

    def _seconds(self, call: Call) -> float:
        call()
        return self._watch.time(call, kept=False).device_us * 1e-6

    def _member(self, family: SweepFamily, supply: Supply) -> Iterator[SweepRow]:
        """One draw of a family, each way. What does not fit or would take too long is drawn anew."""
        low = len(self.dtypes) > 1 and family.low and self._draw.chance(LOW_SHARE[self.device.type])
        dtype = self.dtypes[-1] if low else torch.float32
        for _ in range(_TRIES):
            try:
                cases = family.make(supply, dtype)
            except TooLarge:
                continue
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            break
        else:
            return
        for case in cases:
            begin = time.perf_counter()
            operation = case.operation()
            if case.shown is not None or time.perf_counter() - begin < _LONG_S:
                case.call()  # warm up again: libraries prepare for repeated calls
            workspace = _workspace(case.call) if self.device.type == "cuda" else None
            taken = self._watch.time(case.call, kept=case.kept)
            yield SweepRow(
                operation=operation,
                device_us=taken.device_us,
                host_us=taken.host_us,
                calls=taken.calls,
                workspace=workspace,
            )


def dtypes_of(device: torch.device) -> tuple[torch.dtype, ...]:
    """float32, and bfloat16 where the device computes in it rather than converts."""
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        native = "avx512_bf16" in _flags() or "amx_bf16" in _flags()
    return (torch.float32, torch.bfloat16) if native else (torch.float32,)


def host_of(device: torch.device) -> str:
    """Who launches operations: the "device" itself on a CPU, a "host" for a GPU."""
    return "host" if device.type == "cuda" else "device"


def _workspace(call: Call) -> int:
    """Temporary bytes that a call allocates and frees."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    made = torch.cuda.memory_allocated() - before
    del kept
    return max(0, int(torch.cuda.max_memory_allocated()) - before - max(0, made))


def _flags() -> frozenset[str]:
    """CPU feature flags from /proc/cpuinfo; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    told = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(told.split())


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return memory_bytes() or 1 << 33
