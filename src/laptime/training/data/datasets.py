"""Datasets in memory, parts of any dataset, and its k folds. A batch is picked out in one operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from laptime.errors import DataError
from laptime.recorder.backends import backend_of

_MOST_RESIDENT = 2**30  # bytes


class Tensors(Dataset[Any]):
    """Samples along the first dimension of each tensor; every epoch sees the same ones.

    A batch is a copy: a network that changes its input in place leaves the data alone.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        last = tensors[-1]
        self.labels = last if last.dim() == 1 and last.dtype == torch.int64 else None
        self.resident = backend_of(tensors[0].device).accelerator

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitems__(self, picks: list[int]) -> tuple[Tensor, ...]:
        rows = torch.tensor(picks) % len(self)
        if self.resident:  # pinned, or the host would wait for the device
            rows = rows.pin_memory().to(self._tensors[0].device, non_blocking=True)
        return tuple(tensor.index_select(0, rows) for tensor in self._tensors)

    def for_device(self, device: torch.device) -> Tensors:
        """The same samples, kept on a GPU if they are not many: a batch then costs no transfer."""
        many = sum(tensor.nbytes for tensor in self._tensors) > _MOST_RESIDENT
        if not backend_of(device).accelerator or many:
            return self
        return Tensors(*(tensor.to(device) for tensor in self._tensors))


class Subset(Dataset[Any]):
    """Some samples of a dataset. The epoch in a pick reaches the dataset, and with it the augmentation."""

    def __init__(self, dataset: Dataset[Any], indices: Tensor) -> None:
        self._dataset, self._indices = dataset, indices.long()
        self.resident: bool = getattr(dataset, "resident", False)
        labels = getattr(dataset, "labels", None)
        self.labels: Tensor | None = None if labels is None else labels[self._indices]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitems__(self, picks: list[int]) -> Any:
        chosen = torch.tensor(picks)
        whole = len(self._dataset)  # type: ignore[arg-type]
        mapped = self._indices[chosen % len(self)] + chosen // len(self) * whole
        return self._dataset.__getitems__(mapped.tolist())  # type: ignore[attr-defined]

    def for_device(self, device: torch.device) -> Subset:
        """The same samples as the device would rather have them."""
        if not hasattr(self._dataset, "for_device"):
            return self
        return Subset(self._dataset.for_device(device), self._indices)


def folds(dataset: Dataset[Any], k: int, seed: int) -> list[tuple[Subset, Subset]]:
    """k pairs (train, held out): each sample is held out once, each class in equal shares where it is known.

    A dataset that can be seen without augmentation (`plain()`) is held out that way. One whose samples
    overlap their neighbours (`reach` of them on either side) is held out in stretches, and nothing that
    overlaps one is trained on.
    """
    samples = len(dataset)  # type: ignore[arg-type]
    if not 2 <= k <= samples:
        raise DataError(f"{samples} samples do not make {k} folds; choose from 2 to {samples}")
    plain = dataset.plain() if hasattr(dataset, "plain") else dataset
    every, reach = torch.arange(samples), getattr(dataset, "reach", 0)
    if reach:
        starts = torch.tensor([part * samples // k for part in range(1, k)])
        fold = torch.searchsorted(starts, every, right=True)
    else:
        labels = getattr(dataset, "labels", None)
        order = _by_class(torch.zeros(samples) if labels is None else labels, seed)
        fold = torch.empty(samples, dtype=torch.int64)
        fold[order] = every % k  # dealt out in turn, class after class
    pairs = []
    for part in range(k):
        held = every[fold == part]
        rest = every[fold != part]
        if reach:
            rest = rest[(rest < held[0] - reach) | (rest > held[-1] + reach)]
        if not len(rest):
            raise DataError(
                f"{samples} samples, each overlapping {reach} others on either side, do not make {k} folds; "
                "take more data or shorter pieces"
            )
        pairs.append((Subset(dataset, rest), Subset(plain, held)))
    return pairs


def divided(labels: Tensor, share: float, *, seed: int) -> Tensor:
    """Which samples are held out: `share` of each class, rounded, from the seed."""
    order = _by_class(labels, seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        of_class = order[labels[order] == label]
        held[of_class[: round(len(of_class) * share)]] = True
    return held


def _by_class(labels: Tensor, seed: int) -> Tensor:
    """Sample numbers, class after class, shuffled within each."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed % 2**63))
    return shuffled[labels[shuffled].argsort(stable=True)]


def shaped(images: Tensor, wanted: tuple[int, ...] | None) -> Tensor:
    """Images of one channel (samples, 1, height, width) as the network takes them.

    Flat for one dimension, rows in sequence for two; a network of colour images sees the same grey in each
    channel. The size stays as it is.
    """
    if wanted is None:
        return images
    if len(wanted) == 1:
        return images.flatten(1)
    if len(wanted) == 2:
        return images.squeeze(1)
    return images.expand(-1, wanted[0], -1, -1)  # a view: only batches are made as large


def whole_seed(seed: int, stream: int) -> int:
    """A seed for one of several streams, as numpy and torch take it: not negative, below 2**63."""
    return (seed + stream * 0x5DEECE66D) % 2**63


@contextmanager
def enough_memory(remedy: str) -> Iterator[None]:
    """What is allocated here fits, or one line says what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise DataError(f"the data does not fit into memory; lower {remedy}") from error
