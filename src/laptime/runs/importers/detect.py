"""Which of the known formats a path holds, by what is in its files rather than by their names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from laptime.errors import DataError
from laptime.files.text import one_line
from laptime.runs.importers import kineto, tensorflow, training_log
from laptime.runs.importers.imported import Collected, write
from laptime.runs.importers.log_lines import values_of
from laptime.runs.importers.source import opening
from laptime.runs.run import RUN_FILE, Run

_TRACE_NAMES = (".json", ".json.gz", ".trace", ".gz")
_NUMBERS = re.compile(r"(\d+)")


class SourceKind(StrEnum):
    """What a file is."""

    KINETO = "kineto"
    TENSORFLOW = "tensorflow"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectLimits:
    """What one folder of traces may take; a single file has limits of its own."""

    entries: int = 100_000  # names looked at, whatever they are
    files: int = 10_000
    bytes: int = 64 << 30  # of all files together, as they are on disk
    seconds: float = 3600.0


_READERS: dict[SourceKind, Callable[[Iterable[Path]], Collected]] = {
    SourceKind.KINETO: kineto.read,
    SourceKind.TENSORFLOW: tensorflow.read,
}


def collect(
    path: Path | str,
    out: Path | str,
    *,
    pattern: str | None = None,
    limits: CollectLimits | None = None,
) -> Run:
    """A run directory at `out` from a trace, a folder of traces, or a training log.

    `pattern` is a regular expression for the lines of a log: its named groups are columns.
    """
    given = Path(path)
    limits = limits or CollectLimits()
    end = time.monotonic() + limits.seconds
    files = _files(given, limits)

    def in_time() -> Iterator[Path]:
        for number, file in enumerate(files):
            if time.monotonic() > end:
                raise DataError(
                    f"{one_line(given)} took more than {limits.seconds:g} s, after {number} of {len(files)} "
                    "files; give fewer of them"
                )
            yield file

    if pattern is not None:
        return write(training_log.read(in_time(), pattern=pattern), Path(out), files)
    kinds = {file: recognise(file) for file in in_time()}
    if len(set(kinds.values())) > 1:
        first, other = (
            next(file for file in files if kinds[file] is kind) for kind in sorted({*kinds.values()})[:2]
        )
        raise DataError(
            f"{one_line(given)} mixes formats ({one_line(first.name)} is {kinds[first]}, "
            f"{one_line(other.name)} {kinds[other]}); give a folder of one kind"
        )
    kind = kinds[files[0]]
    collected = _READERS[kind](in_time()) if kind in _READERS else training_log.read(in_time())
    return write(collected, Path(out), files)


def _files(path: Path, limits: CollectLimits) -> list[Path]:
    """The file, or the folder's traces in the order of the numbers in their names."""
    if not path.exists():
        raise DataError(
            f"{one_line(path)} does not exist; give a trace, a folder of traces or a training log"
        )
    if not path.is_dir():
        return [path]
    if (path / RUN_FILE).exists():
        raise DataError(f"{one_line(path)} is a run already; `laptime show` reads it")
    files: list[Path] = []
    taken = 0
    for number, file in enumerate(path.rglob("*"), start=1):
        if number > limits.entries:
            raise _too_much(path, f"{limits.entries:,} files and folders")
        if file.name.endswith(_TRACE_NAMES) and file.is_file():
            files.append(file)
            taken += file.stat().st_size
        if len(files) > limits.files:
            raise _too_much(path, f"{limits.files:,} traces")
        if taken > limits.bytes:
            raise _too_much(path, f"{limits.bytes / 1e9:.1f} GB of traces")
    if not files:
        raise DataError(f"{one_line(path)} holds no .json or .json.gz; give a folder of traces, or one file")
    return sorted(files, key=_by_numbers)


def _too_much(path: Path, what: str) -> DataError:
    return DataError(f"{one_line(path)} holds more than {what}; give a folder with fewer of them")


def _by_numbers(path: Path) -> list[tuple[int, int | str]]:
    """`step-10` after `step-9`."""
    parts = _NUMBERS.split(str(path))
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts if part]


def recognise(path: Path) -> SourceKind:
    """What a file is, by its first characters."""
    text = opening(path, 1 << 16).lstrip("\ufeff \t\r\n")
    if text.startswith("{") and '"traceEvents"' not in text and values_of(text.splitlines()[0]) is not None:
        return SourceKind.LOG  # an object on each line
    if text[0] not in "{[" or _is_list_of_words(text):
        return SourceKind.LOG
    return SourceKind.TENSORFLOW if tensorflow.is_timeline(text) else SourceKind.KINETO


def _is_list_of_words(text: str) -> bool:
    """`[epoch 1] loss …`: a bracket that opens no list of events."""
    return text.startswith("[") and not text[1:].lstrip().startswith(("{", "]")) and len(text) > 1
