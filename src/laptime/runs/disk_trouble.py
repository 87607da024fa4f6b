"""A writer's record of failed writes: since when, why, and when to try again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from laptime.runs.health import Health
from laptime.runs.heartbeat import timestamp

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 30.0  # each attempt encodes all waiting rows, up to a second of a core that trains


class DiskTrouble:
    """The state of one writer's disk."""

    def __init__(self) -> None:
        self.rows: str | None = None  # what happened to rows at the last attempt
        self.reason: str | None = None
        self.told = False
        self.failed_checkpoints = 0
        self.checkpoint_reason: str | None = None
        self._since: str | None = None
        self._retry_s = FIRST_RETRY_S
        self._next_s: float | None = None  # on the monotonic clock

    @property
    def attempt_due(self) -> bool:
        """Whether rows should be written now: always, but right after they were refused."""
        return self._next_s is None or time.monotonic() >= self._next_s

    def refuse(self, reason: str) -> None:
        """The disk took no rows."""
        self.reason = reason
        self._since = self._since or timestamp()

    def plan_attempt(self, waiting: bool) -> None:
        """After an attempt: when to make the next, twice as far away each time."""
        if not waiting:
            self._next_s, self._retry_s = None, FIRST_RETRY_S
            return
        self._next_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def health(
        self,
        *,
        written_rows: Mapping[str, int],
        waiting_rows: Mapping[str, int],
        lost_rows: Mapping[str, int],
        last_step: int | None,
        problem: str | None,
        before: Health,
    ) -> Health:
        """All of it as a value; `before` is that of earlier attempts."""
        return Health(
            written_rows=written_rows,
            waiting_rows=waiting_rows,
            lost_rows=lost_rows,
            last_step=last_step,
            problem=problem,
            reason=self.reason or before.reason,
            since=self._since or before.since,
            next_attempt=self._next_attempt(),
            failed_checkpoints=before.failed_checkpoints + self.failed_checkpoints,
            checkpoint_reason=self.checkpoint_reason or before.checkpoint_reason,
        )

    def _next_attempt(self) -> str | None:
        if self._next_s is None:
            return None
        when = datetime.now(UTC) + timedelta(seconds=self._next_s - time.monotonic())
        return when.isoformat(timespec="milliseconds")
