"""What lies in a folder of images: classes, their readable names, their files, and which are held out."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.files.parse import parse_json, parse_toml
from laptime.files.read import read_text
from laptime.files.text import first_line, one_line

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
        files = list(_files(root, f"{name}/"))
        pictures = sorted(filter(_is_image, files))
        ignored += len(files) - len(pictures)
        if not pictures:
            raise DataError(
                f"class {name!r} of {root} has no images; add some, remove the folder, "
                "or list the other classes in data.classes"
            )
        images[name] = pictures[: per_class or None]
    return ImageListing(root=root, images=images, ignored=ignored)


def held_out(whole: ImageListing, share: float) -> tuple[ImageListing, ImageListing]:
    """(the rest, `share` of each class), by a hash of the names: new files do not move old ones across."""

    def by_hash(file: str) -> bytes:
        return hashlib.blake2b(os.fsencode(file), digest_size=8).digest()

    rest: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    for name, files in whole.images.items():
        chosen = set(sorted(files, key=by_hash)[: held_of(len(files), share)])
        held[name] = [file for file in files if file in chosen]
        rest[name] = [file for file in files if file not in chosen]
    return (
        ImageListing(root=whole.root, images=rest, ignored=whole.ignored),
        ImageListing(root=whole.root, images=held, ignored=0),
    )


def held_of(count: int, share: float) -> int:
    """How many of a class's images are held out: at least one, and at least one is left."""
    return min(count - 1, max(1, round(count * share))) if share else 0


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, without hidden files: `._cat.jpg` is no image."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); correct its permissions") from error


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(root) if entry.is_dir())


def _files(root: Path, below: str) -> Iterator[str]:
    """Every file in a folder and the folders in it, as a path relative to `root`."""
    for entry in _entries(root / below):
        if entry.is_dir(follow_symlinks=False) and not _is_image(entry.name):
            yield from _files(root, f"{below}{entry.name}/")
        else:
            yield below + entry.name


def read_labels(path: Path) -> dict[str, str]:
    """The dictionary in a file, TOML, JSON or lines of `folder name`; a `DataError` says what is wrong."""
    shown = f"the label file {one_line(path)}"
    reader = {".toml": parse_toml, ".json": parse_json}.get(path.suffix.lower(), _lines)
    try:
        labels: Any = reader(read_text(path))
    except OSError as error:
        raise DataError(f"{shown} cannot be read ({first_line(error)}); correct data.labels") from error
    except ValueError as error:  # of UTF-8, of TOML and of JSON
        raise DataError(f"{shown} is not what its name says ({first_line(error)}); correct it") from error
    if not isinstance(labels, dict) or not all(isinstance(name, str) for name in labels.values()):
        raise DataError(f"{shown} must hold one name for each folder, and nothing else")
    if not labels:
        raise DataError(f"{shown} is empty; write lines of `folder name`, or leave data.labels")
    return labels


def names_of(folders: Sequence[str], labels: dict[str, str], path: Path) -> tuple[str, ...]:
    """The readable names of class folders; those the dictionary does not have keep their own."""
    if not any(folder in labels for folder in folders):
        raise DataError(
            f"the label file {path} names none of the classes, such as {folders[0]!r}; correct it"
        )
    return tuple(labels.get(folder, folder) for folder in folders)


def _lines(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        folder, *name = line.split(maxsplit=1)[:2] or [""]
        if not folder or folder.startswith("#"):
            continue
        if not name:
            raise ValueError(f"line {number} has no name after {folder!r}")
        labels[folder] = name[0].strip()
    return labels
