"""Parquet files that others may have written: opened and read only within limits.

pyarrow unpacks pages whatever the footer says of their size, and ends the process on statistics of the wrong
length. So pages are measured by their own headers before they are unpacked, and statistics are read here.
What is refused raises OSError or ValueError.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from laptime.files.read import KIB, MIB, open_plain

MOST_GROUP_ROWS = 2**20  # eight times what laptime writes
MOST_GROUP_BYTES = 256 * MIB  # encoded
_MOST_PAGES = 4096  # of a column in a row group; a million rows take some 50
_HEADER_BYTES = 16 * KIB  # of a page; one with statistics of texts has at most 8 kB of them
_ENCODINGS = (0, 2, 3, 8)  # plain, run lengths, two names of dictionaries; others can repeat a text endlessly


def open_parquet(path: Path, *, inside: Path, **options: Any) -> Any:
    """A pyarrow.parquet.ParquetFile, unless its footer says that it holds more than any part does."""
    with open_plain(path, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
    # As bytes, a path survives whatever characters it has.
    parquet = pq.ParquetFile(pa.OSFile(os.fsencode(path)), page_checksum_verification=True, **options)
    footer = parquet.metadata
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    rows, sizes = [group.num_rows for group in groups], [group.total_byte_size for group in groups]
    if max(rows, default=0) > MOST_GROUP_ROWS or max(sizes, default=0) > MOST_GROUP_BYTES:
        raise ValueError("a row group is larger than any that laptime writes")
    if min(rows, default=0) < 0:
        raise ValueError("a row group says that it has fewer rows than none")
    if footer.num_rows > MOST_GROUP_ROWS + size // 2:  # a row takes more than eight bytes
        raise ValueError("it says that it has more rows than its bytes can hold")
    return parquet


def read_row_group(path: Path, parquet: Any, group: int, columns: Collection[str], **options: Any) -> Any:
    """These columns of a row group of an opened file, its pages checked before."""
    check_pages(path, parquet, group, columns)
    return parquet.read_row_group(group, columns=columns, **options)


def check_pages(path: Path, parquet: Any, group: int, columns: Collection[str]) -> None:
    """ValueError where the pages of these columns unpack to more than any row group has.

    Takes some 30 µs for each page of 20,000 values.
    """
    facts = parquet.metadata.row_group(group)
    unpacked = 0
    with open(path, "rb", buffering=0) as file, _as_described():
        for column in map(facts.column, range(facts.num_columns)):
            if column.path_in_schema in columns:
                start = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
                for size in _page_sizes(file, start, start + column.total_compressed_size):
                    unpacked += size
                    if unpacked > MOST_GROUP_BYTES:
                        raise ValueError("its pages unpack to more than its footer says")


def _page_sizes(file: BinaryIO, start: int, end: int) -> Iterator[int]:
    """How many bytes each page of a column unpacks to."""
    for _ in range(_MOST_PAGES):
        if start >= end:
            return
        file.seek(start)
        header = _Thrift(file.read(_HEADER_BYTES))
        page = header.struct()
        encoding = page.get(5, {}).get(2, 0) or page.get(8, {}).get(4, 0)  # of a data page, old and new
        if encoding not in _ENCODINGS or page.get(2, -1) < 0 or page.get(3, -1) < 0:
            raise ValueError("a page is none that laptime writes")
        yield page[2]
        start += header.at + page[3]
    raise ValueError(f"a column has more than {_MOST_PAGES:,} pages")


def column_bounds(path: Path, column: str) -> list[tuple[int, int] | None]:
    """For each row group the least and the largest value of a column of integers, if the footer has them."""
    bounds: list[tuple[int, int] | None] = []
    with open(path, "rb") as file, _as_described():
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer = _Thrift(file.read(length)).struct()
        for group in footer.get(4, []):
            chunks = [chunk[3] for chunk in group[1] if chunk[3][3] == [column.encode()]]
            statistics = chunks[0].get(12, {}) if chunks else {}
            known = 5 in statistics and 6 in statistics
            bounds.append((_integer(statistics[6]), _integer(statistics[5])) if known else None)
    return bounds


@contextmanager
def _as_described() -> Iterator[None]:
    """What is missing from a file's description of itself, or is something else there, is a ValueError."""
    try:
        yield
    except (AttributeError, TypeError, LookupError, OverflowError, RecursionError):
        raise ValueError("its description of itself is cut off or altered") from None


def _integer(data: bytes) -> int:
    if len(data) not in (4, 8):
        raise ValueError("its statistics are no integers")
    return int.from_bytes(data, "little", signed=True)


class _Thrift:
    """Values in Thrift's compact protocol, in which a Parquet file describes itself."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def struct(self) -> dict[int, Any]:
        """The values of a struct, by the numbers of its fields."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head > 15 else self._value(5)
            kind = head & 15
            fields[number] = kind == 1 if kind < 3 else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind <= 3:
            return self._byte()
        if kind <= 6:
            number = self._varint()
            return (number >> 1) ^ -(number & 1)
        if kind == 8:
            length = self._varint()
            self.at += length
            return self._data[self.at - length : self.at]
        if kind == 9:
            head = self._byte()
            count = head >> 4 if head < 0xF0 else self._varint()
            return [self._value(head & 15) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise ValueError(f"it describes itself with a value of the kind {kind}")

    def _varint(self) -> int:
        data, at, shift = self._data, self.at, 7
        number = data[at] & 127
        while data[at] > 127:
            at += 1
            number |= (data[at] & 127) << shift
            shift += 7
        self.at = at + 1
        return number

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]
