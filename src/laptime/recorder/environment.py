"""What this machine and this process are: recorded with every run, printed by `laptime doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

from laptime.recorder.backends import accelerators, backend_of, device_facts
from laptime.recorder.backends.cpu import cpu_name


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """Software, hardware and settings, as plain values."""
    return {
        "laptime": version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device_facts(device),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "variables": {name: os.environ[name] for name in _variables() if name in os.environ},
    }


def version() -> str:
    """laptime's own version; run from a bare source tree there is none."""
    try:
        return importlib.metadata.version("laptime")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def memory_bytes() -> int | None:
    """Physical memory, where the system tells it."""
    return backend_of("cpu").memory_bytes(torch.device("cpu"))


def _variables() -> list[str]:
    """Settings that change how fast a step is or how steady, if set."""
    return [name for backend in (backend_of("cpu"), *accelerators()) for name in backend.variables]
