"""What `laptime doctor` finds out: the machine, its clocks and settings, and what would improve them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laptime.recorder.clocks import Clock

PACKAGES = ("numpy", "pyarrow", "duckdb", "rich", "typer")
EXTRAS = {
    "lightning": ("lightning",),
    "transformers": ("transformers", "accelerate"),
    "bench": ("deepspeed",),
}
STEADY_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "268435456"}
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def examine() -> dict[str, Any]:
    """Everything there is to know before recording. `ready` is False where nothing can be recorded."""
    machine: dict[str, Any] = {
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        "cores": {"all": os.cpu_count(), "usable": usable_cores(), "load": _load()},
    }
    try:
        machine |= _with_torch()
    except ImportError as error:
        machine |= {"ready": False, "problem": f"torch cannot be imported: {error}", "advice": []}
        return machine
    machine["advice"] = list(advice(machine, dict(os.environ)))
    return machine


def _with_torch() -> dict[str, Any]:
    import torch

    from laptime.recorder.clocks import CudaClock, HostClock
    from laptime.recorder.environment import device_facts, environment

    devices: list[Any] = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    clocks: list[Clock] = [HostClock(), *(CudaClock(device) for device in devices[1:2])]
    return {
        "ready": True,
        "problem": None,
        "environment": environment(),
        "devices": {str(device): device_facts(device) for device in devices},
        "mps": torch.backends.mps.is_available(),
        "clocks": [{"device": clock.device, **_clock_facts(clock)} for clock in clocks],
        "steadiness": _steadiness(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Cores this process may use: its affinity, and a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _clock_facts(clock: Clock) -> dict[str, float]:
    """The finest difference the host's clock shows, and what a mark on a timeline costs the host."""
    from laptime.recorder.timeline import HOST, Timeline

    ticks = [time.perf_counter_ns() for _ in range(2000)]
    steps = [b - a for a, b in pairwise(ticks) if b > a]
    costs = []
    for _ in range(20):
        timeline = Timeline(clock)
        begin = time.perf_counter()
        for _ in range(100):
            timeline.mark(HOST)
        costs.append((time.perf_counter() - begin) / 100)
        clock.wait(timeline.stamps[-1])
        clock.recycle(timeline.stamps)
    return {"resolution_s": min(steps, default=0) * 1e-9, "mark_s": median(costs)}


def _steadiness() -> dict[str, Any]:
    """The same work over and over, for a quarter of a second: how steady is this machine just now?"""
    import torch

    from laptime.model import summarize
    from laptime.views.run_document import statistics

    matrix = torch.rand(384, 384)
    for _ in range(3):
        matrix @ matrix  # starts the threads
    samples: list[float] = []
    end = time.perf_counter() + 0.25
    while time.perf_counter() < end or len(samples) < 12:
        begin = time.perf_counter()
        matrix @ matrix
        samples.append(time.perf_counter() - begin)
    return statistics(summarize(samples)) or {}


def advice(machine: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[str]:
    """What would make times steadier or truer here, each with the line to type."""
    usable, threads = machine["cores"]["usable"], machine["environment"]["threads"]
    missing = {name: value for name, value in STEADY_MALLOC.items() if name not in variables}
    preloaded = any(name in variables.get("LD_PRELOAD", "") for name in _OTHER_ALLOCATORS)
    if missing and not preloaded and platform.libc_ver()[0] == "glibc":
        exports = " ".join(f"{name}={value}" for name, value in missing.items())
        yield f"CPU step times spread less when freed memory is kept: export {exports}"
    if threads > usable:
        yield f"torch has {threads} threads for {usable} cores, too many: export OMP_NUM_THREADS={usable}"
    if variables.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield "CUDA_LAUNCH_BLOCKING makes the host wait for every kernel: unset CUDA_LAUNCH_BLOCKING"
    load = machine["cores"]["load"] or 0.0
    if load > usable + 0.5:
        yield f"other processes are busy (load {load:.1f} on {usable} cores): times will be noisy"
    elif machine["steadiness"].get("noise") == "unreliable":
        yield "the same work took very different times just now: look for other processes or power saving"
    if machine["mps"]:
        yield "this Mac's GPU (mps) cannot be timed yet: record on the cpu"
