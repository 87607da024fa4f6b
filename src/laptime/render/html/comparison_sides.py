"""Which runs a page compares: what each is called, which are repetitions, and which two are A and B."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from laptime.model import Stage
from laptime.render.html.comparison_tables import Group
from laptime.runs import Run
from laptime.views.figures.comparison import Compared
from laptime.views.run_document import content
from laptime.views.step_bins import digest
from laptime.views.step_series import series

_REPETITION = re.compile(r"rep-\d+")


def tails(paths: Sequence[Path]) -> list[str]:
    """Paths without the folders that all of them share."""
    parts = [PurePath(path).parts or (str(path),) for path in paths]
    shared = 0
    while all(len(one) > shared + 1 for one in parts) and len({one[shared] for one in parts}) == 1:
        shared += 1
    return ["/".join(one[shared:]) for one in parts]


def unlike(names: Sequence[str]) -> list[str]:
    """The names, those that are the same numbered: a run beside itself, or beside its copy."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def common_stage(runs: Sequence[Run]) -> Stage:
    """The stage that most runs have steps of; training, where that leaves a choice."""
    counts = {
        stage: sum(series(run, stage, layers=False) is not None for run in runs)
        for stage in (Stage.TRAIN, Stage.VALIDATION)
    }
    return max(counts, key=lambda stage: counts[stage])


def compared(run: Run, name: str, stage: Stage) -> Compared:
    """A run with all that is drawn of it."""
    timed = series(run, stage, layers=False)
    return Compared(name=name, found=content(run), seen=digest(run), timed=timed)


def groups_of(runs: Sequence[Run], shown: Sequence[Compared]) -> list[Group]:
    """Repetitions together: runs of `--repeat` in folders rep-1, rep-2, … that differ in their seed alone."""
    found: dict[str, list[Compared]] = {}
    titles: dict[str, str] = {}
    for run, one in zip(runs, shown, strict=True):
        parts = PurePath(run.path.resolve()).parts
        repeated = any(_REPETITION.fullmatch(part) for part in parts)
        key = json.dumps([[part for part in parts if not _REPETITION.fullmatch(part)], _without_seed(run)])
        key = key if repeated else f"{run.path} {id(one)}"
        found.setdefault(key, []).append(one)
        kept = [part for part in PurePath(one.name).parts if not _REPETITION.fullmatch(part)]
        titles.setdefault(key, "/".join(kept) or parts[-2])
    return [
        Group(name=titles[key] if len(mine) > 1 else mine[0].name, runs=mine) for key, mine in found.items()
    ]


def _without_seed(run: Run) -> str:
    train = run.config.get("train")
    rest = {key: value for key, value in run.config.items() if key != "train"}
    if isinstance(train, Mapping):
        rest["train"] = {key: value for key, value in train.items() if key != "seed"}
    return json.dumps(rest, sort_keys=True, default=str)


def sides_of(shown: Sequence[Compared], groups: Sequence[Group]) -> list[Group]:
    """A and B, where there are two: two groups, or two runs."""
    if len(groups) == 2:
        return list(groups)
    return [Group(name=one.name, runs=[one]) for one in shown] if len(shown) == 2 else []
