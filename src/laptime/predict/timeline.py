"""A host hands operations over one by one, a device works them off: which of the two is waited for, and when.

A step is as long as its slower side only if that side is slower throughout. So the queue is played through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Seconds: when the device ended each operation, counted from the start of the step."""

    ends: NDArray[np.float64]
    busy_s: float
    host_s: float

    @property
    def step_s(self) -> float:
        """Of a steady state, where one step follows the other: the longer of device and host."""
        return float(max(self.ends[-1] if len(self.ends) else 0.0, self.host_s))

    def spans(self) -> NDArray[np.float64]:
        """What each operation adds to the step: its time, and the wait before it."""
        return np.diff(self.ends, prepend=0.0)


def play(device_us: Sequence[float], host_us: Sequence[float], *, ahead_us: float = 0.0) -> Played:
    """The queue of a step. The host may be `ahead_us` into the step when the device begins with it."""
    device = np.asarray(device_us, float)
    handed = np.cumsum(np.asarray(host_us, float)) - ahead_us
    # end[i] = max(end[i-1], handed[i]) + device[i], unrolled: the latest of all earlier hand-overs counts.
    before = np.concatenate([[0.0], np.cumsum(device)])
    waited = np.maximum.accumulate(np.maximum(handed - before[:-1], 0.0)) if len(device) else device
    ends = before[1:] + waited
    return Played(ends=ends * 1e-6, busy_s=float(device.sum()) * 1e-6, host_s=float(np.sum(host_us)) * 1e-6)
