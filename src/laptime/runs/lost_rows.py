"""What a run has lost, by its writer's own count and by the numbers of the steps that are on disk.

A writer tells what the disk refused. It cannot always: on a full or read-only disk `run.json` may be an old
one. But steps are numbered, so a reader sees which are missing between those that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from laptime.runs.health import Health, healths
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
    if not any(health.troubled for health in by_rank.values()) and (run.closed or run.status == "running"):
        return Losses()  # nothing was ever refused, and nothing can have been forgotten
    running = run.status == "running"
    waiting = _summed([health.waiting_rows for health in by_rank.values()]) if running else {}
    missing = _missing_steps(run, by_rank)
    lost = {"steps": max(0, sum(missing.values()) - waiting.get("steps", 0))}
    for table in ("layers", "kernels"):
        lost[table] = sum(_missing_rows(run, table, rank, health) for rank, health in by_rank.items())
        lost[table] = max(0, lost[table] - waiting.get(table, 0))
    on_disk = {table: run.stored(table).check() for table in TABLES}
    on_disk["steps"] = len(run.steps)
    troubled = [health for health in by_rank.values() if health.reason]
    return Losses(
        lost={table: count for table, count in lost.items() if count},
        taken={table: on_disk[table] + lost[table] + waiting.get(table, 0) for table in TABLES},
        waiting={table: count for table, count in waiting.items() if count},
        reason=troubled[0].reason if troubled else None,
        next_attempt=troubled[0].next_attempt if troubled and running else None,
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


def _missing_steps(run: Run, by_rank: Mapping[int, Health]) -> dict[int, int]:
    """By rank: numbers below the last one, known from rows or from the writer, that no row has."""
    stages = run.tables.steps.stages.values()
    missing = {}
    for rank in {*run.tables.steps.ranks, *by_rank}:
        present = np.unique(np.concatenate([every["step"][every["rank"] == rank] for every in stages]))
        last = by_rank.get(rank, Health()).last_step
        numbers = max(-1 if last is None else last, int(present.max(initial=-1))) + 1
        missing[rank] = numbers - len(present)
    return missing


def _summed(counts: list[Mapping[str, int]]) -> dict[str, int]:
    return {table: sum(by_table.get(table, 0) for by_table in counts) for table in TABLES}
