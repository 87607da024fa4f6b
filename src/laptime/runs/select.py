"""Columns as numpy arrays, and which rows of them a summary is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.runs.table_reader import StoredTable

Mask = NDArray[np.bool_]


class Columns:
    """Columns of a stored table: numbers as arrays (null is NaN), strings as codes into a list of words."""

    def __init__(self, stored: StoredTable[Any], names: Sequence[str]) -> None:
        table = stored.read(names, coded=True)
        self.rows = int(table.num_rows)
        self._arrays: dict[str, NDArray[Any]] = {}
        self.words: dict[str, list[str]] = {}
        for name in names:
            column = table.column(name).combine_chunks()
            if name in stored.schema.repeated:
                self.words[name] = column.dictionary.to_pylist()
                column = column.indices
            if self.rows and column.null_count == self.rows:  # as the times that only a trace tells
                self._arrays[name] = _unknown(self.rows)
            else:
                self._arrays[name] = column.to_numpy(zero_copy_only=False)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def equals(self, name: str, word: str) -> Mask:
        """Rows whose string is `word`."""
        words = self.words[name]
        found: Mask = self[name] == (words.index(word) if word in words else -1)
        return found

    def only(self, mask: Mask) -> None:
        """Keep the rows of `mask`."""
        if mask.all():  # as where a run has one stage; copying three million rows takes 0.3 s
            return
        self.rows = int(np.count_nonzero(mask))
        first = int(mask.argmax())
        if mask[first:].all():  # the warm-up is left out: a view is enough
            self._arrays = {name: array[first:] for name, array in self._arrays.items()}
        else:
            self._arrays = {name: self.taken(name, mask) for name in self._arrays}

    def taken(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """A column's rows by mask or place; of one that is not known anywhere nothing is copied."""
        array = self._arrays[name]
        if array.strides == (0,):
            return _unknown(int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows))
        found: NDArray[Any] = array[rows]
        return found


def _unknown(rows: int) -> NDArray[np.float64]:
    """So many NaN that take no memory."""
    return np.broadcast_to(np.float64(np.nan), rows)


def lane(columns: Columns) -> NDArray[np.int64]:
    """One number per (attempt, rank): the rows of one process's one try."""
    return columns["attempt"].astype(np.int64) << 32 | columns["rank"].astype(np.int64)


def first_steps(columns: Columns) -> dict[int, int]:
    """The first step of each lane."""
    lanes, steps = lane(columns), columns["step"]
    return {int(one): int(steps[lanes == one].min()) for one in np.unique(lanes)}


def _alike(values: NDArray[Any]) -> bool:
    return bool(values.min() == values.max())


def warm(columns: Columns, first: dict[int, int], skip: int) -> Mask:
    """Rows past the first `skip` steps of their attempt, which fill caches and build lazy state."""
    if columns.rows and _alike(columns["attempt"]) and _alike(columns["rank"]):  # no need to name each row's
        one = int(columns["attempt"][0]) << 32 | int(columns["rank"][0])
        start = first.get(one, int(columns["step"].min()))
        found: Mask = columns["step"] >= start + skip
        return found
    lanes = lane(columns)
    mask = np.zeros(columns.rows, dtype=np.bool_)
    for one in np.unique(lanes):
        here = lanes == one
        start = first.get(int(one), int(columns["step"][here].min()))
        mask |= here & (columns["step"] >= start + skip)
    return mask
