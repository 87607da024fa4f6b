"""What is known of a device's speed: a calibration of it, or its data sheet and another's calibration."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources

from laptime.hardware import Device
from laptime.predict.calibration import Calibration

SHIPPED = ("h200",)
TYPES = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"}


def peaks(device: Device) -> dict[str, float]:
    """FLOP/s of matrix products by torch's names of types."""
    return {dtype: device.peak(precision) for dtype, precision in TYPES.items()}


@cache
def shipped(name: str) -> Calibration:
    """A calibration that comes with laptime."""
    with resources.as_file(resources.files("laptime.predict") / "calibrations" / f"{name}.npz") as path:
        return Calibration.load(path)


def calibration_for(device: Device) -> tuple[Calibration, bool]:
    """How fast operations run on a device, and whether that was measured on such a device.

    Where it was not, every operation is taken to reach the same share of its bound as on an H200.
    """
    if device.name in SHIPPED:
        return shipped(device.name), True
    other = shipped(SHIPPED[0])
    return replace(other, device=device.name, peaks=peaks(device), bandwidth=device.memory_bandwidth), False
