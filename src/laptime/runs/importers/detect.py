"""Which of the known formats a path holds, by what is in its files rather than by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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


class Source(StrEnum):
    """What a file is."""

    KINETO = "kineto"
    TENSORFLOW = "tensorflow"
    LOG = "log"


_READERS: dict[Source, Callable[[Sequence[Path]], Collected]] = {
    Source.KINETO: kineto.read,
    Source.TENSORFLOW: tensorflow.read,
}


def collect(path: Path | str, out: Path | str, *, pattern: str | None = None) -> Run:
    """A run directory at `out` from a trace, a folder of traces, or a training log.

    `pattern` is a regular expression for the lines of a log: its named groups are columns.
    """
    given = Path(path)
    files = _files(given)
    if pattern is not None:
        return write(training_log.read(files, pattern=pattern), Path(out), files)
    kinds = {file: recognise(file) for file in files}
    if len(set(kinds.values())) > 1:
        one, other = (
            next(file for file in files if kinds[file] is kind) for kind in sorted({*kinds.values()})[:2]
        )
        raise DataError(
            f"{one_line(given)} mixes formats ({one_line(one.name)} is {kinds[one]}, {one_line(other.name)} "
            f"{kinds[other]}); give a folder of one kind"
        )
    kind = kinds[files[0]]
    found = _READERS[kind](files) if kind in _READERS else training_log.read(files)
    return write(found, Path(out), files)


def _files(path: Path) -> list[Path]:
    """The file, or the folder's traces in the order of the numbers in their names."""
    if not path.exists():
        raise DataError(
            f"{one_line(path)} does not exist; give a trace, a folder of traces or a training log"
        )
    if not path.is_dir():
        return [path]
    if (path / RUN_FILE).exists():
        raise DataError(f"{one_line(path)} is a run already; `laptime show` reads it")
    files = [file for file in path.rglob("*") if file.is_file() and file.name.endswith(_TRACE_NAMES)]
    if not files:
        raise DataError(f"{one_line(path)} holds no .json or .json.gz; give a folder of traces, or one file")
    return sorted(files, key=_by_numbers)


def _by_numbers(path: Path) -> list[tuple[int, int | str]]:
    """`step-10` after `step-9`."""
    parts = _NUMBERS.split(str(path))
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts if part]


def recognise(path: Path) -> Source:
    """What a file is, by its first characters."""
    text = opening(path, 1 << 16).lstrip("\ufeff \t\r\n")
    if text.startswith("{") and '"traceEvents"' not in text and values_of(text.splitlines()[0]) is not None:
        return Source.LOG  # an object on each line
    if text[0] not in "{[" or _is_list_of_words(text):
        return Source.LOG
    return Source.TENSORFLOW if tensorflow.is_timeline(text) else Source.KINETO


def _is_list_of_words(text: str) -> bool:
    """`[epoch 1] loss …`: a bracket that opens no list of events."""
    return text.startswith("[") and not text[1:].lstrip().startswith(("{", "]")) and len(text) > 1
