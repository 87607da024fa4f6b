"""How fast single operations run on one device, learned from a sweep, and what each costs its host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from laptime.errors import CalibrationError
from laptime.predict.features import Work
from laptime.predict.forest import Forest

VERSION = 1
LAUNCH_US = 2.0  # the shortest kernel: added to the bound, lest tiny operations have none


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Models of a device's operations. Times are bounds of the roofline times a learned factor."""

    device: str
    peaks: Mapping[str, float]  # FLOP/s of matrix products: float32, tf32, bfloat16, float16
    bandwidth: float  # bytes/s
    forests: Mapping[tuple[str, str], Forest]  # by kind and type
    host_us: Mapping[str, float]  # to hand over one operation of a kind
    facts: Mapping[str, Any] = field(default_factory=dict)  # date, environment, rows

    @property
    def host_is_device(self) -> bool:
        """On a CPU an operation's time is all there is."""
        return self.facts.get("host") == "device"

    def bound_us(self, work: Work) -> float:
        """The roofline: the longer of computing and moving, and a launch."""
        return self._bound_us(work, work.dtype)

    def _bound_us(self, work: Work, dtype: str) -> float:
        # Torch's default: cuDNN, which convolutions and recurrent layers go through, may use TF32.
        cudnn = work.kind.startswith(("convolution", "recurrent")) and dtype == "float32"
        name = "tf32" if cudnn else dtype
        peak = self.peaks.get(name, self.peaks["float32"])
        return max(work.flops / peak, work.bytes / self.bandwidth) * 1e6 + LAUNCH_US * work.serial

    def times_us(
        self, works: Sequence[Work], factors: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Microseconds on the device for each; `factors` may have been found before."""
        bounds = [self._bound_us(one, self._model(one)[1]) for one in works]
        found = self.factors(works) if factors is None else factors
        return np.array(bounds) * found

    def factors(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """How much longer than its bound each takes: a matter of shapes, so good for other devices too."""
        found = np.ones(len(works))
        groups: dict[tuple[str, str], list[int]] = {}
        for index, one in enumerate(works):
            groups.setdefault(self._model(one), []).append(index)
        for key, indices in groups.items():
            forest = self.forests.get(key)
            if forest is not None:
                rows = np.array([works[index].vector for index in indices])
                found[indices] = np.exp(forest(rows))
        return found

    def _model(self, work: Work) -> tuple[str, str]:
        """The model of its kind and type; of another type, or of a like kind, where that is all there is."""
        for kind in (work.kind, *_LIKE.get(work.kind, ())):
            for dtype in (work.dtype, "bfloat16" if work.dtype == "float16" else "float32", "float32"):
                if (kind, dtype) in self.forests:
                    return kind, dtype
        return work.kind, work.dtype  # none: its bound is all that is known

    def save(self, path: str | Path) -> None:
        """One file, without pickles."""
        arrays: dict[str, Any] = {}
        for (kind, dtype), forest in self.forests.items():
            arrays |= forest.arrays(f"{kind}/{dtype}")
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
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = dict(file.items())
            head = json.loads(str(arrays.pop("head")))
            version = head["laptime_calibration"]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, AttributeError) as error:
            raise CalibrationError(
                f"{path} is no calibration ({error}); make one: laptime calibrate"
            ) from None
        if version != VERSION:
            raise CalibrationError(f"{path} has version {version}, this laptime reads {VERSION}; calibrate")
        names = {key.rsplit("/", 1)[0] for key in arrays}
        forests = {(name.split("/")[0], name.split("/")[1]): Forest.of(name, arrays) for name in names}
        return cls(
            device=head["device"],
            peaks=head["peaks"],
            bandwidth=head["bandwidth"],
            forests=forests,
            host_us=head["host_us"],
            facts=head["facts"],
        )


_LIKE = {
    "cat": ("copy", "elementwise"),
    "dropout": ("elementwise",),
    "fill": ("elementwise",),
    "function": ("elementwise",),
    "other": ("elementwise",),
    "gather": ("copy", "elementwise"),
    "permuted": ("copy",),
    "score": ("gather", "copy", "elementwise"),
}
