"""This machine before anything is recorded: versions, devices, clocks, and how steady it is.

torch may be absent: that is one of the findings.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from laptime.model import summarize

if TYPE_CHECKING:
    from laptime.recorder.backends import Clock

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
    load = None
    with suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
    machine: dict[str, Any] = {
        "packages": _versions(PACKAGES),
        "extras": {extra: _versions(names) for extra, names in EXTRAS.items()},
        "cores": {"all": os.cpu_count(), "usable": usable_cores(), "load": load},
    }
    try:
        machine |= _with_torch()
    except ImportError as error:
        problem = f"torch cannot be imported: {error}"
        remedy = "pip install torch (runs can be shown and queried without it)"
        verdict = f"not ready: {problem}; {remedy}"
        return machine | {"ready": False, "problem": problem, "advice": [], "verdict": verdict}
    machine["advice"] = list(advice(machine, dict(os.environ)))
    count = len(machine["advice"])
    things = "one thing" if count == 1 else f"{count} things"
    better = f"{things} above would make times better" if count else "nothing to change"
    machine["verdict"] = f"ready to record on {', '.join(machine['devices'])}; {better}"
    return machine


def _with_torch() -> dict[str, Any]:
    import torch

    from laptime.recorder.backends import accelerators, backend_of, device_facts, environment

    devices: list[Any] = [torch.device("cpu")]
    for backend in accelerators():
        devices += [torch.device(backend.type, index) for index in range(backend.count())]
    clocks: list[Clock] = [backend_of(device).clock(device) for device in devices[:2]]
    return {
        "ready": True,
        "problem": None,
        "environment": environment(),
        "devices": {str(device): device_facts(device) for device in devices},
        "mps": torch.backends.mps.is_available(),
        "clocks": [{"device": clock.device, **_clock_facts(clock)} for clock in clocks],
        "steadiness": _steadiness(),
    }


def _versions(packages: Sequence[str]) -> dict[str, str | None]:
    """None for a package that is not installed."""
    installed = {name: list(metadata.distributions(name=name)) for name in packages}
    return {name: each[0].version if each else None for name, each in installed.items()}


def usable_cores() -> int:
    """Cores this process may use: its affinity, and a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def _clock_facts(clock: Clock) -> dict[str, float]:
    """The finest difference the host's clock shows, and what a mark on a timeline costs the host."""
    from laptime.recorder.timeline import mark_seconds

    ticks = [time.perf_counter_ns() for _ in range(2000)]
    steps = [b - a for a, b in pairwise(ticks) if b > a]
    mark_s = median(mark_seconds(clock, 100) for _ in range(20))
    return {"resolution_s": min(steps, default=0) * 1e-9, "mark_s": mark_s}


def _steadiness() -> dict[str, Any]:
    """The same work over and over, for a quarter of a second: how steady is this machine just now?"""
    import torch

    matrix = torch.rand(384, 384)
    for _ in range(3):
        matrix @ matrix  # starts the threads
    samples: list[float] = []
    end = time.perf_counter() + 0.25
    while time.perf_counter() < end or len(samples) < 12:
        begin = time.perf_counter()
        matrix @ matrix
        samples.append(time.perf_counter() - begin)
    summary = summarize(samples)
    return asdict(summary) | {"spread": summary.spread}


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
