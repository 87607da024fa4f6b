"""Runs made from what other programs left: profiler traces, TensorFlow timelines, training logs.

Which of the known formats a path holds is told by what is in its files rather than by their names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from laptime.errors import DataError
from laptime.files.text import one_line
from laptime.runs.document import RUN_FILE
from laptime.runs.importers import kineto, tensorflow, training_log
from laptime.runs.importers.imported import write
from laptime.runs.importers.source import opened
from laptime.runs.run import Run

# What one folder of traces may take; a single file has limits of its own.
MOST_ENTRIES = 100_000  # names looked at, whatever they are
MOST_FILES = 10_000
MOST_BYTES = 64 << 30  # of all files together, as they are on disk
MOST_S = 3600.0

_TRACE_NAMES = (".json", ".json.gz", ".trace", ".gz")
_NUMBERS = re.compile(r"(\d+)")
_READERS = {"kineto": kineto.read, "tensorflow": tensorflow.read, "log": training_log.read}


def collect(path: Path | str, out: Path | str, *, pattern: str | None = None) -> Run:
    """A run directory at `out` from a trace, a folder of traces, or a training log.

    `pattern` is a regular expression for the lines of a log: its named groups are columns.
    """
    given = Path(path)
    end = time.monotonic() + MOST_S
    files = _files(given)

    def in_time() -> Iterator[Path]:
        for number, file in enumerate(files):
            if time.monotonic() > end:
                raise DataError(
                    f"{one_line(given)} took more than {MOST_S:g} s, after {number} of {len(files)} "
                    "files; give fewer of them"
                )
            yield file

    if pattern is not None:
        return write(training_log.read(in_time(), pattern=pattern), Path(out), files)
    first_of: dict[str, Path] = {}  # by kind
    for file in in_time():
        first_of.setdefault(_kind(file), file)
    if len(first_of) > 1:
        (first, file), (other, other_file) = sorted(first_of.items())[:2]
        raise DataError(
            f"{one_line(given)} mixes formats ({one_line(file.name)} is {first}, "
            f"{one_line(other_file.name)} {other}); give a folder of one kind"
        )
    return write(_READERS[next(iter(first_of))](in_time()), Path(out), files)


def _files(path: Path) -> list[Path]:
    """The file, or the folder's traces in the order of the numbers in their names."""
    shown = one_line(path)
    if not path.exists():
        raise DataError(f"{shown} does not exist; give a trace, a folder of traces or a training log")
    if not path.is_dir():
        return [path]
    if (path / RUN_FILE).exists():
        raise DataError(f"{shown} is a run already; `laptime show` reads it")
    files: list[Path] = []
    taken = 0
    too_much = None
    for number, file in enumerate(path.rglob("*"), start=1):
        if file.name.endswith(_TRACE_NAMES) and file.is_file():
            files.append(file)
            taken += file.stat().st_size
        if number > MOST_ENTRIES:
            too_much = f"{MOST_ENTRIES:,} files and folders"
        elif len(files) > MOST_FILES:
            too_much = f"{MOST_FILES:,} traces"
        elif taken > MOST_BYTES:
            too_much = f"{MOST_BYTES / 1e9:.1f} GB of traces"
        if too_much is not None:
            raise DataError(f"{shown} holds more than {too_much}; give a folder with fewer of them")
    if not files:
        raise DataError(f"{shown} holds no .json or .json.gz; give a folder of traces, or one file")
    return sorted(files, key=_by_numbers)


def _by_numbers(path: Path) -> list[tuple[int, int | str]]:
    """`step-10` after `step-9`."""
    parts = _NUMBERS.split(str(path))
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts if part]


def _kind(path: Path) -> str:
    """What a file is, by its first characters."""
    with opened(path) as file:
        text = file.read(1 << 16).lstrip("\ufeff \t\r\n")
    if not text.strip():
        raise DataError(f"{one_line(path)} is empty; give a trace or a log that holds something")
    is_object = text.startswith("{") and '"traceEvents"' not in text
    is_words = text.startswith("[") and len(text) > 1 and not text[1:].lstrip().startswith(("{", "]"))
    if text[0] not in "{[" or is_words:  # `[epoch 1] loss …` opens no list of events
        return "log"
    if is_object and training_log.values_of(text.splitlines()[0]) is not None:
        return "log"  # an object on each line
    return "tensorflow" if tensorflow.is_timeline(text) else "kineto"
