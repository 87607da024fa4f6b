"""Boosted trees as arrays, evaluated by numpy: no scikit-learn needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laptime.errors import CalibrationError

_LARGEST = 200.0  # limit of a sum whose exponential is finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The sum of many trees, each of (trees, nodes) arrays; a leaf is its own child."""

    start: float
    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    left: NDArray[np.int16]
    right: NDArray[np.int16]
    value: NDArray[np.float32]
    depth: int

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number for each row."""
        if self.feature.max() >= rows.shape[1]:
            raise CalibrationError("the calibration was made with other features; calibrate anew")
        trees = np.arange(len(self.feature))[:, None]
        node = np.zeros((len(self.feature), len(rows)), np.int64)
        at = np.arange(len(rows))[None, :]
        for _ in range(self.depth):
            goes_left = rows[at, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(goes_left, self.left[trees, node], self.right[trees, node])
        grown: NDArray[np.float64] = self.value[trees, node].sum(axis=0, dtype=np.float64)
        return grown + self.start

    def arrays(self, prefix: str) -> dict[str, NDArray[np.generic]]:
        """As named arrays, for a file that holds several forests."""
        tables = {
            f"{prefix}/{name}": np.asarray(getattr(self, name))
            for name in ("feature", "threshold", "left", "right", "value")
        }
        return tables | {f"{prefix}/scalars": np.array([self.start, self.depth], np.float64)}

    @classmethod
    def of(cls, prefix: str, arrays: dict[str, NDArray[np.generic]]) -> Forest:
        """From the output of `arrays`."""
        start, depth = arrays[f"{prefix}/scalars"]
        named = {
            name: arrays[f"{prefix}/{name}"] for name in ("feature", "threshold", "left", "right", "value")
        }
        forest = cls(start=float(start), depth=int(depth), **named)  # type: ignore[arg-type]
        forest._check()
        return forest

    def _check(self) -> None:
        """Raise if the arrays are not a valid forest: child index out of range, leaf value that overflows."""
        whole, real = (self.feature, self.left, self.right), (self.threshold, self.value)
        shapes = {each.shape for each in (*whole, *real)}
        if len(shapes) > 1 or self.feature.ndim != 2 or not self.feature.size:
            raise ValueError("its trees are not of one shape")
        if {each.dtype.kind for each in whole} != {"i"} or {each.dtype.kind for each in real} != {"f"}:
            raise ValueError("its trees are not of numbers")
        nodes = self.feature.shape[1]
        if any(each.min() < 0 for each in whole) or max(self.left.max(), self.right.max()) >= nodes:
            raise ValueError("its trees have branches that lead nowhere")
        largest = np.abs(self.value.astype(np.float64)).max(axis=1).sum() + abs(self.start)
        if not (0 <= self.depth <= nodes and largest < _LARGEST):  # also where it is not a number
            raise ValueError("its trees are deeper or larger than any")
