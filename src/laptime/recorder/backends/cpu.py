"""The CPU: the host's clock is its timeline, and nothing is queued."""

from __future__ import annotations

import itertools
import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from laptime.recorder.backends.backend import Backend, Clock, Stamp


class HostClock(Clock):
    """The host's monotonic clock: the timeline of a step on the CPU."""

    device = "cpu"
    now = staticmethod(time.perf_counter_ns)

    def read(self, stamps: Sequence[Stamp]) -> list[float]:
        return [(b - a) * 1e-6 for a, b in itertools.pairwise(stamps)]


class FakeClock(HostClock):
    """A clock that moves only when told to, so that tests are exact."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now(self) -> Stamp:
        return self.time_ns

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass."""
        self.time_ns += round(seconds * 1e9)


class CpuBackend(Backend):
    """The processor that Python runs on."""

    type = "cpu"
    name = "CPU"
    variables = (
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "LD_PRELOAD",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "KMP_AFFINITY",
        "ONEDNN_MAX_CPU_ISA",
        "ATEN_CPU_CAPABILITY",
    )

    def count(self) -> int:
        return 1

    def facts(self, device: torch.device) -> dict[str, Any]:
        return {"type": "cpu", "name": cpu_name()}

    def clock(self, device: torch.device) -> Clock:
        return HostClock()

    def memory_bytes(self, device: torch.device) -> int | None:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None

    def limit_memory(self, device: torch.device, limit: int) -> None:
        """The limit is for the whole process, including memory that it already holds."""
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    def random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state()]

    def set_random_states(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith("model name"):
                        return line.split(":", 1)[1].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()
