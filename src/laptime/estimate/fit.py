"""Fits a calibration to a sweep: boosted trees on the logarithm of time over its bound, kind by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laptime.errors import MissingExtra
from laptime.estimate.calibration import WORKSPACE_SPARE_BYTES, Calibration
from laptime.estimate.features import Work
from laptime.estimate.forest import Forest
from laptime.ops.registry import kind_named

FEWEST = 20  # rows needed to fit a model
SMEARED, FOLDS = 100, 3  # rows needed for the smearing estimate, and its folds
SAFE = 0.9  # workspace quantile: running out of memory is worse than leaving some free


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOperation:
    """An operation with its measured device and launch time."""

    name: str
    work: Work
    device_us: float
    host_us: float
    workspace: int | None = None  # bytes beside its results; None if not measured


def fit(
    rows: Iterable[TimedOperation],
    *,
    device: str,
    peaks: Mapping[str, float],
    bandwidth: float,
    facts: Mapping[str, Any] | None = None,
) -> Calibration:
    """A calibration from timed operations."""
    groups: dict[tuple[str, str], list[TimedOperation]] = defaultdict(list)
    for row in rows:
        groups[row.work.kind, row.work.dtype].append(row)
    bare = Calibration(device=device, peaks=peaks, bandwidth=bandwidth, forests={}, facts=facts or {})
    enough = {key: group for key, group in groups.items() if len(group) >= FEWEST}
    return replace(
        bare,
        forests={key: _times(group, bare) for key, group in enough.items()},
        workspaces={key: grown for key, group in enough.items() if (grown := _workspaces(group))},
        host_us={f"{kind}/{dtype}": _host(group) for (kind, dtype), group in groups.items()},
    )


def _times(found: Sequence[TimedOperation], bare: Calibration) -> Forest:
    return _grown(
        np.array([row.work.vector for row in found]),
        np.log([row.device_us / bare.bound_us(row.work) for row in found]),
    )


def _workspaces(found: Sequence[TimedOperation]) -> Forest | None:
    """Workspace model of kinds whose library needs one, relative to the bytes moved."""
    told = [row for row in found if row.workspace is not None and kind_named(row.work.kind).has_workspace]
    if len(told) < FEWEST or np.quantile([row.workspace for row in told], SAFE) < WORKSPACE_SPARE_BYTES:
        return None
    targets = [
        np.log(((row.workspace or 0) + WORKSPACE_SPARE_BYTES) / (row.work.bytes + WORKSPACE_SPARE_BYTES))
        for row in told
    ]
    model = _model(len(told), loss="quantile", quantile=SAFE)
    return _as_arrays(model.fit(np.array([row.work.vector for row in told]), np.array(targets)))


def _host(found: Sequence[TimedOperation]) -> tuple[float, float]:
    """Launch time in microseconds: fixed, and per further sequential kernel."""
    host = np.array([row.host_us for row in found])
    further = np.array([row.work.serial - 1.0 for row in found])
    if not further.any():
        return float(np.median(host)), 0.0
    fixed, each = np.linalg.lstsq(np.c_[np.ones(len(found)), further], host, rcond=None)[0]
    return max(0.0, float(fixed)), max(0.0, float(each))


def _grown(rows: Any, targets: Any) -> Forest:
    """Boosted trees on log time, shifted to remove the bias of exp(mean of logs)."""
    forest = _as_arrays(_model(len(rows)).fit(rows, targets))
    if len(rows) < SMEARED:
        return forest
    # Duan's smearing estimate (1983), from cross-validation errors.
    fold = np.random.default_rng(0).integers(0, FOLDS, len(rows))
    missed = np.concatenate(
        [
            targets[fold == held_out]
            - _model(len(rows))
            .fit(rows[fold != held_out], targets[fold != held_out])
            .predict(rows[fold == held_out])
            for held_out in range(FOLDS)
        ]
    )
    return replace(forest, start=forest.start + float(np.log(np.mean(np.exp(np.clip(missed, -1, 1))))))


def _model(count: int, **loss: Any) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("scikit-learn", "calibrate") from None
    many = count > 2000
    return HistGradientBoostingRegressor(
        max_iter=400 if many else 150,
        learning_rate=0.06,
        max_leaf_nodes=31 if many else 15,
        min_samples_leaf=6 if many else 4,
        l2_regularization=0.1,
        random_state=0,
        **loss,
    )


def _rounded_up(thresholds: Any) -> Any:
    """To float32, rounded up: thresholds are values of the sweep, which must stay on the left side."""
    small = thresholds.astype(np.float32)
    return np.where(small < thresholds, np.nextafter(small, np.float32(np.inf)), small)


def _as_arrays(model: Any) -> Forest:
    """The trees of scikit-learn's model as arrays; leaves point at themselves, so paths have equal length."""
    trees = [predictors[0].nodes for predictors in model._predictors]
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
