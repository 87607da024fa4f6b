"""CUDA: events on the compute stream are the timeline; they are read once the device has passed them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from laptime.recorder.backends.backend import Backend, Clock, Stamp


class CudaClock:
    """Pooled CUDA events on the compute stream.

    A fresh `torch.cuda.Event` recorded through its Python wrapper costs about 40 µs on a slow host; a pooled
    one recorded by the C method on a held stream, a few.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = f"cuda:{device.index if device.index is not None else torch.cuda.current_device()}"
        self.deferred = True
        self._index = torch.device(self.device).index
        self._pool: list[torch.cuda.Event] = []
        self._record = torch._C._CudaEventBase.record
        self._address = -1
        self.follow()

    def now(self) -> Stamp:
        try:
            event = self._pool.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        self._record(event, self._stream)
        return event

    def ready(self, stamp: Stamp) -> bool:
        return bool(stamp.query())

    def wait(self, stamp: Stamp) -> None:
        stamp.synchronize()

    def read(self, stamps: Sequence[Stamp]) -> list[float]:
        """Milliseconds between neighbours: in float32, short intervals are more exact than long ones."""
        elapsed = torch._C._CudaEventBase.elapsed_time
        return [elapsed(a, b) for a, b in itertools.pairwise(stamps)]

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        self._pool.extend(stamps)

    def follow(self) -> None:
        # Asking for the stream object takes 14 µs on a slow host; its address, a fraction of one.
        address = torch._C._cuda_getCurrentRawStream(self._index)
        if address != self._address:
            self._address = address
            self._stream = torch.cuda.current_stream(self._index)


class CudaBackend(Backend):
    """NVIDIA's GPUs, and AMD's under the same names in torch."""

    type = "cuda"
    name = "CUDA"
    accelerator = True
    collectives = "nccl"
    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
    copies = ("cuda",)
    variables = (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "NVIDIA_TF32_OVERRIDE",
    )

    def __init__(self) -> None:
        self._side_streams: dict[int, torch.cuda.Stream] = {}

    def count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def facts(self, device: torch.device) -> dict[str, Any]:
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

    def clock(self, device: torch.device) -> Clock:
        return CudaClock(device)

    def select(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def memory_bytes(self, device: torch.device) -> int | None:
        return int(torch.cuda.get_device_properties(device).total_memory)

    def limit_memory(self, device: torch.device, limit: int) -> None:
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / whole, device)

    def read_numbers(self, device: torch.device, numbers: Sequence[torch.Tensor]) -> list[float]:
        """All at once, and on a side stream."""
        index = device.index or 0
        stream = self._side_streams.setdefault(index, torch.cuda.Stream(index))
        with torch.cuda.stream(stream):
            return [float(number) for number in torch.stack(list(numbers)).tolist()]

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event()

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.Stream(device)

    def current_stream(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.current_stream(device)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def random_states(self) -> list[torch.Tensor]:
        return list(torch.cuda.get_rng_state_all())

    def set_random_states(self, states: list[torch.Tensor]) -> None:
        torch.cuda.set_rng_state_all(states)
