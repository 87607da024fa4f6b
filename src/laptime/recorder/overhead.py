"""The overhead of layer marks: marked steps against unmarked neighbours, so that drift cancels.

Marked steps in a row are one case, since they share their neighbours. A case is the median of its
marked steps beside the bare steps of the same kind before and after it, each side counting the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from laptime.model.statistics import bootstrap_ranks

SIDE = 4  # bare steps on each side
REACH = 64  # steps; a neighbour further away may be of another time
WINDOW = 512
FEWEST = 8
MOST_KINDS = 64


@dataclass(slots=True)
class _Case:
    """Marked steps in a row, and the bare steps around them."""

    place: int
    before: list[float]
    marked: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def times(self) -> tuple[float, float] | None:
        """Of the marked steps and of the bare ones; None without some on both sides."""
        if not self.before or not self.after:
            return None
        bare = (median(self.before) + median(self.after)) / 2
        return (median(self.marked), bare) if bare > 0 else None


class _Kind:
    """Steps that do the same work: the last bare ones, and the cases that wait for those to come."""

    __slots__ = ("bare", "growing", "waiting")

    def __init__(self) -> None:
        self.bare: deque[tuple[int, float]] = deque(maxlen=SIDE)
        self.waiting: list[_Case] = []
        self.growing: _Case | None = None


class Pairs:
    """Times of marked and of bare steps beside them, of the latest cases."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._kinds: dict[Hashable, _Kind] = {}
        self._place = 0

    def take(self, wall_s: float, *, instrumented: bool, kind: Hashable = None) -> None:
        """Take in the next step. Only steps of one kind are compared: as many samples, an update or none."""
        self._place = place = self._place + 1
        steps = self._kinds.get(kind)
        if steps is None:
            if len(self._kinds) >= MOST_KINDS:
                return  # every batch has another size
            steps = self._kinds[kind] = _Kind()
        if instrumented:
            if steps.growing is None:
                near = [bare for at, bare in steps.bare if place - at <= REACH]
                steps.growing = _Case(place=place, before=near)
                steps.waiting.append(steps.growing)
            steps.growing.marked.append(wall_s)
            return
        steps.growing = None
        steps.bare.append((place, wall_s))
        if steps.waiting:
            self._add(steps, wall_s)

    def _add(self, steps: _Kind, wall_s: float) -> None:
        for case in steps.waiting:
            if self._place - case.place <= REACH + len(case.marked):
                case.after.append(wall_s)
            else:
                case.after += [math.nan] * (SIDE - len(case.after))  # those there are suffice
        while steps.waiting and len(steps.waiting[0].after) >= SIDE:
            case = steps.waiting.pop(0)
            case.after = [seconds for seconds in case.after if not math.isnan(seconds)]
            if (times := case.times()) is not None:
                self._times.append(times)

    def cost_s(self) -> tuple[float, float] | None:
        """The seconds that marks cost: with a standard error on top, and what is sure (two of them less).

        An error from quartiles: 1.2533 · IQR / 1.349 / √n. None before there are enough to tell.
        """
        if len(self._times) < FEWEST:
            return None
        times = np.array(self._times)
        q1, middle, q3 = np.quantile(times[:, 0] - times[:, 1], (0.25, 0.5, 0.75)).tolist()
        error = 1.2533 * (q3 - q1) / 1.349 / math.sqrt(len(times))
        return middle + error, middle - 2 * error

    @property
    def count(self) -> int:
        """Cases that were compared."""
        return len(self._times) + len(self._unsettled())

    def interval(self) -> tuple[float, float, float] | None:
        """The median ratio with its 95 % interval; None before there are enough to tell."""
        known = sorted(marked / bare for marked, bare in (*self._times, *self._unsettled()))
        if len(known) < FEWEST:
            return None
        low, high = bootstrap_ranks(len(known))
        return median(known), known[low], known[high]

    def _unsettled(self) -> list[tuple[float, float]]:
        """Of cases near the end of a run, with fewer steps after them."""
        cases = [case for steps in self._kinds.values() for case in steps.waiting]
        return [times for case in cases if (times := case.times()) is not None]
