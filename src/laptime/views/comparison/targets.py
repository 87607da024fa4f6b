"""The time to a target that all compared runs have: of each group, with an interval over its repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from laptime.model.comparison import Comparison, compare_runs, geometric_mean, mean_interval
from laptime.views.run_view import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGroup:
    """Repetitions of one training: how many reached the target, and after which time."""

    name: str
    runs: int
    seconds: tuple[float, ...]  # of those that reached it
    spent_s: float  # the longest training that did not; NaN where all did
    against_first: Comparison | None  # its time over the first group's; None where a run did not reach it

    @property
    def mean_s(self) -> float:
        """The geometric mean of the runs that reached it; NaN where none did."""
        return geometric_mean(self.seconds)

    @property
    def interval_s(self) -> tuple[float, float]:
        """Of the mean, at 95 %, over repetitions; NaN of a single run."""
        return mean_interval(self.seconds)

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        low, high = self.interval_s
        row = {"name": self.name, "runs": self.runs, "reached": len(self.seconds), "seconds": self.seconds}
        row |= {"mean_s": self.mean_s, "low_s": low, "high_s": high}
        return row | {"against_first": self.against_first and self.against_first.document()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComparison:
    """Groups of runs with one target; the first is the baseline."""

    metric: str
    value: float
    groups: tuple[TargetGroup, ...]

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        groups = [group.document() for group in self.groups]
        return {"metric": self.metric, "value": self.value, "groups": groups}


def compare_targets(groups: Sequence[tuple[str, Sequence[RunView]]]) -> TargetComparison | None:
    """The time to the target of each group, by name; None unless all runs have the same target."""
    goals = {run.target.goal if run.target else None for _, runs in groups for run in runs}
    if len(goals) != 1 or (goal := goals.pop()) is None:
        return None
    first = _times(groups[0][1], reached=True)
    made = []
    for place, (name, runs) in enumerate(groups):
        seconds, spent = _times(runs, reached=True), _times(runs, reached=False)
        all_did = not spent and len(first) == len(groups[0][1])
        compared = None
        if place and all_did:
            compared = compare_runs(*([np.array([each]) for each in side] for side in (first, seconds)))
        group = TargetGroup(
            name=name,
            runs=len(runs),
            seconds=tuple(seconds),
            spent_s=max(spent, default=math.nan),
            against_first=compared,
        )
        made.append(group)
    return TargetComparison(metric=goal[0], value=goal[1], groups=tuple(made))


def _times(runs: Sequence[RunView], *, reached: bool) -> list[float]:
    return [run.target.seconds for run in runs if run.target and run.target.reached is reached]
