"""Fitted models of one device: time, workspace and launch cost of single operations; and how they are fitted.

A model takes the features of an operation (`Work`), the same for operations of a network and of a calibration
sweep. It predicts the logarithm of time over the roofline bound, so that it stays near the roofline outside
its training data. Models are boosted trees as arrays, evaluated by numpy: only fitting needs scikit-learn.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from laptime.errors import CalibrationError, MissingExtra
from laptime.files.parse import build, parse_json
from laptime.files.read import read_arrays
from laptime.files.text import first_line, one_line
from laptime.model import Operation
from laptime.model.constants import Source
from laptime.ops.registry import Sizes, kind_named
from laptime.ops.sizes import log2

Floats = NDArray[np.float64]

VERSION = 2
# Types that products are computed in, by torch's names -> the precisions of `hardware`.
TYPES = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
LAUNCH_US: Annotated[float, Source("The shortest kernel: added to every bound.")] = 2.0
WORKSPACE_SPARE_BYTES: Annotated[
    int, Source("Added to a workspace and to what it is relative to.", unit="bytes")
] = 1 << 20
_TABLES = ("feature", "threshold", "left", "right", "value")
_LARGEST = 200.0  # limit of a sum whose exponential is finite
FEWEST = 20  # rows needed to fit a model
SMEARED, FOLDS = 100, 3  # rows needed for the smearing estimate, and its folds
SAFE = 0.9  # workspace quantile: running out of memory is worse than leaving some free


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An operation as a model sees it."""

    kind: str
    dtype: str
    flops: int
    bytes: int
    vector: tuple[float, ...]
    serial: int = 1  # sequential kernels: the steps of a recurrent layer

    @property
    def multiplies_in(self) -> str:
        """The type of its products."""
        return "tf32" if self.dtype == "float32" and kind_named(self.kind).uses_tf32 else self.dtype


def work(operation: Operation) -> Work:
    """The features of an operation that was read off a network."""
    kernel = kind_named(operation.kind).timed_as(operation)
    return kernel_work(kernel.kind, operation.dtype, kernel.sizes, kernel.moved)


def kernel_work(kind: str, dtype: str, sizes: Sizes, moved: int) -> Work:
    """The features of any operation of a kind."""
    entry = kind_named(kind)
    flops = entry.flops(sizes)
    vector = (log2(flops), log2(moved), *entry.features(sizes))
    serial = entry.serial_kernels(sizes)
    return Work(kind=kind, dtype=dtype, flops=flops, bytes=moved, vector=vector, serial=serial)


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

    def __call__(self, rows: Floats) -> Floats:
        """One number for each row."""
        if self.feature.max() >= rows.shape[1]:
            raise CalibrationError("the calibration was made with other features; calibrate anew")
        trees = np.arange(len(self.feature))[:, None]
        node = np.zeros((len(self.feature), len(rows)), np.int64)
        at = np.arange(len(rows))[None, :]
        for _ in range(self.depth):
            goes_left = rows[at, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(goes_left, self.left[trees, node], self.right[trees, node])
        grown: Floats = self.value[trees, node].sum(axis=0, dtype=np.float64)
        return grown + self.start

    def arrays(self, prefix: str) -> dict[str, NDArray[np.generic]]:
        """As named arrays, for a file that holds several forests."""
        tables = {f"{prefix}/{name}": np.asarray(getattr(self, name)) for name in _TABLES}
        return tables | {f"{prefix}/scalars": np.array([self.start, self.depth], np.float64)}

    @classmethod
    def of(cls, prefix: str, arrays: dict[str, NDArray[np.generic]]) -> Forest:
        """From the output of `arrays`; raises where it is no forest."""
        start, depth = arrays[f"{prefix}/scalars"]
        tables: dict[str, Any] = {name: arrays[f"{prefix}/{name}"] for name in _TABLES}
        forest = cls(start=float(start), depth=int(depth), **tables)
        whole, real = (forest.feature, forest.left, forest.right), (forest.threshold, forest.value)
        shapes = {each.shape for each in (*whole, *real)}
        if len(shapes) > 1 or forest.feature.ndim != 2 or not forest.feature.size:
            raise ValueError("its trees are not of one shape")
        if {each.dtype.kind for each in whole} != {"i"} or {each.dtype.kind for each in real} != {"f"}:
            raise ValueError("its trees are not of numbers")
        nodes = forest.feature.shape[1]
        if any(each.min() < 0 for each in whole) or max(forest.left.max(), forest.right.max()) >= nodes:
            raise ValueError("its trees have branches that lead nowhere")
        largest = np.abs(forest.value.astype(np.float64)).max(axis=1).sum() + abs(forest.start)
        if not (0 <= forest.depth <= nodes and largest < _LARGEST):  # also where it is not a number
            raise ValueError("its trees are deeper or larger than any")
        return forest


Forests = Mapping[tuple[str, str], Forest]  # by kind and type


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibrationHead:
    """What a calibration file has as JSON: everything but the trees."""

    device: str
    peaks: Mapping[str, float]  # FLOP/s of matrix products: float32, tf32, bfloat16, float16
    bandwidth: float  # bytes/s
    # Launch time by kind/type: of the first kernel, and of each further kernel in sequence.
    host_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # date, environment, rows

    def values(self) -> dict[str, Any]:
        """Its fields, by name."""
        return {each.name: getattr(self, each.name) for each in fields(CalibrationHead)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration(CalibrationHead):
    """Models of a device's operations. Time is the roofline bound times a fitted factor."""

    forests: Forests
    workspaces: Forests = field(default_factory=dict)  # of temporary memory

    @property
    def host_is_device(self) -> bool:
        """Whether host and device are the same, as on a CPU: launches cost nothing extra."""
        return self.facts.get("host") == "device"

    @property
    def basis(self) -> str:
        """Its name, as predictions show it."""
        return f"calibration of {self.facts.get('date') or self.device}"

    def bound_us(self, work: Work) -> float:
        """Roofline bound: the longer of compute and memory time, plus launches."""
        peak = self.peaks.get(work.multiplies_in, self.peaks["float32"])
        return max(work.flops / peak, work.bytes / self.bandwidth) * 1e6 + LAUNCH_US * work.serial

    def times_us(self, works: Sequence[Work]) -> Floats:
        """Device time of each operation; without a model its bound."""
        factors = np.nan_to_num(_modelled(works, self.forests), nan=1.0)
        times: Floats = np.array([self.bound_us(work) for work in works]) * factors
        return times

    def workspace_bytes(self, works: Sequence[Work]) -> Floats:
        """Temporary memory of each operation, beside its inputs and outputs; none without a model."""
        moved = np.array([work.bytes for work in works])
        shares = _modelled(works, self.workspaces)
        sizes = shares * (moved + WORKSPACE_SPARE_BYTES) - WORKSPACE_SPARE_BYTES
        known: Floats = np.maximum(0.0, np.nan_to_num(sizes))
        return known

    def launch_us(self, work: Work) -> tuple[float, float]:
        """Host time to launch an operation: its first kernel, and all further ones."""
        for kind in (work.kind, *(kind_named(work.kind).like or ("elementwise",))):
            for dtype in _types(work.dtype):
                if (launch_us := self.host_us.get(f"{kind}/{dtype}")) is not None:
                    return launch_us[0], launch_us[1] * (work.serial - 1)
        return 0.0, 0.0

    def save(self, path: str | Path) -> None:
        """One file, without pickles."""
        arrays: dict[str, Any] = {}
        for folder, models in (("times", self.forests), ("workspaces", self.workspaces)):
            for (kind, dtype), forest in models.items():
                arrays |= forest.arrays(f"{folder}/{kind}/{dtype}")
        head = {"laptime_calibration": VERSION, **self.values()}
        np.savez_compressed(path, head=np.array(json.dumps(head)), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote."""
        shown = one_line(path)
        try:
            arrays = read_arrays(path)
            document = parse_json(str(arrays.pop("head")))
            version = document["laptime_calibration"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CalibrationError(
                f"{shown} is no calibration ({first_line(error)}); make one: laptime calibrate"
            ) from None
        if version != VERSION:
            raise CalibrationError(
                f"{shown} has version {one_line(version)[:20]}, this laptime reads {VERSION}; calibrate"
            )
        try:
            head = build(CalibrationHead, document)
            # Other types fall back to float32.
            if "float32" not in head.peaks or not min(head.bandwidth, *head.peaks.values()) > 0:
                raise ValueError("its bandwidth and peaks must be above 0")
            forests: dict[str, dict[tuple[str, str], Forest]] = {"times": {}, "workspaces": {}}
            for name in sorted({key.rsplit("/", 1)[0] for key in arrays}):
                folder, kind, dtype = name.split("/")
                forests[folder][kind, dtype] = Forest.of(name, arrays)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise CalibrationError(f"{shown} is damaged ({first_line(error)}); calibrate anew") from None
        return cls(**head.values(), forests=forests["times"], workspaces=forests["workspaces"])


def _modelled(works: Sequence[Work], forests: Forests) -> Floats:
    """What the model of each operation gives: of its kind and type, else of a similar type or kind, else NaN.

    Each distinct operation is evaluated once: 97 of a ResNet-50's 409 kernels are distinct.
    """
    groups: dict[tuple[str, str], list[Work]] = {}
    for work in dict.fromkeys(works):
        kinds = (work.kind, *kind_named(work.kind).like)
        keys = ((kind, dtype) for kind in kinds for dtype in _types(work.dtype))
        if (key := next((key for key in keys if key in forests), None)) is not None:
            groups.setdefault(key, []).append(work)
    values: dict[Work, float] = {}
    for key, group in groups.items():
        factors = np.exp(forests[key](np.array([work.vector for work in group])))
        values |= zip(group, factors.tolist(), strict=True)
    return np.array([values.get(work, np.nan) for work in works])


def _types(dtype: str) -> tuple[str, ...]:
    """A type, then the types whose kernels are most similar."""
    return dtype, "bfloat16" if dtype == "float16" else "float32", "float32"


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


def _times(timed: Sequence[TimedOperation], bare: Calibration) -> Forest:
    """Boosted trees on log time, shifted to remove the bias of exp(mean of logs)."""
    rows = np.array([row.work.vector for row in timed])
    targets = np.log([row.device_us / bare.bound_us(row.work) for row in timed])
    forest = _as_arrays(_model(len(rows)).fit(rows, targets))
    if len(rows) < SMEARED:
        return forest
    # Duan's smearing estimate (1983), from cross-validation errors.
    fold = np.random.default_rng(0).integers(0, FOLDS, len(rows))
    missed = []
    for number in range(FOLDS):
        held_out = fold == number
        model = _model(len(rows)).fit(rows[~held_out], targets[~held_out])
        missed.append(targets[held_out] - model.predict(rows[held_out]))
    smearing = np.mean(np.exp(np.clip(np.concatenate(missed), -1, 1)))
    return replace(forest, start=forest.start + float(np.log(smearing)))


def _workspaces(timed: Sequence[TimedOperation]) -> Forest | None:
    """Workspace model of kinds whose library needs one, relative to the bytes moved."""
    told = [row for row in timed if row.workspace is not None and kind_named(row.work.kind).has_workspace]
    spaces = np.array([row.workspace for row in told], float)
    if len(told) < FEWEST or np.quantile(spaces, SAFE) < WORKSPACE_SPARE_BYTES:
        return None
    moved = np.array([row.work.bytes for row in told], float)
    targets = np.log((spaces + WORKSPACE_SPARE_BYTES) / (moved + WORKSPACE_SPARE_BYTES))
    model = _model(len(told), loss="quantile", quantile=SAFE)
    return _as_arrays(model.fit(np.array([row.work.vector for row in told]), targets))


def _host(timed: Sequence[TimedOperation]) -> tuple[float, float]:
    """Launch time in microseconds: fixed, and per further sequential kernel."""
    host = np.array([row.host_us for row in timed])
    further = np.array([row.work.serial - 1.0 for row in timed])
    if not further.any():
        return float(np.median(host)), 0.0
    fixed, each = np.linalg.lstsq(np.c_[np.ones(len(timed)), further], host, rcond=None)[0]
    return max(0.0, float(fixed)), max(0.0, float(each))


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
    thresholds = table("num_threshold", np.float64)
    # To float32, rounded up: thresholds are values of the sweep, which must stay on the left side.
    small = thresholds.astype(np.float32)
    rounded = np.where(small < thresholds, np.nextafter(small, np.float32(np.inf)), small)
    itself = np.broadcast_to(np.arange(most, dtype=np.int16), leaf.shape)
    return Forest(
        start=float(np.ravel(model._baseline_prediction)[0]),
        feature=np.where(leaf, 0, table("feature_idx", np.int16)),
        threshold=rounded,
        left=np.where(leaf, itself, table("left", np.int16)),
        right=np.where(leaf, itself, table("right", np.int16)),
        value=np.where(leaf, table("value", np.float32), 0).astype(np.float32),
        depth=int(max(nodes["depth"].max() for nodes in trees)),
    )
