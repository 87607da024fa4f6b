"""Iteration tables from the lines that a training printed, from CSV files, and from objects on lines."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from laptime.errors import DataError
from laptime.files.parse import WHOLE
from laptime.files.text import one_line
from laptime.files.typed import number as finite
from laptime.model import Account, Stage, Step
from laptime.model.columns import columns_of
from laptime.runs.importers.imported import Collected
from laptime.runs.importers.log_lines import (
    GROUPS,
    NAMES,
    Line,
    read_line,
    read_named,
    read_values,
    values_of,
)
from laptime.runs.importers.source import opened

_PIECE = 1 << 18
_LONGEST = 1 << 20  # characters of a line
_MOST_ROWS = 1_000_000
_NAMED = frozenset({*NAMES["step"], *NAMES["epoch"]})
_BREAKS = re.compile(r"[\r\n]+|\x08+")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read(files: Iterable[Path], *, pattern: str | None = None) -> Collected:
    """The steps of a log. `pattern` is searched in each line; its named groups are the columns."""
    collected = Collected(source="log", device={"type": "unknown", "name": "unknown device"})
    wanted = _compiled(pattern)
    for file in files:
        with opened(file) as stream:
            rows = list(islice(_rows(_lines(stream), wanted), _MOST_ROWS + 1))
        if len(rows) > _MOST_ROWS:
            raise DataError(f"{one_line(file)} tells of more than {_MOST_ROWS:,} steps; give a part of it")
        if not rows:
            raise DataError(_unknown(file, wanted))
        if _is_own(rows[0]):
            _take_own(collected, rows)
        else:
            _take(collected, rows)
    return collected


def _unknown(file: Path, wanted: re.Pattern[str] | None) -> str:
    if wanted is not None:
        return f"no line of {one_line(file)} matches the pattern; try it on one line of the file first"
    return (
        f"{one_line(file)} is neither a profiler trace nor a log with steps that laptime knows; "
        "--pattern REGEX with groups such as (?P<step>…) and (?P<seconds>…) reads others"
    )


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise DataError(f"the pattern is no regular expression ({error}); mend it") from error
    unknown = sorted(set(compiled.groupindex) - set(GROUPS))
    if unknown or not compiled.groupindex:
        what = f"a group {unknown[0]!r} that is not known" if unknown else "no named group"
        raise DataError(f"the pattern has {what}; use some of {', '.join(GROUPS)}, as in (?P<step>\\d+)")
    return compiled


def _lines(stream: TextIO) -> Iterator[str]:
    """The lines that hold something, one after the other; one that is longer than any is left out."""
    rest, whole = "", True
    while piece := stream.read(_PIECE):
        *lines, rest = _BREAKS.split(rest + piece)
        for line in lines:
            if whole and (text := _COLOURS.sub("", line)).strip():
                yield text
            whole = True
        if len(rest) > _LONGEST:
            rest, whole = "", False
    if whole and (text := _COLOURS.sub("", rest)).strip():
        yield text


def _rows(lines: Iterator[str], wanted: re.Pattern[str] | None) -> Iterator[Line | Mapping[str, Any]]:
    if wanted is not None:
        matches = (wanted.search(line) for line in lines)
        yield from (read_named(match.groupdict()) for match in matches if match)
        return
    first = next(lines, None)
    if first is None:
        return
    if "," in first and (kind := _table_kind(first)) is not None:
        try:
            for row in csv.DictReader(chain([first], lines)):
                yield from [row] if kind == "own" else read_values(row)
        except csv.Error as error:
            raise DataError(f"the table is no CSV ({one_line(error)}); give another file") from None
        return
    for line in chain([first], lines):
        values = values_of(line)
        yield from read_values(values) if values is not None else read_line(line)


def _table_kind(first: str) -> str | None:
    """Whose table it is that begins with this line: `own`, `other`, or None where it is no header."""
    try:
        header = next(csv.reader([first]))
    except csv.Error:
        return None
    if {"stage", "step", "wall_s", "unexplained_s"} <= set(header):
        return "own"
    if any(re.fullmatch(r"[-+.\deE]+", cell.strip()) for cell in header):
        return None
    return "other" if _NAMED & {cell.strip().lower().replace(" ", "_") for cell in header} else None


# -- steps -----------------------------------------------------------------------------------------


def _is_own(row: Line | Mapping[str, Any]) -> bool:
    return not isinstance(row, Line)


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Times are finite and counts fit into the table; a loss may be NaN."""
    for name, value in values.items():
        if isinstance(value, float) and name not in ("loss", "top1", "topn"):
            finite(value)
        if isinstance(value, int) and not 0 <= value < WHOLE:
            raise ValueError("a count that no table holds")


def _take_own(found: Collected, rows: Iterable[Any]) -> None:
    """The rows of our own `iterations.csv`, accounts included."""
    columns = columns_of(Step)
    for number, row in enumerate(rows, start=2):
        try:
            given = {
                column.name: (column.type, row[column.name]) for column in columns if row.get(column.name)
            }
            values: dict[str, Any] = {
                name: text == "true" if kind is bool else kind(text) for name, (kind, text) in given.items()
            }
            _check_numbers(values)
            found.steps.append(Step(**values))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"line {number} of the CSV is not of an iterations.csv: {error}") from error
    found.source = "csv"


def _take(found: Collected, rows: Iterable[Any]) -> None:
    """Steps from lines. Their whole time is unexplained: a log does not say where it went."""
    before: dict[Stage, float] = {}
    clock, untimed = 0.0, 0
    counts: dict[Stage, int] = defaultdict(int)
    for row in rows:
        seconds = row.seconds
        if seconds is None and row.moment is not None and row.stage in before:
            seconds = max(0.0, row.moment - before[row.stage])
        if row.moment is not None:
            before[row.stage] = row.moment
        untimed += seconds is None
        length = seconds or 0.0
        counts[row.stage] += 1
        found.steps.append(
            Step.closed(
                step=row.step if row.step is not None else counts[row.stage] - 1,
                optimizer_step=row.step or 0,
                epoch=row.epoch or 0,
                stage=row.stage,
                start_s=clock,
                wall_s=length,
                seconds=dict.fromkeys([Account.FORWARD], 0.0),
                samples=row.samples,
                loss=row.loss,
                top1=row.top1,
                topn=row.topn,
            )
        )
        clock += length
    found.note("from a log: a row is a line, and where its time went is not known")
    if untimed:
        found.note(f"{untimed} of {len(found.steps)} lines say no time; theirs is written as 0")
