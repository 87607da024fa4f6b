"""Intervals of time as (start, end) pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """The intervals without their overlaps, in order."""
    begin = finish = -math.inf
    for start, end in sorted(intervals):
        if start > finish:
            if finish > begin:
                yield begin, finish
            begin, finish = start, end
        finish = max(finish, end)
    if finish > begin:
        yield begin, finish
