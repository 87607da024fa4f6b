"""The processes of one training: which of them this is, and what they exchange."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from laptime.measure.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those that train together, as `torchrun` tells it by the environment."""

    rank: int = 0
    ranks: int = 1
    local: int = 0
    restarts: int = 0

    @classmethod
    def here(cls) -> Ranks:
        """From the environment; one alone where nothing is said."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return cls()
        return cls(
            rank=int(os.environ["RANK"]),
            ranks=int(os.environ["WORLD_SIZE"]),
            local=int(os.environ.get("LOCAL_RANK", "0")),
            restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    @property
    def several(self) -> bool:
        """Whether there is anybody to wait for."""
        return self.ranks > 1

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Meet the others, and leave them properly."""
        if not self.several:
            yield
            return
        cuda = device.type == "cuda"
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=self._store(),
            rank=self.rank,
            world_size=self.ranks,
            device_id=device if cuda else None,
        )
        try:
            yield
        finally:
            dist.destroy_process_group()

    def _store(self) -> Any:
        """Where ranks find each other. After a restart it still has the addresses of those that died.

        Gloo took those for the living about every third time (torch 2.13), hence a name for each attempt.
        """
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by the launcher
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            self.ranks,
            is_master=self.rank == 0 and not hosted,
        )
        return PrefixStore(f"laptime-{self.restarts}", store)

    def wait(self) -> None:
        """Until all have come here."""
        if self.several:
            dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """What every rank has to say, on every rank."""
        if not self.several:
            return [value]
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, value)
        return found

    def mean(self, sums: list[float]) -> list[float]:
        """The mean over all ranks of a few numbers."""
        if not self.several:
            return sums
        found = self.gather(sums)
        return [sum(column) / self.ranks for column in zip(*found, strict=True)]


@dataclass(slots=True)
class Exchange:
    """Gradients averaged over the ranks, bucket by bucket, while the backward pass goes on; timed.

    A bucket's time runs from the moment it is handed over to the moment all ranks have its mean. What of that
    lies after the last gradient is *exposed*: nothing else is left to do. The rest is *overlapped*.
    """

    ranks: int
    timed: bool = True
    recorder: Recorder | None = None
    bytes: int = 0
    buckets: int = 0
    busy_s: float = 0.0
    exposed_s: float = 0.0
    _ends: list[float] = field(default_factory=list)
    _spans: list[tuple[float, float]] = field(default_factory=list)
    _last_begin: float = 0.0

    def average(self, bucket: GradBucket) -> torch.futures.Future[Any]:
        """The mean of a bucket over all ranks, once it is there."""
        tensor = bucket.buffer().div_(self.ranks)
        begin = time.perf_counter()
        self.bytes += tensor.numel() * tensor.element_size()
        self.buckets += 1
        last = bucket.is_last()
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        if last:
            self._last_begin = begin
            if self.recorder is not None:
                self.recorder.communicating()

        def done(future: torch.futures.Future[Any]) -> torch.Tensor:
            self._spans.append((begin, time.perf_counter()))
            value: torch.Tensor = future.value()[0]
            return value

        averaged: torch.futures.Future[Any] = work.get_future().then(done)
        return averaged

    def end_step(self) -> None:
        """A backward pass is over: all its buckets are here."""
        if not self._spans:
            return
        union, reached = 0.0, 0.0
        for begin, end in sorted(self._spans):
            union += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        self.busy_s += union
        self.exposed_s += max(0.0, reached - self._last_begin) if self._last_begin else 0.0
        self._spans.clear()
        self._last_begin = 0.0

    def document(self) -> dict[str, Any]:
        """What this rank has exchanged so far. On a GPU the host's clock says nothing of how long it took."""
        sent: dict[str, Any] = {"bytes": self.bytes, "buckets": self.buckets}
        if not self.timed:
            return sent | {"seconds": None, "exposed_s": None, "overlapped_s": None}
        return sent | {
            "seconds": self.busy_s,
            "exposed_s": self.exposed_s,
            "overlapped_s": max(0.0, self.busy_s - self.exposed_s),
        }


def parallel(network: nn.Module, exchange: Exchange, device: torch.device, *, groups: int) -> nn.Module:
    """The network with its gradients averaged over the ranks."""
    wrapped = DistributedDataParallel(
        network,
        device_ids=[device] if device.type == "cuda" else None,
        find_unused_parameters=groups > 1,  # each loss trains some of them
    )
    wrapped.register_comm_hook(exchange, _hook)
    return wrapped


def _hook(exchange, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    return exchange.average(bucket)
