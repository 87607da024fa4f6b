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

from laptime.train.config import LoaderConfig
from laptime.train.objectives import Batch


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
    ) -> None:
        self._samples, self._batch, self._seed = samples, batch, seed
        self._shuffle, self._drop_last = shuffle, drop_last
        self._rank, self._ranks = rank, ranks
        self.epoch = 0
        self.first = 0  # batches of this epoch that were done before

    @property
    def batches(self) -> int:
        """Batches in an epoch, for each rank."""
        mine = self._samples // self._ranks if self._drop_last else -(-self._samples // self._ranks)
        return mine // self._batch if self._drop_last else -(-mine // self._batch)

    def __len__(self) -> int:
        return max(0, self.batches - self.first)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        # Where ranks do not come out even, a few samples are seen twice, lest a rank wait for ever.
        missing = -len(order) % self._ranks
        mine = torch.cat([order, order[:missing]])[self._rank :: self._ranks] + self.epoch * self._samples
        for index in range(self.first, self.batches):
            yield mine[index * self._batch : (index + 1) * self._batch].tolist()

    def _order(self) -> Tensor:
        if not self._shuffle:
            return torch.arange(self._samples)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
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
        self._ahead = config.ahead and device.type == "cuda" and not resident
        pinned = config.pin_memory if config.pin_memory is not None else device.type == "cuda"
        workers = 0 if resident else config.workers
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=order,
            generator=torch.Generator().manual_seed(0),  # else each epoch draws from the training's own
            collate_fn=_as_it_is,  # datasets make whole batches
            num_workers=workers,
            pin_memory=pinned and torch.cuda.is_available() and not resident,
            prefetch_factor=config.prefetch if workers else None,
            persistent_workers=workers > 0,  # starting them anew takes longer than a small epoch
        )

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the `first` on."""
        self.order.epoch, self.order.first = epoch, first
        batches = iter(self._loader)
        if self._ahead:
            yield from _ahead(batches, self._device)
        elif self._device.type == "cpu":
            yield from batches
        else:
            for batch in batches:
                yield moved(batch, self._device)

    def close(self) -> None:
        """End the workers."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on the device, through tuples, lists and dicts; anything with `.to` moves itself."""
    if isinstance(batch, tuple | list):
        return type(batch)(moved(one, device) for one in batch)
    if isinstance(batch, dict):
        return {key: moved(one, device) for key, one in batch.items()}
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Batch]:
    """Each batch, copied on a stream of its own while the one before it was computed on."""
    stream = torch.cuda.Stream(device)
    compute = torch.cuda.current_stream(device)
    following: Any = None
    for batch in batches:
        with torch.cuda.stream(stream):
            copied = moved(batch, device)
        if following is not None:
            yield following
        compute.wait_stream(stream)
        _used_on(copied, compute)
        following = copied
    if following is not None:
        yield following


def _used_on(batch: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that a batch made on another stream is used on this one."""
    if isinstance(batch, Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, tuple | list):
        for one in batch:
            _used_on(one, stream)
    elif isinstance(batch, dict):
        for one in batch.values():
            _used_on(one, stream)
