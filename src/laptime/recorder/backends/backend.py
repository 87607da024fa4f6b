"""What a kind of device has to offer so that trainings on it can be run and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity

Stamp = Any


class Clock(Protocol):
    """Where the timeline of a step is read.

    A clock stamps (`now`) and later tells the time between stamps (`read`). On the CPU a stamp is a host
    time. On an accelerator it is an event on the compute stream, so an interval is exposed time on the device
    and nothing waits for it: events are read back once the device has passed the last of them. The default
    methods suit a clock whose stamps can be read at once.
    """

    device: str
    deferred: bool = False  # stamps can be read only after the device has passed them

    def now(self) -> Stamp:
        """A stamp on the timeline, cheap enough to take hundreds of times a step."""

    def read(self, stamps: Sequence[Stamp]) -> list[float]:
        """Milliseconds between neighbouring stamps."""

    def ready(self, stamp: Stamp) -> bool:
        """Whether the device has passed this stamp. Never waits."""
        return True

    def wait(self, stamp: Stamp) -> None:
        """Block until the device has passed this stamp: the one place where laptime synchronises."""
        return

    def recycle(self, stamps: Sequence[Stamp]) -> None:
        """Take back stamps that are no longer needed."""
        return

    def follow(self) -> None:
        """Called at the start of a step: keep the compute stream."""
        return


class DeviceEvent(Protocol):
    """A moment on a device's current stream."""

    def record(self) -> Any: ...
    def query(self) -> bool: ...
    def synchronize(self) -> Any: ...


class Backend(Protocol):
    """One kind of device. The default methods suit devices that queue nothing, such as the CPU.

    Every implementation passes the contract in `tests/recorder/test_backends.py`.
    """

    type: str  # as in `torch.device(type)`
    name: str  # for display
    accelerator: bool = False  # asynchronous to the host: work is queued, batches are copied to it
    collectives: str = "gloo"  # the torch.distributed backend
    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU,)  # what a kernel trace records
    copies: tuple[str, ...] = ()  # methods of tensors that copy to it, beside `to`
    variables: tuple[str, ...] = ()  # environment variables that affect its speed

    def count(self) -> int:
        """The number of devices that this process can use."""

    def facts(self, device: torch.device) -> dict[str, Any]:
        """Type, name and size of a device, as plain values."""

    def clock(self, device: torch.device) -> Clock:
        """The clock that stamps a step's timeline."""

    def memory_bytes(self, device: torch.device) -> int | None:
        """Memory of the device; None where unknown."""

    def limit_memory(self, device: torch.device, limit: int) -> None:
        """Refuse allocations beyond this many bytes."""

    def random_states(self) -> list[torch.Tensor]:
        """The states of its random generators."""

    def set_random_states(self, states: list[torch.Tensor]) -> None:
        """Restore the states of its random generators."""

    def select(self, device: torch.device) -> None:
        """Make this the current device."""
        return

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        return

    def read_numbers(self, device: torch.device, numbers: Sequence[torch.Tensor]) -> list[float]:
        """Single numbers of one type that are computed already, without waiting for what was queued since."""
        return [float(number) for number in numbers]

    def event(self) -> DeviceEvent | None:
        """An event without a time; None where nothing is queued."""
        return None

    def stream(self, device: torch.device) -> Any:
        """A new stream beside the compute stream; None without streams."""
        return None

    def current_stream(self, device: torch.device) -> Any:
        """The compute stream; None without streams."""
        return None

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue the enclosed work on another stream."""
        return nullcontext()
