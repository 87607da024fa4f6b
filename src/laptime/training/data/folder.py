"""Images in folders, one folder per class, as in ImageNet.

Batches are normalised float32, plain tensors that any network takes. They travel as bytes: see `floats`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from laptime.training.data import Data, NetworkInput
from laptime.training.data.crops import chances, middle, random_part
from laptime.training.data.floats import FLOATS, Bytes, Sent, normalise, shared_bytes
from laptime.training.data.images import DEVIATION, MEAN, Look, UnreadableImage, decoders, read_into
from laptime.training.data.kinds import FolderData
from laptime.training.data.labels import names_of, read_labels
from laptime.training.data.layout import ImageListing, classes, held_out, listing, roots

_NAMED = 5  # files that a report of problems names


class ImageFolder(Dataset[Any]):
    """Images by class. A random crop depends only on the seed, the epoch and the index.

    An image that cannot be read is replaced by the next of its class that can, and noted where all processes
    see it.
    """

    def __init__(
        self, listing: ImageListing, look: Look, *, augment: str = "none", seed: int = 0, refuse: bool = False
    ) -> None:
        self._root, self._look, self._augment = listing.root, look, augment
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
        shape = (self._look.channels, self._look.size, self._look.size)
        drawn = chances(self._seed, picks, len(self)) if self._augment != "none" else [[]] * len(picks)
        worker = get_worker_info() is not None
        if worker or self._as_bytes:
            whole = (len(picks), *shape)
            sent = shared_bytes(whole) if worker else torch.empty(whole, dtype=torch.uint8)
            for out, pick, chance in zip(sent.numpy(), picks, drawn, strict=True):
                self._read(out, pick % len(self), chance)
            packed = Bytes(sent) if self._as_bytes else Sent(sent)
            return packed, labels  # type: ignore[return-value]  # a tensor on arrival
        images, pixels = FLOATS.tensor((len(picks), *shape)), np.empty(shape, np.uint8)
        for target, pick, chance in zip(images.numpy(), picks, drawn, strict=True):
            self._read(pixels, pick % len(self), chance)
            normalise(pixels, target)  # while they are in the cache
        return images, labels

    def plain(self) -> ImageFolder:
        """The same images, none of them augmented; what cannot be read is noted in one place for both."""
        return self._with(_augment="none")

    def for_device(self, device: torch.device) -> ImageFolder:
        """The same images; for a GPU as bytes, which become floats there."""
        return self._with(_as_bytes=device.type == "cuda")

    def _with(self, **changes: Any) -> ImageFolder:
        other = object.__new__(ImageFolder)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def unreadable(self) -> list[str]:
        """The files that could not be read so far, in this process and in its workers."""
        return [self._path(int(index)) for index in self._unreadable.nonzero()[:, 0]]

    def _read(self, out: NDArray[np.uint8], index: int, chance: list[float]) -> None:
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
                return read_into(
                    out, os.path.join(self._root_bytes, self._files[candidate]), self._look, choose
                )
            except (OSError, UnreadableImage) as error:
                self._note(candidate, error)
        folder = os.path.dirname(self._path(index))
        raise UnreadableImage(
            f"no image of {folder} can be read; replace them, or list the other classes in data.classes"
        )

    def _note(self, index: int, error: Exception) -> None:
        if self._refuse:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise UnreadableImage(
                f"{self._path(index)} cannot be read ({why}); remove it, or set data.on_corrupt to skip"
            ) from None
        self._unreadable[index] = 1

    @property
    def _root_bytes(self) -> bytes:
        return os.fsencode(self._root)

    def _path(self, index: int) -> str:
        return os.path.join(self._root, os.fsdecode(self._files[index]))


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

    look = Look(size=config.size, channels=_channels(wanted))
    refuse = config.on_corrupt == "refuse"
    parts = [ImageFolder(train, look, augment=config.augment, seed=wanted.seed, refuse=refuse)]
    if sum(held.counts.values()):
        parts.append(ImageFolder(held, look, refuse=refuse))
    return Data(
        train=parts[0],
        validation=parts[1] if len(parts) > 1 else None,
        classes=names,
        facts=_facts(path, validation, train, held, dict(zip(chosen, names, strict=True))),
        problems=lambda: _problems(parts),
    )


def _channels(wanted: NetworkInput) -> int:
    """Grey for a network of one channel, colour for all others."""
    return 1 if wanted.input is not None and len(wanted.input) == 3 and wanted.input[0] == 1 else 3


def _facts(
    path: Path, validation: Path | None, train: ImageListing, held: ImageListing, labels: dict[str, str]
) -> dict[str, Any]:
    return {
        "path": str(path),
        "train_images": train.counts,
        "validation_images": held.counts,
        "validation_path": str(validation) if validation is not None else None,
        "labels": labels,
        "ignored_files": train.ignored + held.ignored,
        "mean": MEAN,
        "deviation": DEVIATION,
    }


def _problems(parts: list[ImageFolder]) -> list[str]:
    unreadable = [file for part in parts for file in part.unreadable()]
    if not unreadable:
        return []
    some = ", ".join(unreadable[:_NAMED]) + (", …" if len(unreadable) > _NAMED else "")
    images = "1 image" if len(unreadable) == 1 else f"{len(unreadable)} images"
    return [f"{images} could not be read, another of the class was taken instead: {some}"]
