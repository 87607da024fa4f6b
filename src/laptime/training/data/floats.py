"""Bytes to normalised floats, in memory that is used again.

A batch of 64 colour images is 38 MB of floats. Fresh memory of that size costs more than the conversion, page
by page (350 against 60 µs an image on a virtual machine), and memory shared between processes does too. So
workers send bytes, which become floats on arrival, and arrays that nobody holds any more are written anew.
For a GPU they stay bytes until they are there: a quarter of the copying, pinning and transfer.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laptime.training.data.images import DEVIATION, MEAN, decoders

_MOST_KEPT = 4  # arrays: the batch in use, the next one, and two on their way
_OURS = 2  # references to an array that only the list holds: the list's, and the one that asks


class Floats:
    """Tensors of uninitialised floats. An array is handed out again once no tensor looks at it.

    A tensor made from an array holds a reference to it for as long as its memory is in use, by views and by
    autograd too; so the number of references tells.
    """

    def __init__(self) -> None:
        self._kept: list[NDArray[np.float32]] = []
        self._lock = Lock()  # the thread that pins memory unpacks batches too

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """An uninitialised tensor of this shape, in reused memory where possible."""
        with self._lock:
            for place in range(len(self._kept)):
                if self._kept[place].shape == shape and sys.getrefcount(self._kept[place]) == _OURS:
                    self._kept.append(self._kept.pop(place))  # the longest unused is the first to go
                    return torch.from_numpy(self._kept[-1])
            self._kept = [*self._kept[1 - _MOST_KEPT :], np.empty(shape, np.float32)]
            return torch.from_numpy(self._kept[-1])


FLOATS = Floats()
"""Of this process."""


class Sent:
    """Images (samples, channels, height, width) sent to another process as bytes, unpickled as floats."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def __reduce__(self) -> tuple[Any, ...]:
        return normalised, (self._images,)


class Bytes:
    """Images as bytes that become floats on the device they are moved to."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def pin_memory(self) -> Bytes:
        """The same in page-locked memory; what a loader asks of a batch."""
        return Bytes(self._images.pin_memory())

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Tensor:
        """Normalised floats on the device."""
        arrived = self._images.to(device, non_blocking=non_blocking)
        scale, shift = _scales_on(arrived.shape[1], arrived.device)
        floats: Tensor = arrived * scale
        return floats.add_(shift)


@cache
def _scales_on(channels: int, device: torch.device) -> Tensor:
    """Scales and shifts, each of shape (channels, 1, 1)."""
    return torch.tensor(_scales(channels), device=device).T[..., None, None]


def shared_bytes(shape: tuple[int, ...]) -> Tensor:
    """Uninitialised bytes that another process can see: they need no copying on their way there."""
    storage = torch.UntypedStorage._new_shared(math.prod(shape), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def normalised(images: Tensor) -> Tensor:
    """Images in bytes as floats of mean 0 and deviation 1, going by ImageNet's."""
    floats = FLOATS.tensor(tuple(images.shape))
    for image, out in zip(images.numpy(), floats.numpy(), strict=True):
        normalise(image, out)
    return floats


def normalise(image: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """One image of (channels, height, width)."""
    cv2 = decoders()[1]
    for plane, target, (scale, shift) in zip(image, out, _scales(len(image)), strict=True):
        # One pass; numpy would take three.
        cv2.addWeighted(plane, scale, plane, 0.0, shift, dst=target, dtype=cv2.CV_32F)


@cache
def _scales(channels: int) -> tuple[tuple[float, float], ...]:
    """What turns bytes into normalised numbers: byte · scale + shift."""
    pairs = list(zip(MEAN, DEVIATION, strict=True))
    if channels == 1:
        pairs = [(sum(MEAN) / 3, sum(DEVIATION) / 3)]
    return tuple((1 / (255 * deviation), -mean / deviation) for mean, deviation in pairs)
