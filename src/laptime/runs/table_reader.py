"""A table of a run as it lies on disk: read row group by row group, also while it is being written.

A resumed training goes back to its checkpoint, so what followed that in the attempt before is taken again.
Both times were measured and stay on disk; of each step, the last attempt counts. The earlier ones are left
out of what is read, with their layers and kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from laptime.errors import DamagedRun, RunError
from laptime.files.parquet import check_pages, column_bounds, read_row_group
from laptime.files.text import first_line, one_line
from laptime.runs.parts import MOST_TEXT_BYTES, PartFile, live, live_parts, open_part
from laptime.runs.schema import TableSchema, Value
from laptime.runs.schema import steps as steps_schema

KEY = ("stage", "attempt", "step", "rank")
Lane = tuple[str, int, int]  # stage, attempt, rank

_RELISTS = 20  # a part merged away while it was to be read: list again; a run merges once in many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The steps of each lane that a later attempt took again."""

    lanes: Mapping[Lane, NDArray[np.int64]]

    def __len__(self) -> int:
        """How many rows of the table of steps do not count."""
        return sum(map(len, self.lanes.values()))

    def steps(self) -> int:
        """How many steps were taken more than once, of the lowest rank."""
        lowest = min((rank for _, _, rank in self.lanes), default=0)
        return len({(stage, step) for stage, _, step, rank in self if rank == lowest})

    def without(self, table: Any) -> Any:
        """The rows of a table, with the columns of KEY among its own, that count."""
        stages, codes = _coded(table["stage"])
        attempt, step, rank = (table[name].to_numpy() for name in KEY[1:])
        counts = np.ones(table.num_rows, dtype=np.bool_)
        for (stage, attempt_number, rank_number), steps in self.lanes.items():
            if stage in stages:
                here = (attempt == attempt_number) & (rank == rank_number) & (codes == stages.index(stage))
                counts[here] = ~np.isin(step[here], steps)
        return table if counts.all() else table.filter(counts)

    def __iter__(self) -> Iterator[tuple[str, int, int, int]]:
        """Stage, attempt, step and rank of every row that does not count."""
        for (stage, attempt, rank), steps in self.lanes.items():
            yield from ((stage, attempt, step, rank) for step in steps.tolist())


_NONE = Repeats(lanes={})


def find_repeats(steps: Any) -> Repeats:
    """From the columns of KEY of every step that is on disk."""
    attempts, numbers, ranks = (steps[name].to_numpy() for name in KEY[1:])
    if not attempts.size or attempts.min() == attempts.max():
        return _NONE
    stages, codes = _coded(steps["stage"])
    order = np.lexsort((attempts, numbers, ranks, codes))
    same = np.ones(len(order) - 1, dtype=np.bool_)  # step as in the next row
    for column in (codes, ranks, numbers):
        same &= column[order][1:] == column[order][:-1]
    ends = np.append(np.flatnonzero(~same), len(order) - 1)
    last = np.repeat(attempts[order][ends], np.diff(ends, prepend=-1))
    lanes: dict[Lane, list[int]] = {}
    for row in order[attempts[order] < last].tolist():
        lane = stages[int(codes[row])], int(attempts[row]), int(ranks[row])
        lanes.setdefault(lane, []).append(int(numbers[row]))
    return Repeats(lanes={lane: np.array(steps) for lane, steps in lanes.items()})


def _coded(words: Any) -> tuple[list[str], NDArray[Any]]:
    """The words of a column, and the place of each row's among them."""
    whole = words.combine_chunks()
    coded = whole if hasattr(whole, "dictionary") else whole.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable(Generic[Value]):
    """One table of one run directory. Holds no rows."""

    directory: Path
    schema: TableSchema[Value]
    every_attempt: bool = False  # whether steps that were taken again are read as often as they were taken

    def check(self) -> int:
        """How many rows are on disk, those of steps that were taken again included.

        Reads every footer and raises DamagedRun for the first that is broken.
        """
        return sum(rows for rows, _ in self._walk(columns=[], steps=range(0)))

    def check_pages(self) -> None:
        """Raise DamagedRun where a page unpacks to more than any has: other readers do not look."""
        for path in live_parts(self.directory):
            with suppress(FileNotFoundError), _naming(path), open_part(path) as parquet:
                for group in range(parquet.num_row_groups):
                    check_pages(path, parquet, group, parquet.schema_arrow.names)

    def rows_of(self, rank: int) -> int:
        """How many rows a rank has on disk."""
        parts = [part.path for part in live(self.directory) if part.rank == rank]
        return sum(open_part(path).metadata.num_rows for path in parts)

    def repeats(self) -> Repeats:
        """Which steps of the run were taken again. Footers tell where there was one attempt, as mostly."""
        folder = self.directory.parent / steps_schema.name
        steps = StoredTable(directory=folder, schema=steps_schema, every_attempt=True)
        if steps.last_attempt() in (None, 0):
            return _NONE
        return find_repeats(steps.read(KEY))

    def last_attempt(self) -> int | None:
        """The highest attempt of any row; None without rows."""
        attempts: list[int] = []
        for path in live_parts(self.directory):
            try:
                with _naming(path), open_part(path) as parquet:
                    for group, bounds in enumerate(column_bounds(path, "attempt")):
                        if bounds is not None:
                            attempts.append(bounds[1])
                        elif parquet.metadata.row_group(group).num_rows:  # an older laptime wrote it
                            rows = read_row_group(path, parquet, group, ["attempt"])
                            attempts.append(pc.max(rows["attempt"]).as_py() or 0)
            except FileNotFoundError:  # merged away since; its rows are in the part that took its place
                return self.last_attempt()
        return max(attempts, default=None)

    def read(
        self, columns: Sequence[str] | None = None, *, coded: bool = False, steps: range | None = None
    ) -> Any:
        """Rows as one Arrow table; `coded` leaves strings as indices into a dictionary, much faster."""
        wanted = self.schema.arrow.names if columns is None else list(columns)
        tables: list[Any] = list(self.row_groups(wanted, coded=coded, steps=steps))
        if not tables:
            empty = self.schema.arrow.empty_table().select(wanted)
            for place, name in enumerate(wanted if coded else ()):
                if name in self.schema.repeated:
                    empty = empty.set_column(place, name, empty.column(name).dictionary_encode())
            tables = [empty]
        return pa.concat_tables(tables).unify_dictionaries()

    def row_groups(
        self, columns: Sequence[str] | None = None, *, coded: bool = False, steps: range | None = None
    ) -> Iterator[Any]:
        """Tables of some 100,000 rows, in order. `steps` passes over row groups that hold none of them."""
        wanted: list[str] = self.schema.arrow.names if columns is None else list(columns)
        repeats = _NONE if self.every_attempt else self.repeats()
        needed = list(dict.fromkeys((*wanted, *KEY))) if repeats else wanted
        for _, table in self._walk(columns=needed, steps=steps, coded=coded):
            if table is not None:
                yield repeats.without(table).select(wanted) if repeats else table
            del table  # or it would be in memory while the next is read

    def _walk(
        self, *, columns: list[str], steps: range | None, coded: bool = False
    ) -> Iterator[tuple[int, Any | None]]:
        """(rows, table) per row group, each row once even if parts are merged meanwhile.

        Merging keeps the order of a rank's rows, so what was seen of a rank is a prefix of what is there now.
        """
        for rank in sorted({part.rank for part in live(self.directory)}):
            seen = 0
            for _ in range(_RELISTS):
                parts = [part for part in live(self.directory) if part.rank == rank]
                try:
                    for rows, table in self._walk_parts(parts, seen, columns, steps, coded):
                        seen += rows
                        yield rows, table
                        del table
                except FileNotFoundError:
                    continue
                break
            else:
                raise DamagedRun(f"{one_line(self.directory)} changes faster than it can be read; try again")

    def _walk_parts(
        self, parts: Iterable[PartFile], skip: int, columns: list[str], steps: range | None, coded: bool
    ) -> Iterator[tuple[int, Any | None]]:
        for part in parts:
            with _naming(part.path):
                parquet = open_part(part.path)
                missing = self.schema.missing(parquet.schema_arrow)
                stored = [name for name in columns if name not in missing]
                words = [name for name in stored if name in self.schema.repeated]
                parquet = open_part(part.path, metadata=parquet.metadata, read_dictionary=words)
                bounds = column_bounds(part.path, "step") if steps else [None] * parquet.num_row_groups
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if rows <= skip:
                    skip -= rows
                    continue
                table = None
                low, high = bounds[group] or (-math.inf, math.inf)
                if steps is None or (steps and low <= max(steps) and high >= min(steps)):
                    with _naming(part.path):
                        table = read_row_group(part.path, parquet, group, stored).slice(skip)
                        table = self._checked(table, coded=coded)
                        table = self.schema.completed(table, columns, coded=coded) if missing else table
                yield rows - skip, table
                skip = 0

    def _checked(self, table: Any, *, coded: bool) -> Any:
        """Rows without gaps where there may be none; words as text, if they do not explode as such."""
        for place, column in enumerate(table.columns):
            field = self.schema.arrow.field(table.column_names[place])
            if column.null_count and not field.nullable:
                raise pa.ArrowInvalid(f"{field.name} has {column.null_count} missing values")
            if not coded and pa.types.is_dictionary(column.type):
                for chunk in column.chunks:
                    lengths = pc.cast(pc.binary_length(chunk.dictionary), pa.int64())
                    if (pc.max(lengths).as_py() or 0) * len(chunk) > MOST_TEXT_BYTES:
                        size = pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0
                        if size > MOST_TEXT_BYTES:
                            raise pa.ArrowInvalid(f"{field.name} holds {size:,} bytes of text")
                table = table.set_column(place, field, column.cast(field.type))
        return table


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns what Arrow says about an unreadable part into one line that names it and the remedy."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise RunError(f"{one_line(path)} cannot be read: permission denied") from error
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise DamagedRun(
            f"{one_line(path)} is damaged ({first_line(error)}); delete it to read the rest of the run"
        ) from error
