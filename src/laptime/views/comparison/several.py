"""Several runs beside a baseline, which is the first: what a page of them shows.

`compare`, `report` and the dashboard group repetitions of one configuration by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from laptime.model import LOSS_LAYER, OTHER_LAYER, Stage
from laptime.model.comparison import Comparison, compare_runs
from laptime.runs import Run
from laptime.views.comparison.sides import (
    FEW_SHARED,
    REPETITION,
    ComparisonView,
    StageComparison,
    compare_sides,
    repetition_key,
)
from laptime.views.comparison.targets import TargetComparison, compare_targets
from laptime.views.format import distinct
from laptime.views.run_view import RunView, run_view

MOST_RUNS = 20


def groups_of(
    given: Sequence[Sequence[Run]], names: Sequence[str] | None = None
) -> list[list[tuple[str, Run]]]:
    """Repetitions together, in the order given: runs of one configuration, seed apart, in one place.

    given  the runs of each path that was named, or one list of runs that were picked one by one
    names  of all runs; by default what differs in their paths
    """
    paths = [run.path for runs in given for run in runs]
    called = iter(distinct(names if names is not None else differing_ends(paths)))
    groups: dict[str, list[tuple[str, Run]]] = {}
    for place, runs in enumerate(given):
        # The runs of a folder belong together where several folders were given.
        shared = len(given) > 1 and len(runs) > 1
        for index, run in enumerate(runs):
            key = repetition_key(run, f"in {place}" if shared else f"{place}, {index}")
            groups.setdefault(key, []).append((next(called), run))
    return list(groups.values())


def _group_name(group: Sequence[tuple[str, Run]]) -> str:
    name, run = group[0]
    if len(group) == 1:
        return name
    every = PurePath(name).parts
    parts = [part for part in every if not REPETITION.fullmatch(part)]
    return "/".join(every[:-1] if len(parts) == len(every) else parts) or run.path.resolve().parent.name


def differing_ends(paths: Sequence[Path]) -> list[str]:
    """Paths without the folders that all of them share."""
    parts = [PurePath(path).parts or (str(path),) for path in paths]
    shared = 0
    while all(len(part) > shared + 1 for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return ["/".join(part[shared:]) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedGroup:
    """Repetitions, or a run by itself, and their steps against those of the first group; None of itself."""

    name: str
    runs: tuple[RunView, ...]
    step: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralRuns:
    """Runs side by side. Where there are two groups or two runs, they are also compared as A and B."""

    stage: Stage
    groups: tuple[ComparedGroup, ...]
    sides: tuple[ComparedGroup, ...]  # A and B, where there are two
    compared: ComparisonView | None
    target: TargetComparison | None  # the time to it, where all runs have the same
    left_out: int  # runs beyond the first twenty

    @property
    def runs(self) -> list[RunView]:
        """All of them, group by group."""
        return [run for group in self.groups for run in group.runs]

    @property
    def part(self) -> StageComparison | None:
        """A and B in the stage that is shown."""
        return self.compared.stages.get(self.stage) if self.compared else None

    @property
    def few_shared(self) -> tuple[int, int] | None:
        """How many layers two runs or more have, and of how many, where too few are shared to draw them."""
        modules = [set(run.layer_s(self.stage)) - {LOSS_LAYER, OTHER_LAYER} for run in self.runs]
        every = set().union(*modules)
        shared = {name for name in every if sum(name in mine for mine in modules) > 1}
        few = sum(map(bool, modules)) > 1 and len(shared) < FEW_SHARED * len(every)
        return (len(shared), len(every)) if few else None

    @property
    def repeated(self) -> bool:
        """Whether a group has several runs: then groups are compared, and single runs are not."""
        return any(len(group.runs) > 1 for group in self.groups)


def side_by_side(given: Sequence[Sequence[Run]], names: Sequence[str] | None = None) -> SeveralRuns:
    """Compare the runs of each path that was named, or of one list of runs that were picked one by one."""
    groups = groups_of(given, names)
    room = MOST_RUNS
    read: list[list[RunView]] = []
    for group in groups:
        read.append([run_view(run, name) for name, run in group[:room]])
        room -= len(read[-1])
    every = [run for runs in read for run in runs]
    stage = max(Stage, key=lambda stage: sum(stage in run.stages for run in every))
    walls = [[run.wall_s(stage) for run in runs] for runs in read]
    made = [
        ComparedGroup(
            name=_group_name(group),
            runs=tuple(runs),
            step=compare_runs(walls[0], walls[place]) if place else None,
        )
        for place, (group, runs) in enumerate(zip(groups, read, strict=True))
        if runs
    ]
    sides = made  # two groups, or the two runs of one group
    if len(made) == 1:
        sides = [ComparedGroup(name=run.name, runs=(run,), step=None) for run in made[0].runs]
    sides = sides if len(sides) == 2 else []
    return SeveralRuns(
        stage=stage,
        groups=tuple(made),
        sides=tuple(sides),
        compared=compare_sides(sides[0].runs, sides[1].runs) if sides else None,
        target=compare_targets([(group.name, group.runs) for group in made]) if made else None,
        left_out=sum(map(len, groups)) - len(every),
    )
