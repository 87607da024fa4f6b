"""Batches in an order that depends only on the seed and the epoch, brought to the device ahead of time.

So a training that goes on from a checkpoint in the middle of an epoch sees the batches that an unbroken one
would have seen, whichever process reads them, and however many ranks share the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from laptime.recorder.backends import accelerators, backend_of
from laptime.training.config import LoaderConfig
from laptime.training.objectives import Batch


@dataclass(eq=False)
class Order(Sampler[list[int]]):
    """The picks of each batch: a sample's index + epoch · samples, so that augmentation knows the epoch.

    Every rank takes every n-th sample of the same order, and as many batches as all the others.
    """

    samples: int
    batch: int
    _: KW_ONLY
    seed: int
    shuffle: bool
    drop_last: bool
    rank: int = 0
    ranks: int = 1
    epochs: int = 0  # of the training, one after the other; 0: a single epoch
    epoch: int = 0
    first: int = 0  # batches of this epoch that are already done

    @property
    def batches(self) -> int:
        """Batches in an epoch, for each rank."""
        mine = self.samples // self.ranks if self.drop_last else -(-self.samples // self.ranks)
        return mine // self.batch if self.drop_last else -(-mine // self.batch)

    def __len__(self) -> int:
        epochs = max(1, self.epochs - self.epoch)
        return max(0, epochs * self.batches - self.first)

    def __iter__(self) -> Iterator[list[int]]:
        first = self.first
        for epoch in range(self.epoch, max(self.epochs, self.epoch + 1)):
            order = torch.arange(self.samples)
            if self.shuffle:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(self.samples, generator=generator)
            # Every rank gets equally many batches, or one would wait for ever: a few samples are used twice.
            missing = -len(order) % self.ranks
            mine = torch.cat([order, order[:missing]])[self.rank :: self.ranks] + epoch * self.samples
            for index in range(first, self.batches):
                yield mine[index * self.batch : (index + 1) * self.batch].tolist()
            first = 0


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
            generator=torch.Generator().manual_seed(0),  # not the training's, which every epoch would advance
            collate_fn=tuple,  # datasets make whole batches, as tuples
            num_workers=workers,
            pin_memory=pinned and any(accelerator.count() for accelerator in accelerators()) and not resident,
            prefetch_factor=config.prefetch if workers else None,
            persistent_workers=workers > 0,  # starting them anew takes longer than a small epoch
        )

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the `first` on."""
        if self._running is None or self._next != (epoch, first):
            self.order.epoch, self.order.first = epoch, first
            # Batch after batch: workers do not wait for an epoch to end before they begin with the next.
            self._running = iter(self._loader)
            if self._ahead:
                self._running = _copied_ahead(self._running, self._device)
            elif self._device.type != "cpu":
                self._running = (moved(batch, self._device) for batch in self._running)
        for index in range(first, self.order.batches):
            self._next = epoch, index + 1
            yield next(self._running)
        self._next = epoch + 1, 0
        if not self.order.epochs:
            self._running = None

    def sample(self) -> Batch:
        """A batch of one sample, on the device."""
        return moved(self._loader.dataset.__getitems__([0]), self._device)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the workers."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def moved(batch: Batch, device: torch.device) -> Batch:
    """A batch on the device: each of its parts moves itself."""
    return tuple(part.to(device, non_blocking=True) for part in batch)


def _copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Each batch, copied on a stream of its own while the one before it was computed on."""
    backend = backend_of(device)
    stream, compute = backend.stream(device), backend.current_stream(device)
    following: Batch | None = None
    for batch in batches:
        with backend.on_stream(stream):
            copied = moved(batch, device)
        if following is not None:
            yield following
        compute.wait_stream(stream)
        for part in copied:
            part.record_stream(compute)  # tells the allocator that another stream uses it, too
        following = copied
    if following is not None:
        yield following
