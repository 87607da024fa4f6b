"""What lies in a folder of images: classes, their files, and which of them are held out."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laptime.errors import DataError

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
_VALIDATION = ("val", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageListing:
    """The images of a folder, class by class, as paths relative to it."""

    root: Path
    images: dict[str, list[str]]
    ignored: int  # files that are no images by their name

    @property
    def counts(self) -> dict[str, int]:
        """Images of each class."""
        return {name: len(files) for name, files in self.images.items()}


def roots(path: Path) -> tuple[Path, Path | None]:
    """The folders of classes to train and to validate on; None: a share of the first is held out."""
    if not path.exists():
        raise DataError(
            f"{path} does not exist; set data.path to a folder of images, or use `laptime data sync`"
        )
    if not path.is_dir():
        raise DataError(f"{path} is a file; set data.path to a folder with one folder per class")
    train = path / "train"
    # A class may be called `train`: it holds images, not folders.
    if not train.is_dir() or not _folders(train):
        return path, None
    return train, next((path / name for name in _VALIDATION if (path / name).is_dir()), None)


def classes(root: Path, chosen: Sequence[str], labels: dict[str, str]) -> tuple[str, ...]:
    """The class folders, all of them or those chosen by their own names or their readable ones."""
    folders = _folders(root)
    if not folders:
        raise DataError(f"{root} has no class folders; put the images of each class into a folder of its own")
    readable = {name: folder for folder, name in labels.items()}
    wanted = [name if name in folders else readable.get(name, name) for name in chosen]
    for name, folder in zip(chosen, wanted, strict=True):
        if folder not in folders:
            near = difflib.get_close_matches(name, [*folders, *readable], n=1)
            some = ", ".join(folders[:5]) + (", …" if len(folders) > 5 else "")
            hint = f"did you mean {near[0]!r}?" if near else f"it has {some}"
            raise DataError(f"{root} has no class {name!r}; {hint}")
        if wanted.count(folder) > 1:
            raise DataError(f"data.classes names {folder!r} twice; name it once")
    return tuple(wanted or folders)


def listing(root: Path, names: Sequence[str], *, per_class: int) -> ImageListing:
    """The images of the named classes, in the order of their names; at most `per_class` of each."""
    images: dict[str, list[str]] = {}
    ignored = 0
    for name in names:
        if not (root / name).is_dir():
            raise DataError(f"{root} has no folder for class {name!r}; add it, or remove {root}")
        files, others = _images(root / name)
        if not files:
            raise DataError(
                f"class {name!r} of {root} has no images; add some, remove the folder, "
                "or list the other classes in data.classes"
            )
        images[name] = [f"{name}/{file}" for file in sorted(files)[: per_class or None]]
        ignored += others
    return ImageListing(root=root, images=images, ignored=ignored)


def held_out(whole: ImageListing, share: float) -> tuple[ImageListing, ImageListing]:
    """(the rest, `share` of each class), by a hash of the names: new files do not move old ones across."""
    rest: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    for name, files in whole.images.items():
        chosen = set(sorted(files, key=_hash)[: held_of(len(files), share)])
        held[name] = [file for file in files if file in chosen]
        rest[name] = [file for file in files if file not in chosen]
    return (
        ImageListing(root=whole.root, images=rest, ignored=whole.ignored),
        ImageListing(root=whole.root, images=held, ignored=0),
    )


def held_of(count: int, share: float) -> int:
    """How many of a class's images are held out: at least one, and at least one is left."""
    return min(count - 1, max(1, round(count * share))) if share else 0


def _hash(file: str) -> bytes:
    return hashlib.blake2b(os.fsencode(file), digest_size=8).digest()


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(
                entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
            )
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}); correct its permissions") from error


def _images(folder: Path, below: str = "") -> tuple[list[str], int]:
    """Images of a class by their names' endings, in folders below it too, and how many files are none."""
    names: list[str] = []
    ignored = 0
    try:
        with os.scandir(folder / below) as entries:
            for entry in entries:
                if entry.name.startswith("."):  # such as `._cat.jpg`, which is no image
                    continue
                if os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                    names.append(below + entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    more, others = _images(folder, f"{below}{entry.name}/")
                    names += more
                    ignored += others
                else:
                    ignored += 1
    except OSError as error:
        raise DataError(
            f"{folder / below} cannot be read ({error.strerror}); correct its permissions"
        ) from error
    return names, ignored
