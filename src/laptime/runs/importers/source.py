"""Files to collect from: opened whether packed or not, read as a stream, refused in one line.

Values of a trace that are not of the kind that is wanted count as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from laptime.errors import DataError
from laptime.files.parse import WHOLE, decoder
from laptime.files.read import open_text
from laptime.files.text import first_line, one_line

_CHUNK = 1 << 20  # characters read at once
_LONGEST = 1 << 24  # no event is longer; a file that seems to hold one is altered
_MOST_EVENTS = 20_000_000  # 6 GB of JSON
_LARGEST_US = 1e18  # 30,000 years: times since 1970 in microseconds are near 2e15
_LONGEST_NAME = 10_000  # of a kernel's template arguments
_EVENTS = '"traceEvents"'
_BETWEEN = re.compile(r"[\s,]*")
_LAST_COMMA = re.compile(r",\s*+\}\s*+$")  # what was before the events


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as text, unpacked where it is gzip, whatever its name says."""
    try:
        with open_text(path) as file:
            yield file
    except ValueError as error:
        raise DataError(
            f"{one_line(path)} is cut off or altered ({first_line(error)}); copy it anew"
        ) from error
    except OSError as error:
        raise DataError(f"{one_line(path)} cannot be read: {first_line(error)}") from error


class ChromeTrace:
    """The events of a Chrome trace, one after the other: of the file only a piece is in memory at a time.

    `about` holds what the file says of itself (the rank, the devices): before its events, and once they have
    all been read, after them too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event of the file."""
        with opened(self.path) as file:
            buffer, place = self._start(file)
            events = 0
            while True:
                place = _BETWEEN.match(buffer, place).end()  # type: ignore[union-attr]
                if place < len(buffer) and buffer[place] == "]":
                    self.about |= _members(buffer[place + 1 :] + file.read(_LONGEST))
                    return
                try:
                    event, place = decoder().raw_decode(buffer, place)
                except (ValueError, RecursionError) as error:
                    more = file.read(max(_CHUNK, len(buffer) - place))  # twice as much: it is read once more
                    if not more or len(buffer) - place > _LONGEST or isinstance(error, RecursionError):
                        why = one_line(getattr(error, "msg", str(error)))
                        raise DataError(
                            f"{one_line(self.path)} is cut off or altered ({why}); save the trace anew"
                        ) from error
                    buffer, place = buffer[place:] + more, 0
                    continue
                events += 1
                if events > _MOST_EVENTS:
                    raise DataError(
                        f"{one_line(self.path)} holds more than {_MOST_EVENTS:,} events; trace less"
                    )
                if isinstance(event, dict):
                    yield event

    def _start(self, file: TextIO) -> tuple[str, int]:
        """What has been read, and where in it the list of events begins."""
        buffer = file.read(_CHUNK)
        head = buffer.lstrip("\ufeff \t\r\n")
        if head.startswith("["):
            return head, 1
        while _EVENTS not in buffer or "[" not in buffer[buffer.index(_EVENTS) :]:
            more = file.read(_CHUNK)
            if not more or len(buffer) > _LONGEST:
                raise DataError(
                    f"{one_line(self.path)} is no profiler trace: it holds no traceEvents; give a Chrome "
                    "trace or a training log, and for a log that laptime does not know --pattern REGEX"
                )
            buffer += more
        at = buffer.index(_EVENTS)
        self.about = _members(buffer[:at].lstrip("\ufeff \t\r\n{") + "}")
        return buffer, buffer.index("[", at) + 1


def _members(text: str) -> dict[str, Any]:
    """What an object holds before or after its events; none of it has to be there, nor be whole."""
    try:
        members, _ = decoder().raw_decode("{" + _LAST_COMMA.sub("}", text.lstrip(" \t\r\n,")))
    except (ValueError, RecursionError):
        return {}
    return mapping(members)


def span(event: dict[str, Any]) -> tuple[float, float] | None:
    """Begin and end of an event in microseconds; None where it has none that can be times."""
    start, duration = event.get("ts"), event.get("dur", 0)
    for value in (start, duration):
        if not isinstance(value, int | float) or not abs(value) < _LARGEST_US:
            return None
    return float(start), float(start) + max(0.0, duration)  # type: ignore[arg-type]


def integer(value: Any, otherwise: int) -> int:
    """An integer that a table can hold, also one in quotes: threads were once written so."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if -WHOLE <= number < WHOLE else otherwise


def name_of(value: Any) -> str:
    """A name, also one that is a number; anything else has none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)[:_LONGEST_NAME]


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    return value if isinstance(value, dict) else {}


def thread_id(value: Any) -> int | str:
    """What stands for a thread or a process: a number where it is one, else the text of it."""
    known = integer(value, -1)
    return known if known >= 0 else name_of(value)
