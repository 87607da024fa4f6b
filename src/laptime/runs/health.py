"""What a run has lost, by its writer's own count and by the numbers of the steps that are on disk; in words.

A writer tells what the disk refused. It cannot always: on a full or read-only disk `run.json` may be an old
one. But steps are numbered, so a reader sees which are missing between those that are there.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from laptime.runs.document import Health, healths
from laptime.runs.run import Run
from laptime.runs.schema import TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Rows by table, those of all ranks."""

    lost: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)  # lost, waiting or on disk
    waiting: Mapping[str, int] = field(default_factory=dict)  # in the memory of a writer that still runs
    reason: str | None = None
    next_attempt: str | None = None
    failed_checkpoints: int = 0
    checkpoint_reason: str | None = None


def find_losses(run: Run) -> Losses:
    """What is lost of a run, and what waits for the disk while its writer runs."""
    by_rank = healths(run.path, run.health)
    running = run.status == "running"
    if not any(health.troubled for health in by_rank.values()) and (run.closed or running):
        return Losses()  # nothing was ever refused, and nothing can have been forgotten
    waiting = {
        table: sum(health.waiting_rows.get(table, 0) for health in by_rank.values()) if running else 0
        for table in TABLES
    }
    lost = {
        table: sum(_missing_rows(run, table, rank, health) for rank, health in by_rank.items())
        for table in TABLES
    }
    lost["steps"] = _missing_steps(run, by_rank)
    lost = {table: max(0, count - waiting[table]) for table, count in lost.items()}
    on_disk = {table: run.stored(table).check() for table in TABLES} | {"steps": len(run.steps)}
    troubled = next((health for health in by_rank.values() if health.reason), Health())
    return Losses(
        lost={table: count for table, count in lost.items() if count},
        taken={table: on_disk[table] + lost[table] + waiting[table] for table in TABLES},
        waiting={table: count for table, count in waiting.items() if count},
        reason=troubled.reason,
        next_attempt=troubled.next_attempt if running else None,
        failed_checkpoints=run.health.failed_checkpoints,
        checkpoint_reason=run.health.checkpoint_reason,
    )


def settled(run: Run, rank: int) -> Health:
    """A rank's health as the next attempt inherits it: what waited in a process that is gone is lost."""
    health = healths(run.path, run.health).get(rank, Health())
    lost = {table: _missing_rows(run, table, rank, health) for table in TABLES}
    return replace(
        health,
        written_rows={table: run.stored(table).rows_of(rank) for table in TABLES},
        waiting_rows={},
        lost_rows={table: count for table, count in lost.items() if count},
        problem=None,
        next_attempt=None,
    )


def _missing_rows(run: Run, table: str, rank: int, health: Health) -> int:
    """Rows that were refused, less those that the disk took after the health was written."""
    waiting = health.waiting_rows.get(table, 0)
    if waiting:
        waiting -= min(waiting, run.stored(table).rows_of(rank) - health.written_rows.get(table, 0))
    return health.lost_rows.get(table, 0) + waiting


def _missing_steps(run: Run, by_rank: Mapping[int, Health]) -> int:
    """Numbers of steps below a rank's last one, known from rows or from the writer, that no row has."""
    stages = run.tables.steps.stages.values()
    missing = 0
    for rank in {*run.tables.steps.ranks, *by_rank}:
        present = np.unique(np.concatenate([every["step"][every["rank"] == rank] for every in stages]))
        last = by_rank.get(rank, Health()).last_step
        missing += max(-1 if last is None else last, int(present.max(initial=-1))) + 1 - len(present)
    return missing


_REASONS = {
    "no space left": ("the disk is full", "the disk was full"),
    "quota": ("the disk quota is used up", "the disk quota was used up"),
    "read-only": ("the file system is read-only", "the file system was read-only"),
    "no such file": ("the run directory is gone", "the run directory was gone"),
    "permission denied": ("writing is not permitted", "writing was not permitted"),
}


def why(reason: str | None, *, over: bool) -> str:
    """The system's error in plain words: `the disk is full`, or `was full` once it is over."""
    for word, told in _REASONS.items():
        if word in (reason or "").lower():
            return told[over]
    if reason:
        return f"the disk {'said' if over else 'says'}: {reason}"
    return "they never reached the disk"


_NOUNS = {"steps": "step", "layers": "layer time", "kernels": "kernel"}


def lost_sentence(table: str, lost: int, taken: int, reason: str | None) -> str:
    """`1,487 of 2,696 steps were lost: the disk was full`."""
    noun = _NOUNS[table] + "s" * (taken != 1)
    return f"{lost:,} of {taken:,} {noun} {'was' if lost == 1 else 'were'} lost: {why(reason, over=True)}"


def waiting_sentence(table: str, waiting: int, reason: str | None, next_attempt: str | None) -> str:
    """`1,487 steps are not on disk yet: the disk is full; the next attempt is at 12:03:05 UTC`."""
    noun = _NOUNS[table] + "s" * (waiting != 1)
    told = f"{waiting:,} {noun} {'is' if waiting == 1 else 'are'} not on disk yet: {why(reason, over=False)}"
    return f"{told}; the next attempt is at {next_attempt[11:19]} UTC" if next_attempt else told


def warn(text: str) -> None:
    """A warning that raises nothing, whatever the filters say: a training must not end by what we tell."""
    try:
        warnings.warn(f"laptime: {text}", stacklevel=2)
    except Warning:
        logging.getLogger("laptime").warning("laptime: %s", text)
