"""Parts of a dataset: some of its samples, and its k folds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from laptime.errors import DataError


class Subset(Dataset[Any]):
    """Some samples of a dataset. The epoch in a pick reaches the dataset, and with it the augmentation."""

    def __init__(self, dataset: Dataset[Any], indices: Tensor) -> None:
        self._dataset, self._indices = dataset, indices.long()

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

    @property
    def resident(self) -> bool:
        """Whether batches are made on the device."""
        return bool(getattr(self._dataset, "resident", False))

    @property
    def labels(self) -> Tensor | None:
        """A class number for each sample, where the dataset has one."""
        labels = getattr(self._dataset, "labels", None)
        return None if labels is None else labels[self._indices]


def folds(
    dataset: Dataset[Any], k: int, seed: int, labels: Tensor | None = None
) -> list[tuple[Subset, Subset]]:
    """k pairs (train, held out): each sample is held out once, each class in equal shares where it is known.

    A dataset that can be seen without augmentation (`plain()`) is held out that way. One whose samples
    overlap their neighbours (`reach` of them on either side) is held out in stretches, and nothing that
    overlaps one is trained on.
    """
    samples = len(dataset)  # type: ignore[arg-type]
    if not 2 <= k <= samples:
        raise DataError(f"{samples} samples do not make {k} folds; choose from 2 to {samples}")
    plain = dataset.plain() if hasattr(dataset, "plain") else dataset
    reach = getattr(dataset, "reach", 0)
    if reach:
        pairs = _stretches(samples, k, reach)
    else:
        labels = labels if labels is not None else getattr(dataset, "labels", None)
        order = _by_class(torch.zeros(samples) if labels is None else labels, seed)
        fold = torch.empty(samples, dtype=torch.int64)
        fold[order] = torch.arange(samples) % k  # dealt out in turn, class after class
        pairs = [((fold != part).nonzero()[:, 0], (fold == part).nonzero()[:, 0]) for part in range(k)]
    return [(Subset(dataset, rest), Subset(plain, held)) for rest, held in pairs]


def _stretches(samples: int, k: int, reach: int) -> list[tuple[Tensor, Tensor]]:
    """k pairs of sample indices: all samples further than `reach` from a contiguous range, and the range."""
    every = torch.arange(samples)
    pairs = []
    for part in range(k):
        begin, end = part * samples // k, (part + 1) * samples // k
        rest = every[(every < begin - reach) | (every >= end + reach)]
        if not len(rest):
            raise DataError(
                f"{samples} samples, each overlapping {reach} others on either side, do not make {k} folds; "
                "take more data or shorter pieces"
            )
        pairs.append((rest, every[begin:end]))
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
