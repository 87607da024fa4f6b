"""The dictionary from class folders to readable names: TOML, JSON, or lines of `folder name`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.files.parse import parse_json, parse_toml
from laptime.files.read import read_text
from laptime.files.text import first_line, one_line


def read_labels(path: Path) -> dict[str, str]:
    """The dictionary in a file; a `DataError` says what is wrong with it."""
    shown = one_line(path)
    try:
        text = read_text(path)
        labels: Any = _READERS.get(path.suffix.lower(), _lines)(text)
    except OSError as error:
        raise DataError(
            f"the label file {shown} cannot be read ({first_line(error)}); correct data.labels"
        ) from error
    except ValueError as error:  # of UTF-8, of TOML and of JSON
        raise DataError(
            f"the label file {shown} is not what its name says ({first_line(error)}); correct it"
        ) from error
    if not isinstance(labels, dict) or not all(isinstance(name, str) for name in labels.values()):
        raise DataError(f"the label file {shown} must hold one name for each folder, and nothing else")
    if not labels:
        raise DataError(
            f"the label file {shown} is empty; write lines of `folder name`, or leave data.labels"
        )
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


_READERS = {".toml": parse_toml, ".json": parse_json}
