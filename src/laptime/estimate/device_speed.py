"""A device's speed: its own calibration, or its data sheet with the H200's calibration.

The user's own calibrations, made by `laptime calibrate`, come before those that laptime brings. They lie in
$XDG_DATA_HOME/laptime/calibrations, or else in ~/.local/share/laptime/calibrations.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from laptime import hardware
from laptime.errors import CalibrationError, HardwareError
from laptime.estimate.calibration import TYPES, Calibration, Work
from laptime.estimate.datasheet_transfer import Shares, shares
from laptime.hardware import Device

SHIPPED = ("h200",)
HERE = {"cpu": "cpu", "this-cpu": "cpu", "cuda": "cuda", "this-gpu": "cuda"}
"""Names of the machine at hand -> the type of device whose newest calibration is meant."""


def device(name: str | Path | Device) -> Device:
    """The device of that name, as `hardware.device` finds it; or the calibrated CPU or GPU at hand."""
    if not isinstance(name, str | Path | Device):
        raise HardwareError(f"device is {name!r}; give one name of `laptime devices`, a file, or a Device")
    kind = HERE.get(name.lower()) if isinstance(name, str) else None
    if kind is None:
        return hardware.device(name)
    mine: list[Calibration] = []
    unreadable: CalibrationError | None = None
    for path in sorted(calibrations().glob("[!.]*.npz")):  # hidden files are unfinished
        try:
            known = calibrated(path.stem)
        except CalibrationError as error:  # of another device, perhaps
            unreadable = unreadable or error
            continue
        if known is not None and known.facts.get("type") == kind:
            mine.append(known)
    if not mine and unreadable is not None:
        raise unreadable
    if not mine:
        own = "CPU" if kind == "cpu" else "GPU, if there is one,"
        raise CalibrationError(
            f"{name} means this machine's own: its {own} is not calibrated yet; run `laptime calibrate` first"
        )
    calibration = max(mine, key=lambda each: f"{each.facts.get('date')} {each.facts.get('time')}")
    figures = calibration.facts.get("figures")
    if not figures:
        return hardware.device(calibration.device)
    # One that the catalog does not know is described by its calibration.
    source = f"{calibration.basis}: the best that a single operation reached"
    return Device(name=calibration.device, sources=dict.fromkeys(figures, source), **figures)


def peaks(device: Device) -> dict[str, float]:
    """FLOP/s of matrix products by torch's names of types."""
    return {dtype: device.peak(precision) for dtype, precision in TYPES.items()}


@cache
def shipped(name: str) -> Calibration:
    """A calibration that comes with laptime."""
    with resources.as_file(resources.files("laptime.estimate") / "calibrations" / f"{name}.npz") as path:
        return Calibration.load(path)


def calibrations() -> Path:
    """The folder of the user's own."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "laptime" / "calibrations"


def calibrated(name: str) -> Calibration | None:
    """The user's own calibration of a device."""
    path = calibrations() / f"{name}.npz"
    try:
        return _loaded(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


@cache
def _loaded(path: Path, changed_ns: int) -> Calibration:
    return Calibration.load(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast operations run on a device: by a calibration of it, or by its data sheet and the H200's."""

    device: Device
    calibration: Calibration
    shares: Shares | None = None  # how the device differs, where the calibration is the H200's

    @property
    def measured(self) -> bool:
        """Whether the calibration is of such a device."""
        return self.shares is None

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.calibration.bandwidth if self.measured else self.device.memory_bandwidth

    @property
    def hosted(self) -> bool:
        """Whether a host launches its operations."""
        return not self.calibration.host_is_device and self.device.kind != "cpu"

    def bound_us(self, work: Work) -> float:
        """At the nominal rates of the device."""
        return replace(self.calibration, peaks=peaks(self.device), bandwidth=self.bandwidth).bound_us(work)


def speed_of(device: Device) -> Speed:
    """What is known of a device; the user's own calibration comes first."""
    own = calibrated(device.name)
    if own is not None:
        return Speed(device=device, calibration=own)
    if device.name in SHIPPED:
        return Speed(device=device, calibration=shipped(device.name))
    return Speed(device=device, calibration=shipped(SHIPPED[0]), shares=shares(device))
