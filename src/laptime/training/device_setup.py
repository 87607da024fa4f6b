"""Where a training runs: the device, its threads, and how much of its memory may be used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from laptime.errors import TrainingError, UnsupportedDevice
from laptime.recorder.backends import accelerators, backend_of
from laptime.training.ranks import Ranks

GIB = 2**30


def choose_device(asked: str | None, local: int = 0, locals: int = 1) -> tuple[torch.device, str]:
    """The device to use, and why. Of several local ranks each takes its own GPU, or all take the CPU."""
    known = list(accelerators())
    # The kind that was asked for; otherwise the first with a device here, or the first.
    wanted = [each for each in known if asked is not None and asked.partition(":")[0] == each.type]
    backend = (wanted or [each for each in known if each.count()] or known)[0]
    kind, gpus = backend.type, backend.count()
    devices = [f"{each.type}:{index}" for each in known for index in range(each.count())]
    here = ", ".join(["this machine has cpu", *devices])
    if asked is None or asked == kind:
        if gpus >= locals:
            return torch.device(kind, local), "only GPU visible" if gpus == 1 else f"GPU {local} of {gpus}"
        if asked is None:
            few = f"{gpus} GPU{'s' * (gpus > 1)} for {locals} ranks"
            return torch.device("cpu"), few if gpus else f"no {backend.name} device visible"
        if gpus:
            raise UnsupportedDevice(
                f"{locals} ranks need a GPU each and {here}; use --workers {gpus}, or device = 'cpu'"
            )
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UnsupportedDevice(f"{asked!r} is not a device; {here}") from None
    if device.type == kind and (device.index or 0) >= gpus:
        raise UnsupportedDevice(f"there is no device {asked!r}; {here}")
    if device.type == kind and locals > 1:
        raise UnsupportedDevice(
            f"{locals} ranks cannot share {asked}; say device = '{kind}', one GPU for each"
        )
    backend_of(device)  # refuses kinds of device that cannot be timed
    return device, "as asked"


def share_of_threads(locals: int) -> tuple[int, str]:
    """CPU threads for each of several local ranks, and why. More threads than cores slow all ranks down."""
    cores = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ:
        return cores, "as OMP_NUM_THREADS says"
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
        backend_of(device).select(device)
        if threads is None and device.type == "cpu" and ranks.locals > 1:
            threads, share = share_of_threads(ranks.locals)
            why = f"{why}; {threads} thread{'s' * (threads > 1)} a rank, {share}"
        if threads is not None:
            torch.set_num_threads(threads)
        if memory_limit is not None:
            _limit_memory(device, memory_limit)
        return cls(device=device, why=why, ranks=ranks)


def _limit_memory(device: torch.device, gib: float) -> None:
    """Limit memory: of the allocator on a GPU, of the process on a CPU."""
    backend, wanted = backend_of(device), int(gib * GIB)
    whole = backend.memory_bytes(device)
    if backend.accelerator and whole is not None and wanted > whole:
        raise TrainingError(
            f"memory_limit = {gib:g} GiB is more than the {whole / GIB:.1f} GiB of {device}; lower it"
        )
    if not backend.accelerator:
        # Bytes of data that this process has mapped: what RLIMIT_DATA counts.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        used = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)
        if wanted <= used:
            raise TrainingError(
                f"memory_limit = {gib:g} GiB is less than the {used / GIB:.1f} GiB in use already; raise it"
            )
    backend.limit_memory(device, wanted)
