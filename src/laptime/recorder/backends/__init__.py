"""Device backends: one small class for each kind of device, registered by its type.

Everything in `recorder` and `training` asks the backend of a device for what differs between kinds: its
clock, its streams, its memory, how it is traced and what it is called. A backend is a module in this folder
whose class has the members of `Backend`, and a line in `_BACKENDS`; `register` adds one at run time.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

import torch

from laptime.errors import UnsupportedDevice
from laptime.recorder.backends.backend import Backend, Clock, Stamp
from laptime.recorder.backends.cpu import CpuBackend, FakeClock, cpu_name
from laptime.recorder.backends.cuda import CudaBackend

__all__ = ["Backend", "Clock", "FakeClock", "Stamp"]

_BACKENDS: dict[str, Backend] = {backend.type: backend for backend in (CpuBackend(), CudaBackend())}


def register(backend: Backend) -> None:
    """Use this backend for devices of its type."""
    _BACKENDS[backend.type] = backend


def unregister(backend: Backend) -> None:
    """Forget it again."""
    if _BACKENDS.get(backend.type) is backend:
        del _BACKENDS[backend.type]


def backend_of(device: torch.device | str) -> Backend:
    """The backend of a device, or of its name such as `cuda:0`."""
    kind = device.type if isinstance(device, torch.device) else device.partition(":")[0]
    backend = _BACKENDS.get(kind)
    if backend is None:
        known = " or ".join(repr(name) for name in _BACKENDS)
        raise UnsupportedDevice(
            f"laptime cannot time {kind!r} devices yet (it would need their event API); "
            f"move the network to {known} to record it"
        )
    return backend


def accelerators() -> Iterator[Backend]:
    """The backends of devices beside the CPU."""
    return (backend for backend in _BACKENDS.values() if backend.accelerator)


def device_facts(device: torch.device | None) -> dict[str, Any]:
    """Name and size of the device that computes; of a kind that is not known, its type and the CPU's name."""
    kind = device.type if device is not None else "cpu"
    backend = _BACKENDS.get(kind)
    if device is None or backend is None:
        return {**_BACKENDS["cpu"].facts(torch.device("cpu")), "type": kind}
    return backend.facts(device)


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """What this machine and this process are: recorded with every run, printed by `laptime doctor`."""
    try:
        version = importlib.metadata.version("laptime")
    except importlib.metadata.PackageNotFoundError:
        version = "source"  # run from a bare source tree
    variables = [name for backend in _BACKENDS.values() for name in backend.variables]
    return {
        "laptime": version,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": backend_of("cpu").memory_bytes(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device_facts(device),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "variables": {name: os.environ[name] for name in variables if name in os.environ},
    }
