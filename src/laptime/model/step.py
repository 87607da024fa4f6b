"""One step, its books closed: the accounts add up to the wall time or the step cannot be built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from laptime.errors import UnbalancedStep
from laptime.model.accounts import ACCOUNTS, Account, Stage

# Sums of a few hundred float64 intervals stay within this of the wall time; anything more is a wrong book.
TOLERANCE_S = 1e-7
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch, from the end of the previous step to its own end.

    `idle_s` is None on steps without a kernel trace: unknown is not zero.
    """

    stage: Stage = Stage.TRAIN
    attempt: int = 0
    step: int
    optimizer_step: int = 0
    epoch: int = 0
    rank: int = 0
    device: str = "cpu"
    start_s: float
    wall_s: float
    data_wait_s: float = 0.0
    copy_s: float = 0.0
    forward_s: float = 0.0
    loss_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    communication_s: float = 0.0
    idle_s: float | None = None
    host_s: float = 0.0
    instrument_s: float = 0.0
    unexplained_s: float = 0.0
    samples: int | None = None
    loss: float | None = None
    top1: float | None = None
    topn: float | None = None
    instrumented: bool = False

    def __post_init__(self) -> None:
        seconds = self.accounts()
        bad = [name for name, value in seconds.items() if value is not None and not math.isfinite(value)]
        if bad or not math.isfinite(self.wall_s):
            raise UnbalancedStep(f"step {self.step}: {', '.join(bad) or 'wall_s'} is not a finite number")
        tolerance = TOLERANCE_S + RELATIVE_TOLERANCE * abs(self.wall_s)
        negative = [name for name, value in seconds.items() if value is not None and value < -tolerance]
        if negative or self.wall_s < 0:
            raise UnbalancedStep(f"step {self.step}: {', '.join(negative) or 'wall_s'} is negative")
        total = sum(value for value in seconds.values() if value is not None)
        if abs(total - self.wall_s) > tolerance:
            raise UnbalancedStep(
                f"step {self.step}: the accounts add up to {total:.9f} s, the wall is {self.wall_s:.9f} s"
            )

    def accounts(self) -> dict[Account, float | None]:
        """Seconds by account, in the order of the books."""
        return {account: getattr(self, account.column) for account in ACCOUNTS}

    @classmethod
    def closed(
        cls,
        *,
        step: int,
        start_s: float,
        wall_s: float,
        seconds: Mapping[Account, float],
        **fields: object,
    ) -> Step:
        """A step whose left-over time is published as `unexplained`, the only account computed that way."""
        columns: dict[str, object] = {account.column: seconds[account] for account in seconds}
        columns["unexplained_s"] = wall_s - sum(seconds.values())
        return cls(step=step, start_s=start_s, wall_s=wall_s, **columns, **fields)  # type: ignore[arg-type]
