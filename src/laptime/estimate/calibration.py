"""How fast single operations run on one device, learned from a sweep, and what each costs its host."""

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
    """What a calibration's file says beside its trees."""

    device: str
    peaks: Mapping[str, float]
    bandwidth: float
    host_us: Mapping[str, tuple[float, float]]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Models of a device's operations. Times are bounds of the roofline times a learned factor."""

    device: str
    peaks: Mapping[str, float]  # FLOP/s of matrix products: float32, tf32, bfloat16, float16
    bandwidth: float  # bytes/s
    forests: Mapping[tuple[str, str], Forest]  # by kind and type
    workspaces: Mapping[tuple[str, str], Forest] = field(default_factory=dict)  # the same, of their memory
    # To hand over an operation, by kind/type: fixed, and for each further kernel that waits for another.
    host_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # date, environment, rows

    @property
    def host_is_device(self) -> bool:
        """On a CPU an operation's time is all there is."""
        return self.facts.get("host") == "device"

    def bound_us(self, work: Work) -> float:
        """The roofline: the longer of computing and moving, and a launch."""
        peak = self.peaks.get(work.multiplies_in, self.peaks["float32"])
        return max(work.flops / peak, work.bytes / self.bandwidth) * 1e6 + LAUNCH_US * work.serial

    def times_us(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Microseconds on the device for each."""
        return np.array([self.bound_us(one) for one in works]) * self.factors(works)

    def handed_us(self, work: Work) -> tuple[float, float]:
        """Microseconds of the host to hand an operation over, and its further kernels."""
        for kind in (work.kind, *(kind_named(work.kind).like or ("elementwise",))):
            for dtype in _types(work.dtype):
                if (found := self.host_us.get(f"{kind}/{dtype}")) is not None:
                    return found[0], found[1] * (work.serial - 1)
        return 0.0, 0.0

    def workspace_bytes(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """What each takes beside its inputs and results while it runs."""
        return _once(works, self._workspace_bytes)

    def factors(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """How much longer than its bound each takes."""
        return _once(works, self._factors)

    def _workspace_bytes(self, works: Sequence[Work]) -> NDArray[np.float64]:
        found = np.zeros(len(works))
        for key, indices in self._by_model(works, self.workspaces).items():
            rows = np.array([works[index].vector for index in indices])
            moved = np.array([works[index].bytes for index in indices])
            found[indices] = (
                np.exp(self.workspaces[key](rows)) * (moved + WORKSPACE_SPARE_BYTES) - WORKSPACE_SPARE_BYTES
            )
        return np.maximum(0.0, found)

    def _factors(self, works: Sequence[Work]) -> NDArray[np.float64]:
        found = np.ones(len(works))  # without a model its bound is all that is known
        for key, indices in self._by_model(works, self.forests).items():
            found[indices] = np.exp(self.forests[key](np.array([works[index].vector for index in indices])))
        return found

    def _by_model(
        self, works: Sequence[Work], forests: Mapping[tuple[str, str], Forest]
    ) -> dict[tuple[str, str], list[int]]:
        """Which works a model is for: that of their kind and type, or else of another type or a like kind."""
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
            raise ValueError("its bandwidth and peaks must be above 0")  # other types lean on float32
        found: dict[str, dict[tuple[str, str], Forest]] = {"times": {}, "workspaces": {}}
        for name in sorted({key.rsplit("/", 1)[0] for key in arrays}):
            folder, kind, dtype = name.split("/")
            found[folder][kind, dtype] = Forest.of(name, arrays)
        return cls(
            device=head.device,
            peaks=head.peaks,
            bandwidth=head.bandwidth,
            forests=found["times"],
            workspaces=found["workspaces"],
            host_us=head.host_us,
            facts=head.facts,
        )


def _once(works: Sequence[Work], ask: Callable[[Sequence[Work]], NDArray[np.float64]]) -> NDArray[np.float64]:
    """The trees are asked once for each distinct operation: of a ResNet-50's 409 kernels 97 are distinct."""
    places = {one: place for place, one in enumerate(dict.fromkeys(works))}
    return ask(list(places))[[places[one] for one in works]] if works else np.empty(0)


def _types(dtype: str) -> tuple[str, ...]:
    """A type, and those whose kernels are most like its own."""
    return dtype, "bfloat16" if dtype == "float16" else "float32", "float32"
