"""The few constants, fitted to other rows than those they are tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.rows import Constants, Row

# Few enough to have a meaning each; where the rows do not tell, the start remains: as if it cost nothing.
START = {
    "link_share": 1.0,
    "contention": 1e-3,
    "ddp_sync_s": 1e-4,
    "horovod_sync_s": 1e-4,
    "spread": 1e-3,
    "raggedness": 1e-3,
    "board": 1e-4,
    "decode_s": 1e-4,  # core-seconds for a megapixel
}


class Fit:
    """Constants for rows, by a search that moves one at a time; the mean error of the logarithm counts."""

    def __init__(self, found: Sequence[Row]) -> None:
        self.rows = found
        self.seen: dict[float, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self.alone = self._of(lambda one: one.accumulate * one.alone.step_s)
        self.measured = self._of(lambda one: one.slowdown)
        self.waiting = self._of(lambda one: one.scaled({**START, "spread": 1.0}).waiting_s)
        self.ragged = self._of(lambda one: one.ragged / one.accumulate**0.5)
        self.board = self._of(lambda one: float(one.device.name == "k80"))
        self.host = self._of(lambda one: one.decoded * one.accumulate * (one.gpus - 1))
        self.kinds = {kind: self._of(lambda one, kind=kind: one.kind == kind) for kind in ("ddp", "horovod")}

    def _of(self, value: Callable[..., float]) -> NDArray[np.float64]:
        return np.array([float(value(one)) for one in self.rows])

    def slowdowns(self, constants: Constants) -> NDArray[np.float64]:
        """As `Row.scaled` gives them, all rows at once."""
        share = constants["link_share"]
        if share not in self.seen:
            scaled = [one.scaled({**START, "link_share": share}) for one in self.rows]
            exposed, hidden = (
                [getattr(one, name) for one in scaled] for name in ("exposed_s", "overlapped_s")
            )
            self.seen[share] = np.array(exposed), np.array(hidden)
        exposed_s, hidden_s = self.seen[share]
        spread = np.hypot(constants["spread"], constants["raggedness"] * self.ragged)
        added = exposed_s + min(1.0, constants["contention"]) * hidden_s + spread * self.waiting
        added += constants["board"] * self.board * self.alone + constants["decode_s"] * self.host
        added += sum(constants[f"{kind}_sync_s"] * where for kind, where in self.kinds.items())
        return np.asarray(1 + added / self.alone)

    def loss(self, constants: Constants, where: NDArray[np.bool_]) -> float:
        """Over the rows that may be fitted to."""
        return float(np.abs(np.log(self.measured / self.slowdowns(constants)))[where].mean())

    def constants(self, where: NDArray[np.bool_]) -> Constants:
        """From the start, by factors of four that shrink to 2 %."""
        best, factor = dict(START), 4.0
        loss = self.loss(best, where)
        while factor > 1.02:
            before = loss
            for name in START:
                for by in (factor, 1 / factor):
                    tried = {**best, name: best[name] * by}
                    if tried["link_share"] > 1 or (found := self.loss(tried, where)) >= loss - 1e-6:
                        continue
                    best, loss = tried, found
            if loss >= before - 1e-6:
                factor = factor**0.5
        return best

    def held_out(self, fold: Callable[[Row], Any]) -> NDArray[np.float64]:
        """Errors of throughput, each fold predicted by `scale` with constants of the others."""
        folds = [fold(one) for one in self.rows]
        errors = np.zeros(len(folds))
        for one in sorted(set(folds)):
            mine = np.array([other == one for other in folds])
            constants = self.constants(~mine)
            for at in np.flatnonzero(mine).tolist():
                predicted = self.rows[at].scaled(constants).efficiency
                errors[at] = predicted * self.rows[at].slowdown - 1
        return errors
