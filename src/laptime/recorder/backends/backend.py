"""What a kind of device has to offer so that trainings on it can be run and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
    """One kind of device. What has a body here is so of devices that queue nothing, such as the CPU.

    Every implementation passes the contract in `tests/recorder/test_backends.py`.
    """

    type: str  # as in `torch.device(type)`
    name: str  # what people call it
    accelerator: bool = False  # it computes beside the host: work is queued, batches are copied to it
    collectives: str = "gloo"  # what torch.distributed exchanges by between its ranks
    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU,)  # what a kernel trace records
    copies: tuple[str, ...] = ()  # methods of tensors that copy to it, beside `to`
    variables: tuple[str, ...] = ()  # of the environment, that change how fast it is

    def count(self) -> int:
        """How many of them this process can use."""
        ...

    def facts(self, device: torch.device) -> dict[str, Any]:
        """Type, name and size of one of them, as plain values."""
        ...

    def clock(self, device: torch.device) -> Clock:
        """What stamps a step's timeline on it."""
        ...

    def memory_bytes(self, device: torch.device) -> int | None:
        """How much memory it has; None where nobody can tell."""
        ...

    def limit_memory(self, device: torch.device, limit: int) -> None:
        """Refuse allocations that go beyond so many bytes."""
        ...

    def random_states(self) -> list[torch.Tensor]:
        """The states of its random generators."""
        ...

    def set_random_states(self, states: list[torch.Tensor]) -> None:
        """Put them back."""
        ...

    def select(self, device: torch.device) -> None:
        """Use this one where code does not say which."""
        return

    def synchronize(self) -> None:
        """Wait until it has done all it was given."""
        return

    def read_numbers(self, device: torch.device, numbers: Sequence[torch.Tensor]) -> list[float]:
        """Single numbers of one type that are computed already, without waiting for what was queued since."""
        return [float(number) for number in numbers]

    def event(self) -> DeviceEvent | None:
        """An event without a time; None where nothing is queued."""
        return None

    def stream(self, device: torch.device) -> Any:
        """A new stream beside the one that computes; None where there are none."""
        return None

    def current_stream(self, device: torch.device) -> Any:
        """The stream that computes; None where there are none."""
        return None

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue what is done within on another stream."""
        return nullcontext()
