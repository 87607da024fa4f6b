"""Which steps get layer marks: as many as keep the overhead of the whole run within the budget.

The price of a marked step is the higher of two: its marks by their number, and what marked steps were found
to take beside their bare neighbours. It rises at once and falls slowly, and it counts for all marked steps
so far, so what was spent too early is saved later. Steps are drawn by chance, not every n-th: a period would
lock onto gradient accumulation or logging and compare unlike steps. The first few steps are always marked.

Marked steps are compared with unmarked neighbours, so that drift cancels. Marked steps in a row are one case,
since they share their neighbours. A case is the median of its marked steps beside the bare steps of the same
kind before and after it, each side counting the same.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from laptime.model.statistics import bootstrap_ranks

LARGEST_SHARE = 0.9  # some steps stay unmarked, for comparison
FIRST_SHARE = 0.05  # until the marks of a first step have been counted
SMALLEST_SHARE = 0.01  # of cheap marks, where the accounts alone use up the budget
WINDOW = 512
REVIEW_EVERY = 32
TRICKLE = 0.1  # of the budget: still spent after overspending, so that every part of a run has layer times
FALL = 0.75  # of the price, from one review to the next
LONG_STEP_SHARE = 0.05  # of the step so far, from which its marks are given up within it
EARLY = 2  # steps of each stage that are marked in any case, the first step not among them
WIDEST = 0.2  # an interval of ±10 points; a wider one is no measurement
BELIEVED = 5  # limit on a noisy measurement, as a multiple of the estimate from mark counts
# What a layer's mark takes beside the stamp, where hooks are put on for one step: the hook itself, a module's
# slower call, the node's hook; and for the step, the walk of the graph. From networks of 2 to 50 layers, CPU.
HOOK_S, ARMING_S = 6e-6, 30e-6
USUAL_ACCOUNTS = 10  # marks of a bare step, before one was seen
SIDE = 4  # bare steps on each side of a case
REACH = 64  # steps; a neighbour further away may be of another time
FEWEST = 8  # cases
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


@dataclass(slots=True)
class _Kind:
    """Steps that do the same work: the last bare ones, and the cases that wait for those to come."""

    bare: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SIDE))
    waiting: list[_Case] = field(default_factory=list)
    growing: _Case | None = None


class MarkOverhead:
    """What marks add to a step: times of marked steps and of the bare ones beside them, the latest cases."""

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
        for case in list(steps.waiting):
            far = place - case.place > REACH + len(case.marked)  # no nearer one will come
            if not far:
                case.after.append(wall_s)
            if far or len(case.after) >= SIDE:
                steps.waiting.remove(case)
                if (times := case.times()) is not None:
                    self._times.append(times)

    def cost_s(self) -> tuple[float, float] | None:
        """The seconds that marks cost: the estimate plus a standard error, and minus two of them.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What layer marks cost: the ratio of a marked to a bare step's time, and how it is known.

    how        measured: beside bare neighbours; estimated: by the number of marks, with too few steps to
               compare; unknown: compared, but with an interval too wide or wholly below 1. Then no ratio.
    low, high  95 % interval of what was measured, also where that is not believed
    estimated  by the number of marks, always
    """

    ratio: float | None
    low: float
    high: float
    how: str
    instrumented_steps: int
    bare_steps: int
    pairs: int
    estimated: float | None


class Budget:
    """Draws the steps to instrument and reviews the share against what marks were found to cost."""

    def __init__(
        self, budget: float, *, every_step: bool = False, never: bool = False, seed: int = 0
    ) -> None:
        self.budget = budget
        self.every_step = every_step and not never
        self.never = never
        self.share = 0.0 if never else 1.0 if every_step else FIRST_SHARE
        self.mark_s = 0.0  # host seconds per mark
        self.hook_s = HOOK_S  # and what a layer's takes beside it
        self._random = random.Random(seed)
        self._walls: dict[bool, deque[float]] = {True: deque(maxlen=WINDOW), False: deque(maxlen=WINDOW)}
        self._marks = {True: 0, False: 0}
        self._counts = {True: 0, False: 0}
        self._overhead = MarkOverhead()
        self._shortest_s = 0.0
        self._price_s = 0.0  # of a marked step
        self._elapsed_s = 0.0
        self._offered = self._drawn = 0
        # Share of steps, steps beyond that share, trickle: replaced together, as another thread reads them.
        self._terms = (self.share, 0.0, 0.0)

    def stop(self) -> None:
        self.never, self.every_step, self.share = True, False, 0.0

    def too_dear(self, marks: int, *, walked_s: float, passed_s: float) -> bool:
        """Whether layer marks cost too much in a step with very many of them."""
        spent_s = (self.mark_s + self.hook_s) * marks + walked_s
        return not self.every_step and spent_s >= LONG_STEP_SHARE * passed_s

    # -- drawing: the training thread --------------------------------------------------------------------

    def draw(self, *, early: bool = False) -> bool:
        """Whether the next step carries layer marks; an `early` one does in any case."""
        if self.every_step or self.never:
            return self.every_step
        self._offered += 1
        share, more, trickle = self._terms
        chance = self._random.random()
        if not early:
            if chance >= share:
                return False
            if chance >= trickle and self._drawn >= share * self._offered + more + EARLY:
                return False
        self._drawn += 1
        return True

    def look_early(self, wall_s: float, *, marks: int, instrumented: bool) -> None:
        """A first estimate from one of the first steps, long before its breakdown.

        By the shortest of them: a step that warmed up would make marks look cheap.
        """
        self._marks[instrumented] = marks
        self._shortest_s = min(wall_s, self._shortest_s or wall_s)
        if self._marks[True] and not self._counts[True] and self._shortest_s > 0:
            self._price_s = 0.0
            self._spend(self._shortest_s)

    # -- reviewing: the thread that breaks steps down ----------------------------------------------------

    def observe(self, wall_s: float, *, instrumented: bool, marks: int = 0, kind: Hashable = None) -> None:
        """Take in a finished training step. Only steps of one `kind` are compared with each other."""
        self._walls[instrumented].append(wall_s)
        self._marks[instrumented] = marks
        self._counts[instrumented] += 1
        self._elapsed_s += wall_s
        if self.every_step or self.never:
            return
        self._overhead.take(wall_s, instrumented=instrumented, kind=kind)
        seen = self._counts[True] + self._counts[False]
        if seen % REVIEW_EVERY == 0 or seen <= EARLY:
            self._spend(self._typical_s())

    def _spend(self, typical_s: float) -> None:
        """Spend on layers what the accounts, kept on every step, leave of the budget."""
        if typical_s <= 0 or not (self._counts[True] or self._marks[True]):
            return
        # The higher of the two prices. A measurement far above the estimate counts only if significant.
        counted_s = self._layer_marks_s()
        careful_s, sure_s = self._overhead.cost_s() or (0.0, 0.0)
        measured_s = max(min(careful_s, BELIEVED * counted_s), sure_s)
        price_s = self._price_s = max(counted_s, measured_s, FALL * self._price_s)
        self.share = self._affordable(typical_s, 1, price_s)
        # Past time counts unscaled: marks cost as many seconds in a longer step.
        steps = self._counts[True] + self._counts[False]
        so_far = self._affordable(self._elapsed_s, steps, price_s)
        trickle = min(SMALLEST_SHARE, TRICKLE * self.share)
        self._terms = (self.share, so_far - self.share * steps, trickle)

    def _affordable(self, seconds: float, steps: int, each_s: float) -> float:
        """How many of these steps may be marked, at so many seconds each."""
        if each_s <= 0:
            return LARGEST_SHARE * steps
        whole = self.budget * seconds / each_s
        left = whole - self.mark_s * (self._marks[False] or USUAL_ACCOUNTS) * steps / each_s
        return min(LARGEST_SHARE * steps, whole, max(SMALLEST_SHARE * steps, left))

    def _typical_s(self) -> float:
        walls = self._walls[False] or self._walls[True]
        return float(np.median(walls)) if walls else 0.0

    def _layer_marks_s(self) -> float:
        marks = max(0, self._marks[True] - (self._marks[False] or USUAL_ACCOUNTS))
        return (self.mark_s + self.hook_s) * marks + ARMING_S if self.mark_s else 0.0

    # -- results -----------------------------------------------------------------------------------------

    def overhead(self) -> Overhead | None:
        """The overhead of a marked step; None where unknown."""
        by_number: float | None = None
        typical_s = self._typical_s()
        if self._counts[True] and self.mark_s and typical_s > 0:
            # Without bare steps hooks stay on, and all marks of a step are the recorder's.
            marks_s = self._layer_marks_s() if self._walls[False] else self.mark_s * self._marks[True]
            by_number = 1.0 + marks_s / typical_s
        interval = self._overhead.interval()
        if interval is None:
            if by_number is None:
                return None
            ratio, low, high, how = by_number, by_number, by_number, "estimated"
        else:
            ratio, low, high = interval
            how = "measured" if high >= 1.0 and high - low <= WIDEST else "unknown"
        return Overhead(
            ratio=ratio if how != "unknown" else None,
            low=low,
            high=high,
            how=how,
            instrumented_steps=self._counts[True],
            bare_steps=self._counts[False],
            pairs=self._overhead.count,
            estimated=by_number,
        )

    def paid(self) -> dict[str, float | str | None]:
        """Overhead of layer times over the whole training: the marked share of steps times theirs."""
        trained = self._counts[True] + self._counts[False]
        marked = self._counts[True] / trained if trained else 0.0
        ratio, how = None if marked else 1.0, "estimated"
        if (overhead := self.overhead()) is not None:
            ratio = overhead.estimated
            if overhead.how == "measured":
                ratio, how = overhead.ratio, "measured"
        paid = marked * max(0.0, ratio - 1.0) if ratio is not None else None
        return {"marked_share": marked, "paid": paid, "paid_how": how}
