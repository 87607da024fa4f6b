"""Simulates the launch queue: the host launches operations one by one, the device executes them in order.

Either side can be the slower one in parts of a step, so the maximum of both totals is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from laptime.model.constants import Source

STEPS: Annotated[int, Source("Steps played until the queue no longer changes from one to the next.")] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A simulated steady-state step, in seconds."""

    spans: NDArray[np.float64]  # what each operation adds to the step: its own time, and the wait before it
    busy_s: float  # of the device
    host_s: float

    @property
    def step_s(self) -> float:
        """From the end of one step to the end of the next."""
        return float(self.spans.sum())


def play(device_us: Sequence[float], host_us: Sequence[float]) -> Played:
    """Simulate repeated steps: the host starts the next step while the device is still busy."""
    once = np.asarray(device_us, float)
    if not len(once):
        return Played(spans=once, busy_s=0.0, host_s=0.0)
    device = np.tile(once, STEPS)
    handed = np.cumsum(np.tile(np.asarray(host_us, float), STEPS))
    # end[i] = max(end[i-1], handed[i]) + device[i], unrolled into a running maximum.
    before = np.concatenate([[0.0], np.cumsum(device)])
    ends = before[1:] + np.maximum.accumulate(handed - before[:-1])
    return Played(
        spans=np.diff(ends)[-len(once) :] * 1e-6,
        busy_s=float(once.sum()) * 1e-6,
        host_s=float(np.sum(host_us)) * 1e-6,
    )
