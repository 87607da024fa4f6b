"""Several runs beside a baseline, which is the first: what a page of them shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laptime.model import Stage
from laptime.model.comparison import Comparison, compare_runs
from laptime.runs import Run
from laptime.views.comparison.groups import groups_of
from laptime.views.comparison.sides import ComparedRun, ComparisonView, compare_sides

MOST_RUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedGroup:
    """Repetitions, or a run by itself, and their steps against those of the first group; None of itself."""

    name: str
    runs: tuple[ComparedRun, ...]
    step: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralRuns:
    """Runs side by side. Where there are two groups or two runs, they are also compared as A and B."""

    stage: Stage
    groups: tuple[ComparedGroup, ...]
    sides: tuple[ComparedGroup, ...]  # A and B, where there are two
    compared: ComparisonView | None
    left_out: int  # runs beyond the first twenty

    @property
    def runs(self) -> list[ComparedRun]:
        """All of them, group by group."""
        return [run for group in self.groups for run in group.runs]

    @property
    def repeated(self) -> bool:
        """Whether a group has several runs: then groups are compared, and single runs are not."""
        return any(len(group.runs) > 1 for group in self.groups)


def side_by_side(given: Sequence[Sequence[Run]], names: Sequence[str] | None = None) -> SeveralRuns:
    """Compare the runs of each path that was named, or of one list of runs that were picked one by one."""
    groups = groups_of(given, names)
    left_out = max(0, sum(len(group.runs) for group in groups) - MOST_RUNS)
    room = MOST_RUNS
    read: list[list[ComparedRun]] = []
    for group in groups:
        pairs = list(zip(group.runs, group.names, strict=True))[:room]
        room -= len(pairs)
        if pairs:
            read.append([ComparedRun.of(run, name) for run, name in pairs])
    every = [run for runs in read for run in runs]
    stage = max((Stage.TRAIN, Stage.VALIDATION), key=lambda stage: sum(stage in run.series for run in every))
    walls = [[run.wall_s(stage) for run in runs] for runs in read]
    made = [
        ComparedGroup(
            name=group.name, runs=tuple(runs), step=compare_runs(walls[0], walls[place]) if place else None
        )
        for place, (group, runs) in enumerate(zip(groups, read, strict=False))
    ]
    sides = _two_sides(made)
    return SeveralRuns(
        stage=stage,
        groups=tuple(made),
        sides=sides,
        compared=compare_sides(sides[0].runs, sides[1].runs) if sides else None,
        left_out=left_out,
    )


def _two_sides(groups: Sequence[ComparedGroup]) -> tuple[ComparedGroup, ...]:
    """A and B: two groups, or the two runs of one group."""
    if len(groups) == 2:
        return tuple(groups)
    runs = groups[0].runs if len(groups) == 1 else ()
    sides = tuple(ComparedGroup(name=run.name, runs=(run,), step=None) for run in runs)
    return sides if len(sides) == 2 else ()
