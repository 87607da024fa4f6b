"""Whether a kernel trace left a slowdown behind: untraced steps before the first and after the last."""

from __future__ import annotations

from collections import deque
from typing import Any

from laptime.model import ratio_interval

FEWEST = 5
MOST = 32


class Detach:
    """Compares like with like: bare steps where there are enough, steps with layer marks where not."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._ended: int | None = None
        self._before = {kind: deque[float](maxlen=MOST) for kind in (True, False)}
        self._after: dict[bool, list[tuple[int, float]]] = {True: [], False: []}

    def session(self, *, began: int, ended: int) -> None:
        """A profiler session is over. Steps before it may be broken down only later."""
        self._began = began if self._began is None else self._began
        self._ended = ended

    def take(self, step: int, wall_s: float, *, instrumented: bool) -> None:
        """Take in a training step that no trace disturbed."""
        if self._began is None or self._ended is None or step < self._began:
            self._before[instrumented].append(wall_s)
        elif step >= self._ended:
            after = self._after[instrumented]
            if after and after[0][0] < self._ended:
                after.clear()  # of an earlier session
            if len(after) < MOST:
                after.append((step, wall_s))

    def verdict(self) -> dict[str, Any] | None:
        """The ratio of step times after and before, with its interval; None with too few steps to tell."""
        for instrumented in (False, True):
            before = list(self._before[instrumented])
            after = [wall_s for _, wall_s in self._after[instrumented]]
            if min(len(before), len(after)) >= FEWEST:
                ratio, low, high = ratio_interval(after, before)
                steps = "marked" if instrumented else "bare"
                return {"ratio": ratio, "low": low, "high": high, "clean": low <= 1.0, "steps": steps}
        return None
