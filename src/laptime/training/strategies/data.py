"""Synchronous data parallel: gradients averaged bucket by bucket during the backward pass."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from laptime.recorder.backends import backend_of
from laptime.recorder.recorder import active_recording
from laptime.training.strategies import strategy
from laptime.training.strategies.contract import Strategy


class AveragedGradients:
    """A network whose gradients are averaged over a group of ranks by torch's DDP.

    DDP's own exchange is in C++, where nothing can be recorded; this one does the same from Python. Gradients
    are views of the buckets, which spares a copy back: with it, exchanging from Python costs nothing
    (docs/log.md).
    """

    def __init__(
        self, network: nn.Module, device: torch.device, *, losses: int, group: ProcessGroup | None = None
    ) -> None:
        self._group = group if group is not None else dist.distributed_c10d._get_default_group()
        self._ranks = self._group.size()
        self.network = DistributedDataParallel(
            network,
            device_ids=[device] if backend_of(device).accelerator else None,
            process_group=group,
            find_unused_parameters=losses > 1,  # each loss trains some of them
            gradient_as_bucket_view=True,
        )
        # Not itself: DDP keeps it where the garbage collector does not look, and both would stay for ever.
        self.network.register_comm_hook(weakref.ref(self), _average)

    def average(self, bucket: GradBucket) -> torch.futures.Future[Any]:
        """A future with the mean of a bucket over all ranks."""
        tensor = bucket.buffer().div_(self._ranks)
        if (recording := active_recording()) is not None:
            recording.carries(bucket.index(), bucket.parameters())
        future = self._group.allreduce([tensor]).get_future()
        arrived = recording.arrival() if recording is not None else None

        def mean(future: torch.futures.Future[Any]) -> torch.Tensor:
            if arrived is not None:
                arrived()
            value: torch.Tensor = future.value()[0]
            return value

        averaged: torch.futures.Future[Any] = future.then(mean)
        return averaged


def _average(averaged, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    return averaged().average(bucket)


@strategy("data")
class DataParallel(Strategy):
    """Each rank has the whole network and its own samples, and all wait for the mean of their gradients."""

    def connect(self, network: nn.Module, *, losses: int) -> None:
        self._averaged = AveragedGradients(network, self.device, losses=losses)
        self.network = self._averaged.network

    def accumulating(self) -> AbstractContextManager[Any]:
        return self._averaged.network.no_sync()
