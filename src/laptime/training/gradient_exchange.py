"""Gradients averaged over ranks, bucket by bucket during the backward pass, and the time that takes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from laptime.model.intervals import union
from laptime.recorder.clocks import Stamp, clock_for


@dataclass(slots=True)
class _BackwardPass:
    """Time stamps of one backward pass: when each bucket was sent, and when its mean arrived."""

    begins: list[Stamp] = field(default_factory=list)
    ends: list[Stamp] = field(default_factory=list)
    final: int = -1  # the bucket after which no gradient is left to compute


class Exchange:
    """Gradients averaged over the ranks, timed on the device's own clock.

    A bucket's time runs from the moment its gradients are there to the moment all ranks have its mean. What
    of that lies after the last gradient is *exposed*: nothing else is left to do. The rest is *overlapped*.
    """

    def __init__(self, ranks: int, device: torch.device) -> None:
        self.bytes = self.buckets = 0
        self.busy_s = self.exposed_s = 0.0
        self._ranks = ranks
        # On a GPU: an event on whichever stream is current, the compute stream or that of the future.
        self._clock = clock_for(device)
        self._running = _BackwardPass()
        self._waiting: deque[_BackwardPass] = deque()  # until the device has reached their stamps

    def average(self, bucket: GradBucket) -> torch.futures.Future[Any]:
        """A future with the mean of a bucket over all ranks."""
        tensor = bucket.buffer().div_(self._ranks)
        self.bytes += tensor.numel() * tensor.element_size()
        self.buckets += 1
        if self._running.final >= 0:  # an objective of several losses has several backward passes
            self._next()
        running = self._running
        running.begins.append(self._stamp())
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        if bucket.is_last():
            running.final = len(running.begins) - 1

        def done(future: torch.futures.Future[Any]) -> torch.Tensor:
            running.ends.append(self._stamp())
            value: torch.Tensor = future.value()[0]
            return value

        averaged: torch.futures.Future[Any] = work.get_future().then(done)
        return averaged

    def _stamp(self) -> Stamp:
        self._clock.follow()
        return self._clock.now()

    def end_step(self) -> None:
        """End a step: all buckets of its backward passes have been sent."""
        if self._running.begins:
            self._next()
        self._settle(wait=False)

    def _next(self) -> None:
        self._waiting.append(self._running)
        self._running = _BackwardPass()

    def document(self) -> dict[str, Any]:
        """What this rank has exchanged so far."""
        self._settle(wait=True)
        return {
            "bytes": self.bytes,
            "buckets": self.buckets,
            "seconds": self.busy_s,
            "exposed_s": self.exposed_s,
            "overlapped_s": max(0.0, self.busy_s - self.exposed_s),
        }

    def _settle(self, *, wait: bool) -> None:
        """Add up the passes that the device has completed."""
        while self._waiting:
            oldest = self._waiting[0]
            if wait:
                for stamp in oldest.ends:
                    self._clock.wait(stamp)
            elif len(oldest.ends) < len(oldest.begins) or not all(map(self._clock.ready, oldest.ends)):
                return
            self._count(self._waiting.popleft())

    def _count(self, done: _BackwardPass) -> None:
        stamps = [*done.begins, *done.ends]
        # Each stamp's time since the first; reading takes neighbours, so they are read against it in pairs.
        zero = stamps[0]
        times = [0.0, *(self._clock.read([zero, stamp])[0] * 1e-3 for stamp in stamps[1:])]
        begins, ends = times[: len(done.begins)], times[len(done.begins) :]
        # Buckets arrive in the order they were sent, so the n-th end belongs to the n-th beginning.
        spans = list(zip(begins, sorted(ends), strict=False))
        self.busy_s += sum(end - begin for begin, end in union(spans))
        if done.final >= 0 and ends:
            self.exposed_s += max(0.0, max(ends) - begins[done.final])
        self._clock.recycle(stamps)


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
