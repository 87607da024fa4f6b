"""The three tables of a run: one fixed Arrow schema each, so an all-null first part cannot change a type.

The columns and their order are the run directory's contract; scripts outside the repository read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from laptime.errors import DamagedRun, NewerSchema
from laptime.files.text import one_line
from laptime.model import ACCOUNTS, How, KernelTime, LayerTime, Phase, Stage, Step

SCHEMA_VERSION = 2

Value = TypeVar("Value", Step, LayerTime, KernelTime)

# Producers that work in numpy have no null for these; a NaN there means "not traced". A NaN loss is a
# fact about the training and stays NaN.
_NAN_IS_UNKNOWN = frozenset({"busy_s", "idle_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema(Generic[Value]):
    """One table: its name, the value a row stands for, and its columns."""

    name: str
    value: type[Value]
    arrow: Any
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
        rows = max((len(given) for given in columns.values() if not _is_scalar(given)), default=1)
        arrays = [_array(field, self._given(field.name, columns), rows) for field in self.arrow]
        uneven = [field.name for field, array in zip(self.arrow, arrays, strict=True) if len(array) != rows]
        if uneven:
            raise ValueError(f"{self.name}: {', '.join(uneven)} is not {rows} rows long")
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def _given(self, name: str, columns: Mapping[str, Any]) -> Any:
        if name in columns:
            return columns[name]
        default = self.value.__dataclass_fields__[name].default
        if default is dataclasses.MISSING:
            raise ValueError(f"{self.name} needs a column {name}")
        return default


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


def _needed(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


steps = TableSchema(
    name="steps",
    value=Step,
    words={"stage": Stage},
    arrow=pa.schema(
        [
            _needed("stage", pa.string()),
            _needed("attempt", pa.int32()),
            _needed("step", pa.int64()),
            _needed("optimizer_step", pa.int64()),
            _needed("epoch", pa.int32()),
            _needed("rank", pa.int32()),
            _needed("device", pa.string()),
            _needed("start_s", pa.float64()),
            _needed("wall_s", pa.float64()),
            # unknown is null, not 0: only a kernel trace tells idle time
            *(pa.field(a.column, pa.float64(), nullable=a.column in _NAN_IS_UNKNOWN) for a in ACCOUNTS),
            pa.field("samples", pa.int64()),
            pa.field("loss", pa.float64()),
            pa.field("top1", pa.float64()),
            pa.field("topn", pa.float64()),
            _needed("instrumented", pa.bool_()),
        ]
    ),
)

layers = TableSchema(
    name="layers",
    value=LayerTime,
    words={"stage": Stage, "phase": Phase, "how": How},
    arrow=pa.schema(
        [
            _needed("stage", pa.string()),
            _needed("attempt", pa.int32()),
            _needed("step", pa.int64()),
            _needed("rank", pa.int32()),
            _needed("layer", pa.string()),
            _needed("phase", pa.string()),
            _needed("start_s", pa.float64()),
            _needed("seconds", pa.float64()),
            _needed("calls", pa.int32()),
            _needed("how", pa.string()),
            pa.field("busy_s", pa.float64()),
            pa.field("idle_s", pa.float64()),
            pa.field("memory_bytes", pa.int64()),
        ]
    ),
)

kernels = TableSchema(
    name="kernels",
    value=KernelTime,
    words={"stage": Stage},
    arrow=pa.schema(
        [
            _needed("stage", pa.string()),
            _needed("attempt", pa.int32()),
            _needed("step", pa.int64()),
            _needed("rank", pa.int32()),
            _needed("layer", pa.string()),
            _needed("phase", pa.string()),
            _needed("kind", pa.string()),
            _needed("name", pa.string()),
            _needed("stream", pa.int64()),  # a CUDA stream is known by a number that can be an address
            _needed("start_s", pa.float64()),
            _needed("seconds", pa.float64()),
        ]
    ),
)

TABLES: Mapping[str, TableSchema[Any]] = {table.name: table for table in (steps, layers, kernels)}


def from_columns(name: str, columns: Mapping[str, Any]) -> Any:
    """Rows of the table `name` from columns; see `TableSchema.from_columns`."""
    return TABLES[name].from_columns(columns)


def _with_health(document: dict[str, Any]) -> dict[str, Any]:
    """Version 1 kept no account of its writing but the rows it dropped, in its summary."""
    summary = document.get("summary")
    dropped = summary.get("dropped_rows") if isinstance(summary, Mapping) else None
    return {**document, "schema_version": 2, "health": {"lost_rows": dropped} if dropped else {}}


# From version n to n + 1, by n. A change to a table's columns also needs a cast where parts are read.
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
