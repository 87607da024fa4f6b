"""What a kind of device has to offer so that trainings on it can be run and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity

from laptime.recorder.clocks import Clock


class DeviceEvent(Protocol):
    """A moment on a device's current stream."""

    def record(self) -> Any: ...
    def query(self) -> bool: ...
    def synchronize(self) -> Any: ...


class Backend(Protocol):
    """One kind of device. Every implementation passes `tests/recorder/test_backends.py`."""

    @property
    def type(self) -> str:
        """As in `torch.device(type)`."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def accelerator(self) -> bool:
        """Whether it computes beside the host: work is queued, batches are copied to it."""
        ...

    @property
    def collectives(self) -> str:
        """The backend of torch.distributed that its ranks exchange with."""
        ...

    @property
    def activities(self) -> tuple[ProfilerActivity, ...]:
        """What a kernel trace records of it."""
        ...

    @property
    def copies(self) -> tuple[str, ...]:
        """Methods of tensors that copy to it, beside `to`."""
        ...

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that change how fast it is."""
        ...

    def count(self) -> int:
        """How many of them this process can use."""
        ...

    def facts(self, device: torch.device) -> dict[str, Any]:
        """Type, name and size of one of them, as plain values."""
        ...

    def clock(self, device: torch.device) -> Clock:
        """What stamps a step's timeline on it."""
        ...

    def select(self, device: torch.device) -> None:
        """Use this one where code does not say which."""
        ...

    def synchronize(self) -> None:
        """Wait until it has done all it was given."""
        ...

    def memory_bytes(self, device: torch.device) -> int | None:
        """How much memory it has; None where nobody can tell."""
        ...

    def limit_memory(self, device: torch.device, limit: int) -> None:
        """Have its allocator refuse what goes beyond so many bytes."""
        ...

    def read_numbers(self, device: torch.device, numbers: Sequence[torch.Tensor]) -> list[float]:
        """Single numbers of one type that are computed already, without waiting for what was queued since."""
        ...

    def event(self) -> DeviceEvent | None:
        """An event without a time; None where nothing is queued."""
        ...

    def stream(self, device: torch.device) -> Any:
        """A new stream beside the one that computes; None where there are none."""
        ...

    def current_stream(self, device: torch.device) -> Any:
        """The stream that computes; None where there are none."""
        ...

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue what is done within on another stream."""
        ...

    def random_states(self) -> list[torch.Tensor]:
        """The states of its random generators."""
        ...

    def set_random_states(self, states: list[torch.Tensor]) -> None:
        """Put them back."""
        ...
