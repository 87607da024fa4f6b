"""What-if factors: a device with faster compute, memory, link or host.

A kernel's time is its roofline and an excess over it, as in `datasheet_transfer`: a new figure moves the
roofline, more multiprocessors shrink the excess too. That is how the times of one GPU are carried to another
whose data sheet is all that is known, so it errs as much as that does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from laptime.estimate.calibration import Calibration
from laptime.estimate.data_parallel import DDP, alone_from_step, scale
from laptime.estimate.datasheet_transfer import SHORT_US
from laptime.estimate.device_speed import Speed
from laptime.estimate.op_times import Prepared, TimedStep
from laptime.estimate.predict import DATA_SHEET, SCALING, together
from laptime.hardware import Device
from laptime.model.prediction import Prediction

_PEAKS = ("fp64", "fp32", "fp16_vector", "fp32_matrix", "tf32", "fp16", "bf16")
BY_ITSELF = "host: a CPU has no other host, so its factor changes nothing here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Speed-ups; 1 leaves the device unchanged."""

    compute: float = 1.0
    bandwidth: float = 1.0
    link: float = 1.0
    host: float = 1.0

    @property
    def moves_roofline(self) -> bool:
        """Whether the device itself is another one."""
        return (self.compute, self.bandwidth) != (1.0, 1.0)


AS_IT_IS = Factors()


def imagined(prepared: Prepared, speed: Speed, factors: Factors) -> tuple[Prepared, Speed]:
    """The step and the device as they would be."""
    if factors.host != 1:
        prepared = replace(
            prepared, host_us=tuple(launch_us / factors.host for launch_us in prepared.host_us)
        )
        handed = {
            key: (fixed / factors.host, each / factors.host)
            for key, (fixed, each) in speed.calibration.host_us.items()
        }
        speed = replace(speed, calibration=replace(speed.calibration, host_us=handed))
    if not factors.moves_roofline:
        return prepared, speed
    if speed.shares is None:
        return _of_calibrated(prepared, speed, factors)
    # Constants and traits stay those of the real device: they tell its kind of kernels, not its figures.
    device, traits = _device(speed.device, factors), speed.shares.traits
    more = replace(traits, multiprocessors=traits.multiprocessors / factors.compute)
    return prepared, replace(speed, device=device, shares=replace(speed.shares, device=device, traits=more))


def exchanged(alone: Prediction, step: TimedStep, device: Device, gpus: int, link: float) -> Prediction:
    """On several GPUs, with a link that is so many times as fast."""
    if gpus == 1:
        return alone
    # A byte over a link twice as fast costs what half a byte costs over this one; so do buckets of them.
    before = alone_from_step(step)
    backward = tuple(replace(gradient, bytes=gradient.bytes / link) for gradient in before.backward)
    habits = replace(DDP, bucket_bytes=DDP.bucket_bytes / link)
    return together(alone, scale(replace(before, backward=backward), device, gpus, habits))


def said(made: Prediction, device: Device, factors: Factors) -> Prediction:
    """With the interval that times carried to other figures have, and what was imagined."""
    notes = list(made.notes)
    if factors.host != 1 and device.kind == "cpu":
        notes.append(BY_ITSELF)
    if not factors.moves_roofline:
        return replace(made, notes=tuple(notes))
    least = DATA_SHEET + (SCALING if made.gpus > 1 else 0.0)
    width = max(made.interval_s[1] / made.step_s - 1, least)
    notes.append(
        "no such device was ever compared: its figures were multiplied, its kernels stay as they are"
    )
    return replace(
        made,
        interval_s=(made.step_s * (1 - width), made.step_s * (1 + width)),
        basis=f"{made.basis}; with other figures",
        notes=tuple(notes),
    )


def _of_calibrated(prepared: Prepared, speed: Speed, factors: Factors) -> tuple[Prepared, Speed]:
    """Measured kernels keep their excess over the roofline; those below it, in a cache, keep their share."""
    before = speed.calibration
    after = replace(
        before,
        peaks={name: peak * factors.compute for name, peak in before.peaks.items()},
        bandwidth=before.bandwidth * factors.bandwidth,
    )
    times, old, new = prepared.times_us, _bounds(before, prepared), _bounds(after, prepared)
    fills = times / (times + SHORT_US)
    excess = np.maximum(0.0, times - old) / factors.compute**fills
    moved = new * np.minimum(1.0, times / old) + excess
    faster = replace(speed, device=_device(speed.device, factors), calibration=after)
    return replace(prepared, times_us=moved), faster


def _bounds(calibration: Calibration, prepared: Prepared) -> NDArray[np.float64]:
    return np.array([calibration.bound_us(work) for work in prepared.works])


def _device(device: Device, factors: Factors) -> Device:
    peaks = {name: getattr(device, name) for name in _PEAKS}
    more = {name: peak * factors.compute for name, peak in peaks.items() if peak is not None}
    return replace(device, memory_bandwidth_gbs=device.memory_bandwidth_gbs * factors.bandwidth, **more)
