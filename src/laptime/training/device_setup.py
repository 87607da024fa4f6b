"""Where a training runs: the device, its threads, and how much of its memory may be used."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

import torch

from laptime.errors import TrainingError, UnsupportedDevice
from laptime.recorder.clocks import clock_for
from laptime.training.ranks import Ranks

GIB = 2**30


def choose_device(asked: str | None, local: int = 0, locals: int = 1) -> tuple[torch.device, str]:
    """The device to use, and why. Of several local ranks each takes its own GPU, or all take the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = "this machine has cpu" + "".join(f", cuda:{index}" for index in range(gpus))
    if asked is None or asked == "cuda":
        if gpus >= locals:
            return torch.device("cuda", local), "only GPU visible" if gpus == 1 else f"GPU {local} of {gpus}"
        if asked is None:
            why = f"{gpus} GPU{'s' * (gpus > 1)} for {locals} ranks" if gpus else "no CUDA device visible"
            return torch.device("cpu"), why
        if gpus:
            raise UnsupportedDevice(
                f"{locals} ranks need a GPU each and {here}; use --workers {gpus}, or device = 'cpu'"
            )
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UnsupportedDevice(f"{asked!r} is not a device; {here}") from None
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UnsupportedDevice(f"there is no device {asked!r}; {here}")
    if device.type == "cuda" and locals > 1:
        raise UnsupportedDevice(f"{locals} ranks cannot share {asked}; say device = 'cuda', one GPU for each")
    clock_for(device)  # refuses kinds of device that cannot be timed
    return device, "as asked"


def share_of_threads(locals: int) -> tuple[int, str]:
    """CPU threads for each of several local ranks, and why. More threads than cores slow all ranks down."""
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads(), "as OMP_NUM_THREADS says"
    cores = torch.get_num_threads()
    return max(1, cores // locals), f"{cores} core{'s' * (cores > 1)} shared by {locals} ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSetup:
    """The device of a training, with its threads and memory limit set."""

    device: torch.device
    why: str
    ranks: Ranks

    @classmethod
    def of(
        cls, asked: str | None, ranks: Ranks, *, threads: int | None = None, memory_limit: float | None = None
    ) -> DeviceSetup:
        """Choose the device and set it up."""
        device, why = choose_device(asked, ranks.local, ranks.locals)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if threads is None and device.type == "cpu" and ranks.locals > 1:
            threads, share = share_of_threads(ranks.locals)
            why = f"{why}; {threads} thread{'s' * (threads > 1)} a rank, {share}"
        if threads is not None:
            torch.set_num_threads(threads)
        if memory_limit is not None:
            _limit(device, memory_limit)
        return cls(device=device, why=why, ranks=ranks)


def _limit(device: torch.device, gib: float) -> None:
    """Limit memory: of the allocator on a GPU, of the process on a CPU."""
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        if gib * GIB > whole:
            raise TrainingError(
                f"memory_limit = {gib:g} GiB is more than the {whole / GIB:.1f} GiB of {device}; lower it"
            )
        torch.cuda.set_per_process_memory_fraction(gib * GIB / whole, device)
        return
    wanted = int(gib * GIB)
    used = _used()
    if wanted <= used:
        raise TrainingError(
            f"memory_limit = {gib:g} GiB is less than the {used / GIB:.1f} GiB in use already; raise it"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _used() -> int:
    """Bytes of data that this process has mapped: what RLIMIT_DATA counts."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
