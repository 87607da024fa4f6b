"""How the writing of a run went, in numbers and in sentences that every view puts first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from laptime.runs import Run
from laptime.runs.health import lost_sentence, waiting_sentence, why
from laptime.runs.lost_rows import Losses, find_losses
from laptime.views.format import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """Rows lost and waiting by table, failed checkpoints, who writes the run, and `told`: the sentences."""

    told: tuple[str, ...]
    lost_rows: Mapping[str, int]
    waiting_rows: Mapping[str, int]
    taken_rows: Mapping[str, int]
    reason: str | None
    since: str | None
    next_attempt: str | None
    failed_checkpoints: int
    owner: Mapping[str, Any]


def health(run: Run) -> HealthView:
    """How the writing went."""
    losses = find_losses(run)
    return HealthView(
        told=tuple(_told(losses, over=run.status != "running")),
        lost_rows=losses.lost,
        waiting_rows=losses.waiting,
        taken_rows=losses.taken,
        reason=losses.reason,
        since=run.health.since,
        next_attempt=losses.next_attempt,
        failed_checkpoints=losses.failed_checkpoints,
        owner={key: run.heartbeat.get(key) for key in ("pid", "host", "time")},
    )


def _told(losses: Losses, *, over: bool) -> Iterator[str]:
    # The layer times of a step that is lost go with it: only where every step is there, they are told.
    table = next((table for table, count in losses.lost.items() if count), None)
    if table is not None:
        yield lost_sentence(table, losses.lost[table], losses.taken[table], losses.reason) + "."
    table = next((table for table, count in losses.waiting.items() if count), None)
    if table is not None:
        yield waiting_sentence(table, losses.waiting[table], losses.reason, losses.next_attempt) + "."
    if losses.failed_checkpoints:
        failed = plural(losses.failed_checkpoints, "checkpoint")
        yield f"{failed} could not be written: {why(losses.checkpoint_reason, over=over)}."
