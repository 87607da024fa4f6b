"""What this machine and this process are: recorded with every run, printed by `laptime doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import torch

# Settings that change how fast a step is or how steady, if set.
VARIABLES = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
)


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
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def version() -> str:
    """laptime's own version; run from a bare source tree there is none."""
    try:
        return importlib.metadata.version("laptime")
    except importlib.metadata.PackageNotFoundError:
        return "source"


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


def memory_bytes() -> int | None:
    """Physical memory, where the system tells it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def device_facts(device: torch.device | None) -> dict[str, Any]:
    """Name and size of the device that computes."""
    if device is None or device.type != "cuda":
        return {"type": device.type if device else "cpu", "name": cpu_name()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tf32_convolutions": torch.backends.cudnn.allow_tf32,
    }
