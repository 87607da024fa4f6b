"""Which runs are repetitions of one configuration, which two are A and B, and what each is called.

`compare`, `report` and the dashboard all group by this rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from laptime.runs import Run

_REPETITION = re.compile(r"rep-\d+")  # as `laptime train --repeat` names its folders
_NUMBERED = re.compile(
    r"(?:[\w.]*seed=)?\d+"
)  # a run's own folder, where others numbered it or swept the seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Repetitions of one configuration, or one run by itself."""

    name: str
    runs: tuple[Run, ...]
    names: tuple[str, ...]  # of its runs


def groups_of(given: Sequence[Sequence[Run]], names: Sequence[str] | None = None) -> list[Group]:
    """Repetitions together, in the order given: runs of one configuration, seed apart, in one place.

    given  the runs of each path that was named, or one list of runs that were picked one by one
    names  of all runs; by default what differs in their paths
    """
    runs = [run for path in given for run in path]
    called = distinct_names(names if names is not None else differing_ends([run.path for run in runs]))
    places = [place for place, path in enumerate(given) for _ in path]
    members: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        shared = len(given) > 1 and len(given[places[index]]) > 1
        members.setdefault(_group_key(run, index, places[index] if shared else None), []).append(index)
    return [
        Group(
            name=_group_name([called[index] for index in group], runs[group[0]].path),
            runs=tuple(runs[index] for index in group),
            names=tuple(called[index] for index in group),
        )
        for group in members.values()
    ]


def are_repetitions(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Whether both sides are repetitions of one configuration, so that any difference is noise."""
    keys = {_group_key(run, index, None) for index, run in enumerate([*a, *b])}
    return len(keys) == 1


def _group_key(run: Run, index: int, place: int | None) -> str:
    """Equal for repetitions of one configuration. `place` numbers the folder given, if several were given."""
    path = PurePath(run.path.resolve())
    parts: list[str] = [part for part in path.parts if not _REPETITION.fullmatch(part)]
    if len(parts) == len(path.parts):
        if _NUMBERED.fullmatch(path.name):
            parts = parts[:-1]
        else:
            parts = [str(index if place is None else f"in {place}")]
    return json.dumps([parts, configuration(run)])


def configuration(run: Run) -> str:
    """A run's configuration without its seed."""
    train = run.config.get("train")
    rest = {key: value for key, value in run.config.items() if key not in ("train", "seed")}
    if isinstance(train, Mapping):
        rest["train"] = {key: value for key, value in train.items() if key != "seed"}
    return json.dumps(rest, sort_keys=True, default=str)


def _group_name(names: Sequence[str], path: Path) -> str:
    if len(names) == 1:
        return names[0]
    parts = [part for part in PurePath(names[0]).parts if not _REPETITION.fullmatch(part)]
    if len(parts) == len(PurePath(names[0]).parts):
        parts = parts[:-1]
    return "/".join(parts) or path.resolve().parent.name


def differing_ends(paths: Sequence[Path]) -> list[str]:
    """Paths without the folders that all of them share."""
    parts = [PurePath(path).parts or (str(path),) for path in paths]
    shared = 0
    while all(len(part) > shared + 1 for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return ["/".join(part[shared:]) for part in parts]


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names, those that are the same numbered: a run beside itself, or beside its copy."""
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return numbered
