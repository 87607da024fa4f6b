"""How the writing of a run goes: rows that wait for the disk, rows that were lost, checkpoints that failed.

Rank 0's health is a part of `run.json`; another rank that had trouble leaves a `health-r<rank>.json`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from laptime.files.read import read_json
from laptime.files.typed import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A writer's state at its last write. Rows are counted by table."""

    written_rows: Mapping[str, int] = field(default_factory=dict)
    waiting_rows: Mapping[str, int] = field(default_factory=dict)  # refused by the disk, still in memory
    lost_rows: Mapping[str, int] = field(default_factory=dict)  # given up
    last_step: int | None = None  # the highest number of a step that was to be written
    problem: str | None = None  # what the last writing could not do
    reason: str | None = None  # why rows could not be written, or could not last time, as the system says it
    since: str | None = None  # when rows were refused first
    next_attempt: str | None = None  # when the waiting rows are tried again
    failed_checkpoints: int = 0
    checkpoint_reason: str | None = None

    @classmethod
    def of(cls, document: Any) -> Self:
        """From JSON; whatever has another form, since others may have written there, is as if not there."""
        given = document if isinstance(document, Mapping) else {}
        return cls(**{key: _READERS[key](given[key]) for key in _READERS if given.get(key) is not None})

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def troubled(self) -> bool:
        """Whether there is anything to tell."""
        rows = (*self.waiting_rows.values(), *self.lost_rows.values())
        return any(rows) or self.problem is not None or self.failed_checkpoints > 0


def _rows(value: Any) -> dict[str, int]:
    given = value if isinstance(value, Mapping) else {}
    return {str(name): count for name, each in given.items() if (count := _count(each))}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("written_rows", "waiting_rows", "lost_rows"), _rows),
    **dict.fromkeys(("last_step", "failed_checkpoints"), _count),
    **dict.fromkeys(("problem", "reason", "since", "next_attempt", "checkpoint_reason"), _text),
}
assert set(_READERS) == {declared.name for declared in fields(Health)}


def file_name(rank: int) -> str:
    """Where a rank other than the first leaves its health."""
    return f"health-r{rank}.json"


def healths(directory: Path, first: Health) -> dict[int, Health]:
    """By rank; `first` is that of rank 0. A rank without trouble has left nothing."""
    by_rank = {0: first}
    for path in sorted(directory.glob("health-r*.json")):
        number = path.stem.removeprefix("health-r")
        try:
            by_rank[count(int(number))] = Health.of(read_json(path, inside=directory))
        except (OSError, ValueError):
            continue
    return by_rank


_REASONS = {
    "no space left": ("the disk is full", "the disk was full"),
    "quota": ("the disk quota is used up", "the disk quota was used up"),
    "read-only": ("the file system is read-only", "the file system was read-only"),
    "no such file": ("the run directory is gone", "the run directory was gone"),
    "permission denied": ("writing is not permitted", "writing was not permitted"),
}


def why(reason: str | None, *, over: bool) -> str:
    """The system's error in plain words: `the disk is full`, or `was full` once it is over."""
    said = (reason or "").lower()
    for word, told in _REASONS.items():
        if word in said:
            return told[over]
    if reason:
        return f"the disk {'said' if over else 'says'}: {reason}"
    return "they never reached the disk"


_NOUNS = {
    "steps": ("step", "steps"),
    "layers": ("layer time", "layer times"),
    "kernels": ("kernel", "kernels"),
}


def lost_sentence(table: str, lost: int, taken: int, reason: str | None) -> str:
    """`1,487 of 2,696 steps were lost: the disk was full`."""
    noun = _NOUNS[table][taken != 1]
    return f"{lost:,} of {taken:,} {noun} {'was' if lost == 1 else 'were'} lost: {why(reason, over=True)}"


def waiting_sentence(table: str, waiting: int, reason: str | None, next_attempt: str | None) -> str:
    """`1,487 steps are not on disk yet: the disk is full; the next attempt is at 12:03:05 UTC`."""
    noun = _NOUNS[table][waiting != 1]
    told = f"{waiting:,} {noun} {'is' if waiting == 1 else 'are'} not on disk yet: {why(reason, over=False)}"
    return f"{told}; the next attempt is at {next_attempt[11:19]} UTC" if next_attempt else told


def warn(text: str) -> None:
    """A warning that raises nothing, whatever the filters say: a training must not end by what we tell."""
    try:
        warnings.warn(f"laptime: {text}", stacklevel=2)
    except Warning:
        logging.getLogger("laptime").warning("laptime: %s", text)
