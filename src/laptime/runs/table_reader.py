"""A table of a run as it lies on disk: read row group by row group, also while it is being written.

Steps that a later attempt took again are left out of what is read (`repeats`), with their layers and kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import pyarrow as pa
import pyarrow.compute as pc

from laptime.errors import DamagedRun, RunError
from laptime.files.text import first_line, one_line
from laptime.runs.parts import MOST_TEXT_BYTES, PartFile, live, open_part
from laptime.runs.repeats import KEY, NONE, Repeats, find_repeats
from laptime.runs.schema import TableSchema, Value
from laptime.runs.schema import steps as steps_schema

_RELISTS = 20  # a part merged away while it was to be read: list again; a run merges once in many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable(Generic[Value]):
    """One table of one run directory. Holds no rows."""

    directory: Path
    schema: TableSchema[Value]
    every_attempt: bool = False  # whether steps that were taken again are read as often as they were taken

    def parts(self) -> list[Path]:
        """The part files to read, rank by rank and in order."""
        return [part.path for part in live(self.directory)]

    def check(self) -> int:
        """How many rows are on disk, those of steps that were taken again included.

        Reads every footer and raises DamagedRun for the first that is broken.
        """
        return sum(rows for rows, _ in self._walk(columns=[], steps=range(0)))

    def rows_of(self, rank: int) -> int:
        """How many rows a rank has on disk."""
        return sum(
            open_part(part.path).metadata.num_rows for part in live(self.directory) if part.rank == rank
        )

    def repeats(self) -> Repeats:
        """Which steps of the run were taken again. Footers tell where there was one attempt, as mostly."""
        steps = StoredTable(directory=self.directory.parent / steps_schema.name, schema=steps_schema)
        if steps.last_attempt() in (None, 0):
            return NONE
        groups = [table for _, table in steps._walk(columns=list(KEY), steps=None) if table is not None]
        return find_repeats(pa.concat_tables(groups)) if groups else NONE

    def last_attempt(self) -> int | None:
        """The highest attempt of any row; None without rows."""
        attempts: list[int] = []
        for path in self.parts():
            try:
                with _naming(path), open_part(path) as parquet:
                    attempts += _attempts(parquet)
            except FileNotFoundError:  # merged away since; its rows are in the part that took its place
                return self.last_attempt()
        return max(attempts, default=None)

    def read(
        self, columns: Sequence[str] | None = None, *, coded: bool = False, steps: range | None = None
    ) -> Any:
        """Rows as one Arrow table; `coded` leaves strings as indices into a dictionary, much faster."""
        wanted = self.schema.arrow.names if columns is None else list(columns)
        empty = self.schema.arrow.empty_table().select(wanted)
        for place, name in enumerate(wanted if coded else ()):
            if name in self.schema.repeated:
                empty = empty.set_column(place, name, empty.column(name).dictionary_encode())
        tables: list[Any] = list(self.row_groups(wanted, coded=coded, steps=steps))
        return pa.concat_tables(tables or [empty]).unify_dictionaries()

    def row_groups(
        self, columns: Sequence[str] | None = None, *, coded: bool = False, steps: range | None = None
    ) -> Iterator[Any]:
        """Tables of some 100,000 rows, in order. `steps` passes over row groups that hold none of them."""
        wanted: list[str] = self.schema.arrow.names if columns is None else list(columns)
        repeats = NONE if self.every_attempt else self.repeats()
        needed = list(dict.fromkeys((*wanted, *KEY))) if repeats else wanted
        for _, table in self._walk(columns=needed, steps=steps, coded=coded):
            if table is not None:
                yield repeats.without(table).select(wanted) if repeats else table

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
                missing = self._missing(parquet.schema_arrow)
                stored = [name for name in columns if name not in missing]
                words = [name for name in stored if name in self.schema.repeated]
                parquet = open_part(part.path, metadata=parquet.metadata, read_dictionary=words)
            for group in range(parquet.num_row_groups):
                facts = parquet.metadata.row_group(group)
                rows = facts.num_rows
                if rows <= skip:
                    skip -= rows
                    continue
                table = None
                if _may_hold(facts, steps):
                    with _naming(part.path):
                        table = parquet.read_row_group(group, columns=stored).slice(skip)
                        table = self._checked(table, coded=coded)
                        table = self.schema.completed(table, columns, coded=coded) if missing else table
                yield rows - skip, table
                skip = 0

    def _missing(self, columns: Any) -> list[str]:
        """The columns that a part is older than; raises where it is no part of this table."""
        missing = self.schema.missing(columns.names)
        if missing is None or len(set(columns.names)) < len(columns.names):
            raise pa.ArrowInvalid(f"its columns are not those of the table {self.schema.name}")
        for mine in self.schema.arrow:
            if mine.name not in missing and columns.field(mine.name).type != mine.type:
                raise pa.ArrowInvalid(f"{mine.name} is {columns.field(mine.name).type}, not {mine.type}")
        return missing

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


def _attempts(parquet: Any) -> list[int]:
    """The highest attempts in a part, by its footer; from its rows, where an older laptime wrote it."""
    place = parquet.schema_arrow.names.index("attempt")
    groups = [parquet.metadata.row_group(group) for group in range(parquet.num_row_groups)]
    bounds = [group.column(place).statistics for group in groups if group.num_rows]
    if all(bound is not None and bound.has_min_max for bound in bounds):
        return [int(bound.max) for bound in bounds]
    return [int(pc.max(parquet.read(columns=["attempt"])["attempt"]).as_py() or 0)]


def _may_hold(facts: Any, steps: range | None) -> bool:
    """Whether a row group can hold a row of these steps, by the bounds in the part's footer."""
    if not steps:
        return steps is None
    for place in range(facts.num_columns):
        column = facts.column(place)
        if column.path_in_schema == "step" and (bounds := column.statistics) and bounds.has_min_max:
            return bool(bounds.min <= max(steps) and bounds.max >= min(steps))
    return True


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
