"""Data that fits into memory: a batch is picked out of whole tensors in one operation."""

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

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitems__(self, picks: list[int]) -> tuple[Tensor, ...]:
        rows = torch.tensor(picks) % len(self)
        if self.resident:  # pinned, or the host would wait for the device
            rows = rows.pin_memory().to(self._tensors[0].device, non_blocking=True)
        return tuple(tensor.index_select(0, rows) for tensor in self._tensors)

    @property
    def resident(self) -> bool:
        """Whether batches are made on the device."""
        return backend_of(self._tensors[0].device).accelerator

    def for_device(self, device: torch.device) -> Tensors:
        """The same samples, kept on a GPU if they are not many: a batch then costs no transfer."""
        many = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors) > _MOST_RESIDENT
        if not backend_of(device).accelerator or many:
            return self
        return Tensors(*(tensor.to(device) for tensor in self._tensors))

    @property
    def labels(self) -> Tensor | None:
        """A class number for each sample, where there is one."""
        last = self._tensors[-1]
        return last if last.dim() == 1 and last.dtype == torch.int64 else None


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
