"""Steps that a training took again after a resume: of each, the last attempt counts.

A resumed training goes back to its checkpoint, so what followed that in the attempt before is taken again.
Both times were measured and stay on disk; readers leave out the earlier one, with its layers and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = ("stage", "attempt", "step", "rank")
Lane = tuple[str, int, int]  # stage, attempt, rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The steps of each lane that a later attempt took again."""

    lanes: Mapping[Lane, NDArray[np.int64]]

    def __bool__(self) -> bool:
        return bool(self.lanes)

    @property
    def rows(self) -> int:
        """How many rows of the table of steps do not count."""
        return sum(len(steps) for steps in self.lanes.values())

    def steps(self) -> int:
        """How many steps were taken more than once, of the lowest rank."""
        lowest = min((rank for _, _, rank in self.lanes), default=0)
        of_stages: dict[str, set[int]] = {}
        for (stage, _, rank), steps in self.lanes.items():
            if rank == lowest:
                of_stages.setdefault(stage, set()).update(steps.tolist())
        return sum(map(len, of_stages.values()))

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

    def keys(self) -> Iterator[tuple[str, int, int, int]]:
        """Stage, attempt, step and rank of every row that does not count."""
        for (stage, attempt, rank), steps in self.lanes.items():
            yield from ((stage, attempt, step, rank) for step in steps.tolist())


NONE = Repeats(lanes={})


def find_repeats(steps: Any) -> Repeats:
    """From the columns of KEY of every step that is on disk."""
    attempts = steps["attempt"].to_numpy()
    if not attempts.size or attempts.min() == attempts.max():
        return NONE
    stages, codes = _coded(steps["stage"])
    ranks, numbers = steps["rank"].to_numpy(), steps["step"].to_numpy()
    lanes: dict[Lane, NDArray[np.int64]] = {}
    places, count = _places(numbers)
    for code, stage in enumerate(stages):
        for rank in range(ranks.min(), ranks.max() + 1):
            of_rank = (codes == code) & (ranks == rank)
            taken_later = np.zeros(count, dtype=np.bool_)
            for attempt in range(attempts.max(), attempts.min() - 1, -1):
                rows = np.flatnonzero(of_rank & (attempts == attempt))
                again = rows[taken_later[places[rows]]]
                if again.size:
                    lanes[stage, attempt, rank] = numbers[again]
                taken_later[places[rows]] = True
    return Repeats(lanes=lanes)


def _places(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """An index for each number into a dense array, and the length of that array; faster than a set."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < 4 * len(numbers) + 1024:
        return numbers - low, high - low + 1
    distinct, places = np.unique(numbers, return_inverse=True)  # a log may number its steps as it likes
    return places, len(distinct)


def _coded(words: Any) -> tuple[list[str], NDArray[Any]]:
    """The words of a column, and the place of each row's among them."""
    whole = words.combine_chunks()
    coded = whole if hasattr(whole, "dictionary") else whole.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
