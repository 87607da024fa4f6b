"""The time to a target: how long a training took until a validation reached what it was trained for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from laptime.files.parse import build


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTime:
    """A training's target, and whether and when a validation reached it."""

    metric: str  # loss, or top1
    value: float
    reached: bool
    seconds: float  # of training and validation since the first step, also where it was not reached
    step: int  # training steps of rank 0 by then
    epoch: int  # epochs that were begun by then

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Self | None:
        """From a run's summary; None of a training without a target, or where it cannot be read."""
        with suppress(ValueError):
            return build(cls, summary.get("target"))
        return None

    @property
    def goal(self) -> tuple[str, float]:
        """What runs must share to be compared by it."""
        return self.metric, self.value

    def document(self) -> dict[str, Any]:
        """As `run.json` and `--json` have it."""
        return asdict(self)
