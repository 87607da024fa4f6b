"""Part files: how rows reach the disk so that a kill at any moment neither loses nor doubles one.

A part is `part-r<rank>-<first>-<last>.parquet`, the flushes first..last of one rank. Merging parts writes a
part that covers their range, gives it its name, then deletes them. Between the two a row is on disk twice,
so a reader leaves out every part whose range another part covers: `live_parts`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from laptime.files.parquet import open_parquet, read_row_group
from laptime.files.read import MIB
from laptime.files.write import replacing
from laptime.runs.schema import TableSchema

FAN = 32  # so many parts of one size become one of the next: few files, and few rewrites of a row
LARGE_ROWS = 4_000_000  # not rewritten while the run goes on; reading is no faster with larger parts
GROUP_ROWS = 131_072  # rows per row group: what a merge holds in memory, and what DuckDB reads as one task

MOST_TEXT_BYTES = 512 * MIB  # of one column of words, decoded

_NAME = re.compile(r"part-r(\d+)-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A part file, by its name."""

    path: Path
    rank: int
    first: int
    last: int


def part_name(rank: int, first: int, last: int) -> str:
    return f"part-r{rank}-{first:06d}-{last:06d}.parquet"


def parse(path: Path) -> PartFile:
    """The part that `path` names. A `*.parquet` of another name is a part too, covered by nothing."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return PartFile(path=path, rank=-1, first=0, last=0)
    rank, first, last = (int(number) for number in match.groups())
    return PartFile(path=path, rank=rank, first=first, last=last)


def live_parts(directory: Path) -> list[Path]:
    """The parts that together hold every row exactly once, rank by rank and in order."""
    return [part.path for part in live(directory)]


def live(directory: Path) -> list[PartFile]:
    """`live_parts`, parsed.

    Listing a folder while parts are merged can miss both the merged part and those it replaced. Two listings
    that agree cannot: what the second one missed, the first one saw.
    """
    before = _listing(directory)
    while (after := _listing(directory)) != before:
        before = after
    parts = sorted(map(parse, after), key=lambda part: (part.rank, part.first, -part.last, part.path.name))
    kept: list[PartFile] = []
    for part in parts:
        inside = kept and part.rank == kept[-1].rank >= 0 and part.last <= kept[-1].last
        if not inside:
            kept.append(part)
    return kept


def _listing(directory: Path) -> set[Path]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {directory / name for name in names if name.endswith(".parquet") and not name.startswith(".")}


def open_part(path: Path, **options: Any) -> Any:
    """A part opened for reading."""
    return open_parquet(path, inside=path.parent.parent, **options)


class PartWriter:
    """Writes the parts of one table of one rank, and keeps their number small."""

    def __init__(self, directory: Path, schema: TableSchema[Any], rank: int) -> None:
        self.directory = directory
        self.schema = schema
        self.rank = rank
        self._parts: list[tuple[PartFile, int]] = []  # live parts in order, with their rows
        self._next = 0

    def go_on(self) -> None:
        """Add to the parts that an earlier attempt of this rank has left."""
        for part in live(self.directory):
            if part.rank == self.rank:
                with open_part(part.path) as parquet:
                    self._parts.append((part, parquet.metadata.num_rows))
                self._next = part.last + 1

    def write(self, table: Any) -> Path:
        """Rows become one part, complete as soon as it can be seen."""
        self.directory.mkdir(exist_ok=True)
        part = self._part(self._next, self._next)
        self._save(part.path, [table])
        self._next += 1
        self._parts.append((part, table.num_rows))
        return part.path

    def compact(self) -> None:
        """Merge the newest parts while `FAN` of one size stand together.

        Like a counter that carries: a row is rewritten once per digit, until its part is large.
        """
        while len(newest := self._parts[-FAN:]) == FAN:
            rows = sum(rows for _, rows in newest)
            first, last = newest[0][0], newest[-1][0]
            if first.last - first.first != last.last - last.first or rows > LARGE_ROWS:
                return
            self._merge(newest)

    def compact_all(self) -> None:
        """Merge every part into one."""
        if len(self._parts) > 1:
            self._merge(self._parts[:])

    def _merge(self, parts: Sequence[tuple[PartFile, int]]) -> None:
        whole = self._part(parts[0][0].first, parts[-1][0].last)
        self._save(whole.path, _regrouped([part.path for part, _ in parts], self.schema))
        self._parts[-len(parts) :] = [(whole, sum(rows for _, rows in parts))]
        for part, _ in parts:
            with suppress(OSError):  # it is covered: a reader leaves it out, and so does a second attempt
                part.path.unlink()

    def _part(self, first: int, last: int) -> PartFile:
        return parse(self.directory / part_name(self.rank, first, last))

    def _save(self, path: Path, tables: Sequence[Any] | Iterator[Any]) -> None:
        options = {
            "compression": "lz4",  # 20,000 layer rows: 2.5 ms and 340 kB; zstd 3.5 ms and 320 kB
            "use_dictionary": self.schema.repeated,
            # Enough to find the row groups of a few steps, and to see that no step was taken twice.
            "write_statistics": ["step", "attempt"],
            "write_page_checksum": True,
        }
        with replacing(path) as file, pq.ParquetWriter(file, self.schema.arrow, **options) as parquet:
            for table in tables:
                parquet.write_table(table, row_group_size=GROUP_ROWS * 2)
                del table  # or it would be in memory while the next is read


def _regrouped(paths: Sequence[Path], schema: TableSchema[Any]) -> Iterator[Any]:
    """The rows of several parts, in order, as tables of `GROUP_ROWS` rows at most.

    A larger row group of a part stays as it is. No more than one such table is in memory.
    """
    waiting: list[Any] = []
    held = 0
    for path in paths:
        with open_part(path) as parquet:
            for group in range(parquet.num_row_groups):
                coming = parquet.metadata.row_group(group).num_rows
                if waiting and held + coming > GROUP_ROWS:
                    yield pa.concat_tables(waiting)
                    waiting, held = [], 0
                # One thread: merging runs beside someone's training, on cores that are not ours.
                rows = read_row_group(path, parquet, group, parquet.schema_arrow.names, use_threads=False)
                waiting.append(schema.completed(rows, schema.arrow.names).cast(schema.arrow))
                held += coming
                del rows
    if waiting:
        yield pa.concat_tables(waiting)
