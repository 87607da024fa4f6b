"""Images in folders, one folder per class, as in ImageNet.

Batches are normalised float32, plain tensors that any network takes. A batch of 64 colour images is 38 MB of
floats. Fresh memory of that size costs more than the conversion, page by page (350 against 60 µs an image on
a virtual machine), and memory shared between processes does too. So workers send bytes, which become floats
on arrival, and arrays that nobody holds any more are written anew. For a GPU they stay bytes until they are
there: a quarter of the copying, pinning and transfer.
"""

from __future__ import annotations

import math
import os
import sys
from functools import cache, partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from laptime.recorder.backends import backend_of
from laptime.training.data import Data, NetworkInput
from laptime.training.data.images import (
    DEVIATION,
    MEAN,
    Pixels,
    UnreadableImage,
    chances,
    decoders,
    middle,
    random_part,
    read_into,
)
from laptime.training.data.kinds import FolderData
from laptime.training.data.layout import (
    ImageListing,
    classes,
    held_out,
    listing,
    names_of,
    read_labels,
    roots,
)

_NAMED = 5  # files that a report of problems names
_MOST_KEPT = 4  # arrays of floats: the batch in use, the next one, and two on their way
_OURS = 2  # references to an array that only the list holds: the list's, and the one that asks


class ImageFolder(Dataset[Any]):
    """Images by class. A random crop depends only on the seed, the epoch and the index.

    An image that cannot be read is replaced by the next of its class that can, and noted where all processes
    see it.
    """

    def __init__(
        self,
        listing: ImageListing,
        shape: tuple[int, int, int],
        *,
        augment: str = "none",
        seed: int = 0,
        refuse: bool = False,
    ) -> None:
        self._root, self._shape, self._augment = os.fsencode(listing.root), shape, augment
        self._seed, self._refuse = seed, refuse
        self._as_bytes = False
        # Bytes side by side: a million str objects would be copied into every worker as their counts change.
        self._files: NDArray[np.bytes_] = np.array(
            [os.fsencode(file) for files in listing.images.values() for file in files], np.bytes_
        )
        counts = torch.tensor(list(listing.counts.values()))
        self.labels = torch.arange(len(counts)).repeat_interleave(counts)
        self._starts, self._counts = (counts.cumsum(0) - counts).tolist(), counts.tolist()
        self._unreadable = torch.zeros(len(self._files), dtype=torch.uint8).share_memory_()

    def __len__(self) -> int:
        return len(self._files)

    def __getitems__(self, picks: list[int]) -> tuple[Tensor, Tensor]:
        labels = self.labels[torch.tensor(picks) % len(self)]
        drawn = chances(self._seed, picks, len(self)) if self._augment != "none" else [[]] * len(picks)
        whole, worker = (len(picks), *self._shape), get_worker_info() is not None
        if worker or self._as_bytes:
            sent = torch.empty(0 if worker else whole, dtype=torch.uint8)
            if worker:  # memory that the other process can see: nothing is copied on the way there
                shared = torch.UntypedStorage._new_shared(math.prod(whole), device="cpu")
                sent = sent.set_(shared).view(whole)
            for out, pick, chance in zip(sent.numpy(), picks, drawn, strict=True):
                self._read(out, pick % len(self), chance)
            packed = Bytes(sent) if self._as_bytes else Sent(sent)
            return packed, labels  # type: ignore[return-value]  # a tensor on arrival
        images, pixels = FLOATS.tensor(whole), np.empty(self._shape, np.uint8)
        for target, pick, chance in zip(images.numpy(), picks, drawn, strict=True):
            self._read(pixels, pick % len(self), chance)
            _normalise(pixels, target)  # while they are in the cache
        return images, labels

    def plain(self) -> ImageFolder:
        """The same images, none of them augmented; what cannot be read is noted in one place for both."""
        return self._with(_augment="none")

    def for_device(self, device: torch.device) -> ImageFolder:
        """The same images; for a GPU as bytes, which become floats there."""
        return self._with(_as_bytes=backend_of(device).accelerator)

    def _with(self, **changes: Any) -> ImageFolder:
        other = object.__new__(ImageFolder)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def unreadable(self) -> list[str]:
        """The files that could not be read so far, in this process and in its workers."""
        return [os.fsdecode(self._path(int(index))) for index in self._unreadable.nonzero()[:, 0]]

    def _read(self, out: Pixels, index: int, chance: list[float]) -> None:
        label = int(self.labels[index])
        start, count = self._starts[label], self._counts[label]
        if self._augment == "none":
            choose = middle
        else:
            choose = partial(random_part, chances=chance, mirror=self._augment == "crop-flip")
        for turn in range(count):
            candidate = start + (index - start + turn) % count
            if self._unreadable[candidate]:
                continue
            try:
                return read_into(out, self._path(candidate), choose)
            except (OSError, UnreadableImage) as error:
                if self._refuse:
                    why = (error.strerror if isinstance(error, OSError) else None) or error
                    raise UnreadableImage(
                        f"{os.fsdecode(self._path(candidate))} cannot be read ({why}); "
                        "remove it, or set data.on_corrupt to skip"
                    ) from None
                self._unreadable[candidate] = 1
        folder = os.fsdecode(os.path.dirname(self._path(index)))
        raise UnreadableImage(
            f"no image of {folder} can be read; replace them, or list the other classes in data.classes"
        )

    def _path(self, index: int) -> bytes:
        return os.path.join(self._root, self._files[index])


def open_data(config: FolderData, wanted: NetworkInput) -> Data:
    """The images of the chosen classes; the validation folder, or a share of each class, is held out."""
    decoders()  # a missing package is reported here, not by a worker
    path = config.path.expanduser()
    labels = read_labels(config.labels) if config.labels is not None else {}
    root, validation = roots(path)
    chosen = classes(root, config.classes, labels)
    names = names_of(chosen, labels, config.labels) if config.labels is not None else chosen
    train = listing(root, chosen, per_class=config.per_class)
    if validation is not None:
        held = listing(validation, chosen, per_class=config.per_class)
    else:
        train, held = held_out(train, config.validation_share)

    grey = wanted.input is not None and len(wanted.input) == 3 and wanted.input[0] == 1
    shape = (1 if grey else 3, config.size, config.size)
    refuse = config.on_corrupt == "refuse"
    parts = [ImageFolder(train, shape, augment=config.augment, seed=wanted.seed, refuse=refuse)]
    if sum(held.counts.values()):
        parts.append(ImageFolder(held, shape, refuse=refuse))
    facts = {
        "path": str(path),
        "train_images": train.counts,
        "validation_images": held.counts,
        "validation_path": str(validation) if validation is not None else None,
        "labels": dict(zip(chosen, names, strict=True)),
        "ignored_files": train.ignored + held.ignored,
        "mean": MEAN,
        "deviation": DEVIATION,
    }

    def problems() -> list[str]:
        unreadable = [file for part in parts for file in part.unreadable()]
        if not unreadable:
            return []
        some = ", ".join(unreadable[:_NAMED]) + (", …" if len(unreadable) > _NAMED else "")
        images = "1 image" if len(unreadable) == 1 else f"{len(unreadable)} images"
        return [f"{images} could not be read, another of the class was taken instead: {some}"]

    held_images = parts[1] if len(parts) > 1 else None
    return Data(train=parts[0], validation=held_images, classes=names, facts=facts, problems=problems)


# -- bytes to normalised floats ---------------------------------------------------------------------------


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
        return _normalised, (self._images,)


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


def _normalised(images: Tensor) -> Tensor:
    """Images in bytes as floats of mean 0 and deviation 1, going by ImageNet's."""
    floats = FLOATS.tensor(tuple(images.shape))
    for image, out in zip(images.numpy(), floats.numpy(), strict=True):
        _normalise(image, out)
    return floats


def _normalise(image: Pixels, out: NDArray[np.float32]) -> None:
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


@cache
def _scales_on(channels: int, device: torch.device) -> Tensor:
    """Scales and shifts, each of shape (channels, 1, 1)."""
    return torch.tensor(_scales(channels), device=device).T[..., None, None]
