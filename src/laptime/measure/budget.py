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
    """Draws the steps to instrument and reviews the share against measured cost."""

    def __init__(self, budget: float, *, every_step: bool = False, seed: int = 0) -> None:
        self.budget = budget
        self.every_step = every_step
        self.share = 1.0 if every_step else 0.5
        self._random = random.Random(seed)
        self._walls: dict[bool, deque[float]] = {True: deque(maxlen=WINDOW), False: deque(maxlen=WINDOW)}
        self._seen = 0
        self._expected: float | None = None

    def draw(self) -> bool:
        """Whether the next step carries layer marks."""
        return self.every_step or self._random.random() < self.share

    def expect(self, cost_s: float) -> None:
        """Seconds that the marks of one step should cost by a count, before there is anything to compare."""
        self._expected = cost_s

    def observe(self, wall_s: float, *, instrumented: bool) -> None:
        """Take in a finished training step."""
        self._walls[instrumented].append(wall_s)
        self._seen += 1
        if not self.every_step and (self._seen % REVIEW_EVERY == 0 or self._seen <= 2):
            self._review()

    def _review(self) -> None:
        with_marks, bare = (np.array(self._walls[key]) for key in (True, False))
        if not with_marks.size and not bare.size:
            return
        typical = float(np.median(bare if bare.size else with_marks))
        cost = (self._expected or 0.0) / typical if typical else 0.0
        if min(with_marks.size, bare.size) >= FEWEST:
            difference = float(np.median(with_marks) - np.median(bare))
            cost = max(cost, (difference + _standard_error(with_marks, bare)) / typical)
        wanted = self.budget / cost if cost > 0 else LARGEST_SHARE
        self.share = min(LARGEST_SHARE, max(SMALLEST_SHARE, wanted))

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
        if marks and self._expected is not None:
            ratio = 1.0 + self._expected / float(np.median(marks))
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
