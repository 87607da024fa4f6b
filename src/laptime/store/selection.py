"""Columns as numpy arrays, and which rows of them a summary is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.store.stored import StoredTable

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
        self._arrays = {name: array[mask] for name, array in self._arrays.items()}
        self.rows = int(np.count_nonzero(mask))


def lane(columns: Columns) -> NDArray[np.int64]:
    """One number per (attempt, rank): the rows of one process's one try."""
    return columns["attempt"].astype(np.int64) << 32 | columns["rank"].astype(np.int64)


def first_steps(columns: Columns) -> dict[int, int]:
    """The first step of each lane."""
    lanes, steps = lane(columns), columns["step"]
    return {int(one): int(steps[lanes == one].min()) for one in np.unique(lanes)}


def warm(columns: Columns, first: dict[int, int], skip: int) -> Mask:
    """Rows past the first `skip` steps of their attempt, which fill caches and build lazy state."""
    lanes = lane(columns)
    mask = np.zeros(columns.rows, dtype=np.bool_)
    for one in np.unique(lanes):
        here = lanes == one
        start = first.get(int(one), int(columns["step"][here].min()))
        mask |= here & (columns["step"] >= start + skip)
    return mask
