"""What a rank has of a run on disk: where it goes on when it is started again by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from laptime.model import Stage
from laptime.runs import load
from laptime.runs.parts import live


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOnDisk:
    """The steps of one rank that reached the disk."""

    trained: tuple[int, ...]  # the numbers of its training steps
    updates: tuple[int, ...]  # optimizer updates by the end of each
    following: int  # the number after its last step, validation included
    elapsed_s: float  # on the clock of its steps, until now

    @classmethod
    def of(cls, out: Path, rank: int) -> Self:
        """Read from the table of steps; of one taken again, the last attempt."""
        stored = load(out).stored("steps")
        table = stored.read(["rank", "stage", "step", "optimizer_step", "start_s", "wall_s"])
        rows = [row for row in table.to_pylist() if row["rank"] == rank]
        trained = sorted((row["step"], row["optimizer_step"]) for row in rows if row["stage"] == Stage.TRAIN)
        end_s = max((row["start_s"] + row["wall_s"] for row in rows), default=0.0)
        # The clock of the steps stood still since they were written.
        written = [part.path.stat().st_mtime for part in live(stored.directory) if part.rank == rank]
        return cls(
            trained=tuple(step for step, _ in trained),
            updates=tuple(updates for _, updates in trained),
            following=max((row["step"] for row in rows), default=-1) + 1,
            elapsed_s=end_s + (max(0.0, time.time() - max(written)) if written else 0.0),
        )

    def number_of(self, step: int) -> int:
        """The number of the training step that comes after so many."""
        return self.trained[step] if step < len(self.trained) else self.following

    def updates_by(self, step: int) -> int:
        """Optimizer updates in so many training steps."""
        return self.updates[step - 1] if step else 0
