"""The three tables of a run: one fixed Arrow schema each, so an all-null first part cannot change a type.

A table's columns are the fields of its value (`model.step`). They are the run directory's contract:
scripts outside the repository read them. A new column may be null, so that older parts can be read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from laptime.errors import DamagedRun, NewerSchema
from laptime.files.text import one_line
from laptime.model import ACCOUNTS, KernelTime, LayerTime, Step
from laptime.model.step import StoredColumn, columns_of

SCHEMA_VERSION = 2

Value = TypeVar("Value", Step, LayerTime, KernelTime)

_ACCOUNT_COLUMNS = frozenset(account.column for account in ACCOUNTS)
# Producers that work in numpy have no null: a NaN in these means "not traced". A NaN loss is a fact about
# the training and stays NaN.
_NAN_IS_UNKNOWN = frozenset(
    column.name
    for value in (Step, LayerTime, KernelTime)
    for column in columns_of(value)
    if column.type is float and column.nullable and not column.logged
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema(Generic[Value]):
    """One table: its name, the value a row stands for, and its columns."""

    name: str
    value: type[Value]
    columns: tuple[StoredColumn, ...]
    arrow: Any
    defaults: Mapping[str, Any]  # of the columns that may be left out
    words: Mapping[str, type[StrEnum]]  # columns whose strings are one of our words

    @property
    def repeated(self) -> list[str]:
        """Columns to dictionary-encode on disk: every string, since all of them repeat."""
        return [field.name for field in self.arrow if field.type == pa.string()]

    def table(self, values: Iterable[Value]) -> Any:
        """Rows from values, in order."""
        rows = list(values)
        return self.from_columns({name: [getattr(row, name) for row in rows] for name in self.arrow.names})

    def values(self, table: Any) -> Iterator[Value]:
        """Values from rows, in order; a thousand at a time, so that a long table is never a list of dicts."""
        for batch in table.to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                for name, word in self.words.items():
                    try:
                        row[name] = word(row[name])
                    except ValueError:
                        known, given = ", ".join(word), one_line(row[name])[:60]
                        raise DamagedRun(
                            f"the table {self.name} holds {given!r} as {name}, which is none of {known}; "
                            "restore the run from a copy"
                        ) from None
                yield self.value(**row)

    def from_columns(self, columns: Mapping[str, Any]) -> Any:
        """Rows from columns: arrays, lists, Arrow arrays (dictionaries too), or one scalar for every row.

        A column left out takes the default of the value's field.
        """
        unknown = sorted(set(columns) - set(self.arrow.names))
        if unknown:
            raise ValueError(f"{self.name} has no column {', '.join(unknown)}")
        given = {**self.defaults, **columns}
        missing = [name for name in self.arrow.names if name not in given]
        if missing:
            raise ValueError(f"{self.name} needs a column {missing[0]}")
        rows = max((len(column) for column in columns.values() if not _is_scalar(column)), default=1)
        arrays = [_array(field, given[field.name], rows) for field in self.arrow]
        uneven = [field.name for field, array in zip(self.arrow, arrays, strict=True) if len(array) != rows]
        if uneven:
            raise ValueError(f"{self.name}: {', '.join(uneven)} is not {rows} rows long")
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def missing(self, part: Any) -> list[str]:
        """The columns that a part of this Arrow schema is older than; ValueError where it is none of ours.

        Columns more, of a newer laptime, are passed over: `run.json` tells whether the schema can be read.
        """
        names = set(part.names)
        absent = [column for column in self.columns if column.name not in names]
        known = all(column.nullable or column.name in _ACCOUNT_COLUMNS for column in absent)
        if not known or len(names) < len(part.names):
            raise ValueError(f"its columns are not those of the table {self.name}")
        for mine in self.arrow:
            if mine.name in names and part.field(mine.name).type != mine.type:
                raise ValueError(f"{mine.name} is {part.field(mine.name).type}, not {mine.type}")
        return [column.name for column in absent]

    def completed(self, table: Any, columns: Sequence[str], *, coded: bool = False) -> Any:
        """A part's rows with these columns: null where it is older; 0 s for an account that came later."""
        for place, name in enumerate(columns):
            if name not in table.column_names:
                field = self.arrow.field(name)
                filled = pa.repeat(pa.scalar(self.defaults[name], type=field.type), table.num_rows)
                if coded and name in self.repeated:
                    filled = filled.dictionary_encode()
                table = table.add_column(place, name, filled)
        return table


def _is_scalar(given: Any) -> bool:
    return given is None or isinstance(given, (str, int, float, np.generic))


def _array(field: Any, given: Any, rows: int) -> Any:
    if _is_scalar(given):
        given = pa.repeat(pa.scalar(given, type=field.type), rows)
    elif isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    elif not isinstance(given, pa.Array):
        given = pa.array(given, type=field.type, from_pandas=field.name in _NAN_IS_UNKNOWN)
    if isinstance(given, pa.DictionaryArray):
        given = given.dictionary_decode()
    array = given if given.type == field.type else given.cast(field.type)
    if array.null_count and not field.nullable:
        raise ValueError(f"{field.name} has {array.null_count} missing values and may have none")
    return array


def _table(name: str, value: type[Value]) -> TableSchema[Value]:
    """The table whose rows are values of this class: a column for each field."""
    columns = columns_of(value)
    return TableSchema(
        name=name,
        value=value,
        columns=columns,
        defaults={each.name: each.default for each in columns if each.default is not dataclasses.MISSING},
        words={column.name: column.type for column in columns if issubclass(column.type, StrEnum)},
        arrow=pa.schema([pa.field(each.name, _arrow_type(each), nullable=each.nullable) for each in columns]),
    )


def _arrow_type(column: StoredColumn) -> Any:
    if issubclass(column.type, str):
        return pa.string()
    kinds = {bool: pa.bool_(), float: pa.float64(), int: pa.int32() if column.bits == 32 else pa.int64()}
    return kinds[column.type]


steps = _table("steps", Step)
layers = _table("layers", LayerTime)
kernels = _table("kernels", KernelTime)

TABLES: Mapping[str, TableSchema[Any]] = {table.name: table for table in (steps, layers, kernels)}


def from_columns(name: str, columns: Mapping[str, Any]) -> Any:
    """Rows of the table `name` from columns; see `TableSchema.from_columns`."""
    return TABLES[name].from_columns(columns)


def _with_health(document: dict[str, Any]) -> dict[str, Any]:
    """Version 1 kept no account of its writing but the rows it dropped, in its summary."""
    summary = document.get("summary")
    dropped = summary.get("dropped_rows") if isinstance(summary, Mapping) else None
    return {**document, "schema_version": 2, "health": {"lost_rows": dropped} if dropped else {}}


# From version n to n + 1, by n. Columns that a part is older than are filled in where it is read.
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _with_health}


def upgrade(document: dict[str, Any], *, where: str) -> dict[str, Any]:
    """The content of `run.json` as this version writes it. A newer one is refused, never guessed at."""
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedRun(f"{where} has no usable schema_version ({version!r}); it cannot be read")
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{where} was written by schema {version}, "
            f"this laptime reads up to {SCHEMA_VERSION}; upgrade laptime"
        )
    for older in range(version, SCHEMA_VERSION):
        document = UPGRADES[older](document)
    return document
