"""Which steps get layer marks: a random share, sized so that the recorder stays within its overhead budget.

The cost is checked while it runs, from instrumented steps interleaved with bare ones. Steps are drawn at
random, not every n-th: a period would lock onto gradient accumulation or logging and compare unlike steps.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

import numpy as np

from laptime.record import ratio_interval

LARGEST_SHARE = 0.9  # some steps stay bare, or there would be nothing to compare with
SMALLEST_SHARE = 0.01
FIRST_SHARE = 0.25  # until the marks of a first step have been counted
WINDOW = 512
REVIEW_EVERY = 16
FEWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What layer marks cost: the ratio of instrumented to bare step time, and how it is known."""

    ratio: float
    low: float
    high: float
    how: str
    instrumented_steps: int
    bare_steps: int


class Budget:
    """Draws the steps to instrument and reviews the share against what marks were found to cost."""

    def __init__(
        self, budget: float, *, every_step: bool = False, never: bool = False, seed: int = 0
    ) -> None:
        self.budget = budget
        self.every_step = every_step and not never
        self.never = never
        self.share = 0.0 if never else 1.0 if every_step else FIRST_SHARE
        self.mark_s = 0.0  # host seconds per mark; counts until there is enough to compare
        self._random = random.Random(seed)
        self._walls: dict[bool, deque[float]] = {True: deque(maxlen=WINDOW), False: deque(maxlen=WINDOW)}
        self._marks = {True: 0, False: 0}
        self._seen = 0

    def draw(self) -> bool:
        """Whether the next step carries layer marks."""
        return self.every_step or (not self.never and self._random.random() < self.share)

    def observe(self, wall_s: float, *, instrumented: bool, marks: int = 0) -> None:
        """Take in a finished training step."""
        self._walls[instrumented].append(wall_s)
        self._marks[instrumented] = marks
        self._seen += 1
        if not self.every_step and not self.never and (self._seen % REVIEW_EVERY == 0 or self._seen <= 2):
            self._review()

    def _review(self) -> None:
        """Spend on layers what the accounts, kept on every step, leave of the budget."""
        with_marks, bare = (np.array(self._walls[key]) for key in (True, False))
        typical = float(np.median(bare if bare.size else with_marks))
        if typical <= 0:
            return
        layers = self._counted(instrumented=True) / typical
        accounts = self._counted(instrumented=False) / typical
        if min(with_marks.size, bare.size) >= FEWEST:
            difference = float(np.median(with_marks) - np.median(bare)) + _standard_error(with_marks, bare)
            measured = max(0.0, difference / typical)
            # Where the device is the bottleneck marks are nearly free, and those of the accounts equally so.
            accounts *= min(1.0, measured / layers) if layers else 1.0
            layers = measured
        left = self.budget - accounts
        wanted = left / layers if layers > 0 else LARGEST_SHARE
        self.share = min(LARGEST_SHARE, max(SMALLEST_SHARE, wanted))

    def _counted(self, *, instrumented: bool) -> float:
        """Host seconds of a step's marks by their number: of the layers alone, or of the accounts."""
        accounts = self._marks[False] or 10
        return self.mark_s * (max(0, self._marks[True] - accounts) if instrumented else accounts)

    def recent(self, *, instrumented: bool) -> list[float]:
        """The latest wall times of one kind of step."""
        return list(self._walls[instrumented])

    def forget(self) -> None:
        """Start comparing afresh."""
        for walls in self._walls.values():
            walls.clear()

    def overhead(self) -> Overhead | None:
        """The measured cost of layer marks; counted rather than measured when no step was bare."""
        marks, bare = self.recent(instrumented=True), self.recent(instrumented=False)
        if len(marks) >= FEWEST and len(bare) >= FEWEST:
            ratio, low, high = ratio_interval(marks, bare)
            return Overhead(
                ratio=ratio,
                low=low,
                high=high,
                how="measured",
                instrumented_steps=len(marks),
                bare_steps=len(bare),
            )
        if marks and self.mark_s:
            ratio = 1.0 + self.mark_s * self._marks[True] / float(np.median(marks))
            return Overhead(
                ratio=ratio,
                low=ratio,
                high=ratio,
                how="estimated",
                instrumented_steps=len(marks),
                bare_steps=len(bare),
            )
        return None


def _standard_error(a: np.ndarray, b: np.ndarray) -> float:
    """Standard error of a difference of medians, from quartiles (1.57 · IQR / 1.349 / √n per sample)."""

    def variance(sample: np.ndarray) -> float:
        q1, q3 = np.quantile(sample, (0.25, 0.75))
        return float((1.2533 * (q3 - q1) / 1.349) ** 2 / sample.size)

    return math.sqrt(variance(a) + variance(b))
