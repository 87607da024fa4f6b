"""Fitted models of one device: time, workspace and launch cost of single operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from laptime.errors import CalibrationError
from laptime.estimate.features import Work
from laptime.estimate.forest import Forest
from laptime.files.parse import parse_json
from laptime.files.read import read_arrays
from laptime.files.text import first_line, one_line
from laptime.files.typed import build
from laptime.model.constants import Source
from laptime.ops.registry import kind_named

VERSION = 2
LAUNCH_US: Annotated[float, Source("The shortest kernel: added to every bound.")] = 2.0
WORKSPACE_SPARE_BYTES: Annotated[
    int, Source("Added to a workspace and to what it is relative to.", unit="bytes")
] = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """Header of a calibration file: everything but the trees."""

    device: str
    peaks: Mapping[str, float]
    bandwidth: float
    host_us: Mapping[str, tuple[float, float]]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Models of a device's operations. Time is the roofline bound times a fitted factor."""

    device: str
    peaks: Mapping[str, float]  # FLOP/s of matrix products: float32, tf32, bfloat16, float16
    bandwidth: float  # bytes/s
    forests: Mapping[tuple[str, str], Forest]  # by kind and type
    workspaces: Mapping[tuple[str, str], Forest] = field(
        default_factory=dict
    )  # workspace memory, by kind and type
    # Launch time by kind/type: of the first kernel, and of each further kernel in sequence.
    host_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # date, environment, rows

    @property
    def host_is_device(self) -> bool:
        """Whether host and device are the same, as on a CPU: launches cost nothing extra."""
        return self.facts.get("host") == "device"

    def bound_us(self, work: Work) -> float:
        """Roofline bound: the longer of compute and memory time, plus launches."""
        peak = self.peaks.get(work.multiplies_in, self.peaks["float32"])
        return max(work.flops / peak, work.bytes / self.bandwidth) * 1e6 + LAUNCH_US * work.serial

    def times_us(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Device time of each operation."""
        return np.array([self.bound_us(work) for work in works]) * self.factors(works)

    def handed_us(self, work: Work) -> tuple[float, float]:
        """Host time to launch an operation: its first kernel, and all further ones."""
        for kind in (work.kind, *(kind_named(work.kind).like or ("elementwise",))):
            for dtype in _types(work.dtype):
                if (launch_us := self.host_us.get(f"{kind}/{dtype}")) is not None:
                    return launch_us[0], launch_us[1] * (work.serial - 1)
        return 0.0, 0.0

    def workspace_bytes(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Temporary memory of each operation, beside its inputs and outputs."""
        return _once(works, self._workspace_bytes)

    def factors(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Time over roofline bound, for each operation."""
        return _once(works, self._factors)

    def _workspace_bytes(self, works: Sequence[Work]) -> NDArray[np.float64]:
        sizes = np.zeros(len(works))
        for key, indices in self._by_model(works, self.workspaces).items():
            rows = np.array([works[index].vector for index in indices])
            moved = np.array([works[index].bytes for index in indices])
            sizes[indices] = (
                np.exp(self.workspaces[key](rows)) * (moved + WORKSPACE_SPARE_BYTES) - WORKSPACE_SPARE_BYTES
            )
        return np.maximum(0.0, sizes)

    def _factors(self, works: Sequence[Work]) -> NDArray[np.float64]:
        factors = np.ones(len(works))  # without a model the bound is used
        for key, indices in self._by_model(works, self.forests).items():
            factors[indices] = np.exp(self.forests[key](np.array([works[index].vector for index in indices])))
        return factors

    def _by_model(
        self, works: Sequence[Work], forests: Mapping[tuple[str, str], Forest]
    ) -> dict[tuple[str, str], list[int]]:
        """Indices by model: that of the same kind and type, else of a similar type or kind."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, work in enumerate(works):
            key = next(
                (
                    (kind, dtype)
                    for kind in (work.kind, *kind_named(work.kind).like)
                    for dtype in _types(work.dtype)
                    if (kind, dtype) in forests
                ),
                None,
            )
            if key is not None:
                groups.setdefault(key, []).append(index)
        return groups

    def save(self, path: str | Path) -> None:
        """One file, without pickles."""
        arrays: dict[str, Any] = {}
        for folder, models in (("times", self.forests), ("workspaces", self.workspaces)):
            for (kind, dtype), forest in models.items():
                arrays |= forest.arrays(f"{folder}/{kind}/{dtype}")
        head = {
            "laptime_calibration": VERSION,
            "device": self.device,
            "peaks": dict(self.peaks),
            "bandwidth": self.bandwidth,
            "host_us": dict(self.host_us),
            "facts": dict(self.facts),
        }
        np.savez_compressed(path, head=np.array(json.dumps(head)), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote."""
        shown = one_line(path)
        try:
            arrays = read_arrays(path)
            head = parse_json(str(arrays.pop("head")))
            version = head["laptime_calibration"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CalibrationError(
                f"{shown} is no calibration ({first_line(error)}); make one: laptime calibrate"
            ) from None
        if version != VERSION:
            raise CalibrationError(
                f"{shown} has version {one_line(version)[:20]}, this laptime reads {VERSION}; calibrate"
            )
        try:
            return cls._of(build(_Head, head), arrays)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise CalibrationError(f"{shown} is damaged ({first_line(error)}); calibrate anew") from None

    @classmethod
    def _of(cls, head: _Head, arrays: dict[str, NDArray[np.generic]]) -> Calibration:
        if "float32" not in head.peaks or not min(head.bandwidth, *head.peaks.values()) > 0:
            raise ValueError("its bandwidth and peaks must be above 0")  # other types fall back to float32
        forests: dict[str, dict[tuple[str, str], Forest]] = {"times": {}, "workspaces": {}}
        for name in sorted({key.rsplit("/", 1)[0] for key in arrays}):
            folder, kind, dtype = name.split("/")
            forests[folder][kind, dtype] = Forest.of(name, arrays)
        return cls(
            device=head.device,
            peaks=head.peaks,
            bandwidth=head.bandwidth,
            forests=forests["times"],
            workspaces=forests["workspaces"],
            host_us=head.host_us,
            facts=head.facts,
        )


def _once(works: Sequence[Work], ask: Callable[[Sequence[Work]], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Evaluate each distinct operation once: 97 of a ResNet-50's 409 kernels are distinct."""
    places = {work: place for place, work in enumerate(dict.fromkeys(works))}
    return ask(list(places))[[places[work] for work in works]] if works else np.empty(0)


def _types(dtype: str) -> tuple[str, ...]:
    """A type, then the types whose kernels are most similar."""
    return dtype, "bfloat16" if dtype == "float16" else "float32", "float32"
