"""Fits a calibration to a sweep: boosted trees on the logarithm of time over its bound, kind by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from laptime.errors import MissingExtra
from laptime.predict.calibration import Calibration
from laptime.predict.forest import Forest
from laptime.predict.sweep import Timed

FEWEST = 20  # rows that are worth a model


def fit(
    rows: Iterable[Timed],
    *,
    device: str,
    peaks: Mapping[str, float],
    bandwidth: float,
    facts: Mapping[str, Any] | None = None,
) -> Calibration:
    """A calibration from timed operations."""
    groups: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    host: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        groups[row.work.kind, row.work.dtype].append(row)
        host[row.work.kind].append(row.host_us)
    bare = Calibration(
        device=device,
        peaks=peaks,
        bandwidth=bandwidth,
        forests={},
        host_us={kind: float(np.median(found)) for kind, found in host.items()},
        facts=facts or {},
    )
    forests = {
        key: _grown(
            np.array([row.work.vector for row in found]),
            np.log([row.device_us / bare.bound_us(row.work) for row in found]),
        )
        for key, found in groups.items()
        if len(found) >= FEWEST
    }
    return Calibration(
        device=device,
        peaks=peaks,
        bandwidth=bandwidth,
        forests=forests,
        host_us=bare.host_us,
        facts=bare.facts,
    )


def _grown(rows: Any, targets: Any) -> Forest:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("scikit-learn", "calibrate") from None
    many = len(rows) > 2000
    model = HistGradientBoostingRegressor(
        max_iter=400 if many else 150,
        learning_rate=0.06,
        max_leaf_nodes=31 if many else 15,
        min_samples_leaf=6 if many else 4,
        l2_regularization=0.1,
        random_state=0,
    ).fit(rows, targets)
    return _as_arrays(model)


def _rounded_up(thresholds: Any) -> Any:
    """In half the space. Thresholds are values of the sweep itself, which must stay on their left."""
    small = thresholds.astype(np.float32)
    return np.where(small < thresholds, np.nextafter(small, np.float32(np.inf)), small)


def _as_arrays(model: Any) -> Forest:
    """The trees of scikit-learn's model; every leaf points at itself, so that all paths are equally long."""
    trees = [found[0].nodes for found in model._predictors]
    most = max(map(len, trees))

    def table(name: str, kind: Any) -> Any:
        made = np.zeros((len(trees), most), kind)
        for row, nodes in enumerate(trees):
            made[row, : len(nodes)] = nodes[name]
        return made

    leaf = table("is_leaf", bool)
    itself = np.broadcast_to(np.arange(most, dtype=np.int16), leaf.shape)
    return Forest(
        start=float(np.ravel(model._baseline_prediction)[0]),
        feature=np.where(leaf, 0, table("feature_idx", np.int16)),
        threshold=_rounded_up(table("num_threshold", np.float64)),
        left=np.where(leaf, itself, table("left", np.int16)),
        right=np.where(leaf, itself, table("right", np.int16)),
        value=np.where(leaf, table("value", np.float32), 0).astype(np.float32),
        depth=int(max(nodes["depth"].max() for nodes in trees)),
    )
