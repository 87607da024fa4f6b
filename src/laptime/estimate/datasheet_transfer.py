"""How fast a device without a calibration runs what was measured on an H200.

An operation's time on an H200 is its bound (the longer of computing and moving) and an excess. On another
device the bound follows from the data sheet. The excess is time that multiprocessors spend on something else
than the bound's resource, so it follows their number and clock; an operation that lasts a few microseconds
does not fill them, and follows the clock alone. Then a constant for the bound and one for the excess of each
class of work, and three for what data sheets do not say: how well vector units are fed, by how many of them
share a multiprocessor, and how far a clock sinks on a card with little power for its architecture.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np

from laptime import hardware
from laptime.estimate.calibration import TYPES, Floats, Work
from laptime.hardware import Device
from laptime.model.constants import Source

# The errors in docs/prediction.md are of constants fitted without the device in question. The CPUs' passes
# were of compiled networks, batch 1: nothing better is published.
_FITTED = (
    "Fitted by `python -m benchmarks.data_sheet REFERENCE --constants` to 567 steps on 24 GPUs, and to 94 "
    "forward passes on two CPUs."
)
_LEFT_OUT = "Chosen by the errors of devices left out of the fit."
_LANES = Source("Vector units of a multiprocessor: below are 64, above Kepler's 192.")
SHORT_US: Annotated[float, Source(f"An operation that fills half of the multiprocessors. {_LEFT_OUT}")] = 10.0
NARROW: Annotated[int, _LANES] = 96
WIDE: Annotated[int, _LANES] = 160
POWER_SLACK: Annotated[float, Source(f"Of the usual watts that keep the clock. {_LEFT_OUT}")] = 0.75
TENSOR, MATRIX, VECTOR = "tensor", "matrix", "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What was fitted. A class of work missing from a table has 1."""

    bound: Annotated[Mapping[str, float], Source(f"Factor of the bound. {_FITTED}")]
    excess: Annotated[Mapping[str, float], Source(f"Factor of the time beyond the bound. {_FITTED}")]
    narrow: Annotated[float, Source(f"Bound where few vector units share a multiprocessor. {_FITTED}")] = 1.0
    wide: Annotated[float, Source(f"The same where many do. {_FITTED}")] = 1.0
    throttle: Annotated[float, Source(f"Power of (usual / own watts for a FLOP/s). {_FITTED}")] = 0.0


GPU = Constants(
    bound={
        "batch norm": 2.72,
        "convolution, tensor": 1.07,
        "convolution, vector": 1.6,
        "depthwise": 0.92,
        "memory": 1.11,
        "product, matrix": 1.24,
        "product, tensor": 1.01,
        "product, vector": 1.44,
        "winograd, vector": 0.38,  # 3x3 convolutions: Winograd's algorithm multiplies 2.25 times less
    },
    excess={
        "batch norm": 0.36,  # in bf16 the H200's is nine times its bound, others' is not
        "convolution, tensor": 0.9,
        "convolution, vector": 0.33,
        "depthwise": 0.7,
        "memory": 0.38,
        "product, matrix": 1.31,
        "product, tensor": 1.52,
        "product, vector": 0.49,
        "winograd, vector": 1.32,
    },
    narrow=0.81,
    wide=2.25,
    throttle=1.03,
)
CPU = Constants(
    bound={
        "convolution, vector": 1.77,
        "depthwise": 1.22,
        "memory": 3.0,
        "product, vector": 2.53,
        "winograd, vector": 2.68,
    },
    excess={},
)
# Where kernels starve as on an H200: its own architecture, or at least its bandwidth. There nothing is to
# be corrected but AMD's products. No measurement of such a device yet.
_AMD = "product, matrix"
SAME = Constants(bound={_AMD: GPU.bound[_AMD]}, excess={_AMD: GPU.excess[_AMD]}, throttle=GPU.throttle)


# Of which steps were compared with what came out; elsewhere nobody knows how right it is.
COMPARED = (
    *("kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "blackwell"),
    *("cdna", "cdna2", "cascade-lake", "alder-lake"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Operations on a device before any constant, each in microseconds."""

    classes: tuple[str, ...]
    compute_us: Floats
    memory_us: Floats
    excess_us: Floats

    def times_us(self, constants: Constants, traits: Traits) -> Floats:
        """How long each operation takes."""
        slowed = traits.power**-constants.throttle
        fed = {NARROW: constants.narrow, WIDE: constants.wide, None: 1.0}[traits.units]
        feeding = {name: fed if name.endswith(VECTOR) else 1.0 for name in set(self.classes)}
        compute = self.compute_us * np.array([feeding[name] for name in self.classes]) * slowed
        bound = np.array([constants.bound.get(name, 1.0) for name in self.classes])
        excess = np.array([constants.excess.get(name, 1.0) for name in self.classes])
        times: Floats = bound * np.maximum(compute, self.memory_us) + excess * self.excess_us * slowed
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What sets a device apart, beyond its peaks and its bandwidth."""

    power: float  # watts for a FLOP/s over the architecture's usual ones; 1 where there is enough
    units: int | None  # NARROW, WIDE, or neither
    clock: float  # of the H200 over that of the device
    multiprocessors: float  # the same of their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A device by its data sheet."""

    device: Device
    traits: Traits
    constants: Constants

    @property
    def compared(self) -> bool:
        """Whether a device of its architecture, and with such memory, was ever compared."""
        return self.device.architecture in COMPARED and self.constants is not SAME

    def times_us(self, work_classes: Sequence[str], works: Sequence[Work], measured_us: Floats) -> Floats:
        """Microseconds on the device, from those on an H200."""
        made = parts(self.device, self.traits, work_classes, works, measured_us)
        return made.times_us(self.constants, self.traits)


def shares(device: Device) -> Shares:
    """What is known of a device that was never calibrated."""
    h200 = _h200()
    constants = CPU if device.kind == "cpu" else GPU
    if device.kind != "cpu" and (
        device.architecture == h200.architecture or device.memory_bandwidth >= h200.memory_bandwidth
    ):
        constants = SAME
    return Shares(device=device, traits=traits(device), constants=constants)


def traits(device: Device) -> Traits:
    """From the figures of a data sheet; what it lacks is taken to be as on the H200."""
    h200 = _h200()
    cycles = 0.0
    if device.sms and device.clock_mhz and device.fp32:
        cycles = device.sms * device.clock_mhz * 1e6
    lanes = device.fp32 * 1e12 / (2 * cycles) if cycles and device.fp32 else 128.0
    nvidia = device.kind == "gpu" and device.fp32_matrix is None
    units = NARROW if lanes < NARROW else WIDE if lanes > WIDE else None
    power, usual = 1.0, _usual_power(device.architecture)
    if device.kind == "gpu" and device.tdp_w and device.fp32 and usual is not None:
        power = min(1.0, device.tdp_w / device.fp32 / usual / POWER_SLACK)
    return Traits(
        power=power,
        units=units if nvidia else None,
        clock=(h200.clock_mhz or 1.0) / device.clock_mhz if cycles and device.clock_mhz else 1.0,
        multiprocessors=(h200.sms or 1) / device.sms
        if cycles and device.sms
        else h200.memory_bandwidth / device.memory_bandwidth,
    )


def parts(
    device: Device, traits: Traits, work_classes: Sequence[str], works: Sequence[Work], measured_us: Floats
) -> Parts:
    """The bounds on the device, and the excess over the bound on an H200, scaled to the device."""
    flops = np.array([work.flops for work in works], float)
    moved = np.array([work.bytes for work in works], float)
    names = [TYPES.get(work.multiplies_in, "fp32") for work in works]

    def bounds_us(of: Device) -> tuple[Floats, Floats]:
        peaks = {name: of.peak(name) for name in TYPES.values()}
        return flops / np.array([peaks[name] for name in names]) * 1e6, moved / of.memory_bandwidth * 1e6

    compute_us, memory_us = bounds_us(device)
    on_h200 = np.maximum(*bounds_us(_h200()))
    fills = measured_us / (measured_us + SHORT_US)
    excess_us = np.maximum(0.0, measured_us - on_h200) * traits.clock * traits.multiprocessors**fills
    known = (
        np.array([work_class != "fixed norm" for work_class in work_classes])
        if device.kind == "gpu"
        else False
    )
    return Parts(
        classes=tuple(
            _class(device, work_class, name) for work_class, name in zip(work_classes, names, strict=True)
        ),
        compute_us=compute_us,
        memory_us=memory_us,
        excess_us=np.where(known, excess_us, 0.0),
    )


def _class(device: Device, work_class: str, precision: str) -> str:
    """The class of work, and for matrix work the units that do it: their kernels reach unlike shares."""
    if work_class == "fixed norm":
        return "memory"
    if work_class in ("memory", "batch norm", "depthwise"):
        return work_class
    figure = device.peak_of(precision).figure
    units = {"fp32": VECTOR, "fp16_vector": VECTOR, "fp32_matrix": MATRIX}.get(figure, TENSOR)
    if units != VECTOR and work_class == "winograd":
        work_class = "convolution"
    if units == MATRIX and work_class == "convolution":
        units = TENSOR  # nothing is known of AMD's
    return f"{work_class}, {units}"


@cache
def _usual_power(architecture: str | None) -> float | None:
    """Watts for 10¹² FLOP/s of fp32: the median of the catalog's GPUs of that architecture."""
    ratios = [
        device.tdp_w / device.fp32
        for device in hardware.devices()
        if device.kind == "gpu" and device.architecture == architecture and device.tdp_w and device.fp32
    ]
    return statistics.median(ratios) if ratios else None


@cache
def _h200() -> Device:
    return hardware.device("h200")
