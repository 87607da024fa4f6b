"""Batches in an order that depends only on the seed and the epoch, brought to the device ahead of time.

So a training that goes on from a checkpoint in the middle of an epoch sees the batches that an unbroken one
would have seen, whichever process reads them, and however many ranks share the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from laptime.recorder.backends import accelerators, backend_of
from laptime.training.config import LoaderConfig
from laptime.training.objectives import Batch


class Order(Sampler[list[int]]):
    """The picks of each batch: a sample's index + epoch · samples, so that augmentation knows the epoch.

    Every rank takes every n-th sample of the same order, and as many batches as all the others.
    """

    def __init__(
        self,
        samples: int,
        batch: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        rank: int = 0,
        ranks: int = 1,
        epochs: int = 0,
    ) -> None:
        self.epochs = epochs  # of the training, one after the other; 0: a single epoch
        self._samples, self._batch, self._seed = samples, batch, seed
        self._shuffle, self._drop_last = shuffle, drop_last
        self._rank, self._ranks = rank, ranks
        self.epoch = 0
        self.first = 0  # batches of this epoch that are already done

    @property
    def batches(self) -> int:
        """Batches in an epoch, for each rank."""
        mine = self._samples // self._ranks if self._drop_last else -(-self._samples // self._ranks)
        return mine // self._batch if self._drop_last else -(-mine // self._batch)

    def __len__(self) -> int:
        epochs = max(1, self.epochs - self.epoch)
        return max(0, epochs * self.batches - self.first)

    def __iter__(self) -> Iterator[list[int]]:
        first = self.first
        for epoch in range(self.epoch, max(self.epochs, self.epoch + 1)):
            order = self._order(epoch)
            # Every rank gets equally many batches, or one would wait for ever: a few samples are used twice.
            missing = -len(order) % self._ranks
            mine = torch.cat([order, order[:missing]])[self._rank :: self._ranks] + epoch * self._samples
            for index in range(first, self.batches):
                yield mine[index * self._batch : (index + 1) * self._batch].tolist()
            first = 0

    def _order(self, epoch: int) -> Tensor:
        if not self._shuffle:
            return torch.arange(self._samples)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        return torch.randperm(self._samples, generator=generator)


def _as_it_is(batch: Any) -> Any:
    return batch


class Batches:
    """The batches of any epoch, on the device."""

    def __init__(
        self, dataset: Dataset[Any], order: Order, config: LoaderConfig, device: torch.device
    ) -> None:
        self.order = order
        self._device = device
        if config.resident and hasattr(dataset, "for_device"):
            dataset = dataset.for_device(device)
        resident = getattr(dataset, "resident", False)
        accelerated = backend_of(device).accelerator
        self._ahead = config.ahead and accelerated and not resident
        pinned = config.pin_memory if config.pin_memory is not None else accelerated
        workers = 0 if resident else config.workers
        self._running: Iterator[Batch] | None = None
        self._next = 0, 0  # epoch and batch that `_running` yields next
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=order,
            generator=torch.Generator().manual_seed(
                0
            ),  # otherwise every epoch would advance the training's generator
            collate_fn=_as_it_is,  # datasets make whole batches
            num_workers=workers,
            pin_memory=pinned and any(accelerator.count() for accelerator in accelerators()) and not resident,
            prefetch_factor=config.prefetch if workers else None,
            persistent_workers=workers > 0,  # starting them anew takes longer than a small epoch
        )

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the `first` on."""
        if self._running is None or self._next != (epoch, first):
            self.order.epoch, self.order.first = epoch, first
            self._running = self._from_here()
        for index in range(first, self.order.batches):
            self._next = epoch, index + 1
            yield next(self._running)
        self._next = epoch + 1, 0
        if not self.order.epochs:
            self._running = None

    def _from_here(self) -> Iterator[Batch]:
        """Batch after batch: workers do not wait for an epoch to end before they begin with the next."""
        batches = iter(self._loader)
        if self._ahead:
            return _ahead(batches, self._device)
        if self._device.type == "cpu":
            return batches
        return (moved(batch, self._device) for batch in batches)

    def close(self) -> None:
        """End the workers."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on the device, through tuples, lists and dicts; anything with `.to` moves itself."""
    if isinstance(batch, tuple | list):
        return type(batch)(moved(inner, device) for inner in batch)
    if isinstance(batch, dict):
        return {key: moved(inner, device) for key, inner in batch.items()}
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Batch]:
    """Each batch, copied on a stream of its own while the one before it was computed on."""
    backend = backend_of(device)
    stream, compute = backend.stream(device), backend.current_stream(device)
    following: Any = None
    for batch in batches:
        with backend.on_stream(stream):
            copied = moved(batch, device)
        if following is not None:
            yield following
        compute.wait_stream(stream)
        _used_on(copied, compute)
        following = copied
    if following is not None:
        yield following


def _used_on(batch: Any, stream: Any) -> None:
    """Tell the allocator that a batch made on another stream is used on this one."""
    if isinstance(batch, Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, tuple | list):
        for inner in batch:
            _used_on(inner, stream)
    elif isinstance(batch, dict):
        for inner in batch.values():
            _used_on(inner, stream)
