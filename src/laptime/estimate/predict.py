"""From a workload and a device, real or imagined, to a prediction.

What-if factors imagine a device with faster compute, memory, link or host. A kernel's time is its roofline
and an excess over it, as in `datasheet_transfer`: a new figure moves the roofline, more multiprocessors
shrink the excess too. That is how the times of one GPU are carried to another whose data sheet is all that is
known, so it errs as much as that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from laptime import hardware
from laptime.errors import PredictionError
from laptime.estimate.calibration import Calibration
from laptime.estimate.data_parallel import DDP, alone_from_step, scale
from laptime.estimate.datasheet_transfer import SHORT_US
from laptime.estimate.device_speed import Speed, speed_of
from laptime.estimate.op_times import Prepared, TimedStep, predict_step, prepare
from laptime.hardware import PRECISIONS, Device
from laptime.hardware.device import PEAKS
from laptime.model import Phase, Workload
from laptime.model.constants import Source
from laptime.model.layers import layer_seconds
from laptime.model.prediction import LIBRARY_BYTES, ROUNDING, Prediction, account_times

_ERROR = Source(
    "The error that nine in ten predictions stayed within (docs/prediction.md): 77 steps of an H200 whose "
    "host takes less than 0.6 of the step (0.09), 59 others, on hosts that differed by a third (0.37), 567 "
    "on devices left out of the fit (0.26), 8 on a CPU (0.25). Widened by a fifth where constants were "
    "chosen on those rows.",
    unit="of the step",
)
CALIBRATED: Annotated[float, _ERROR] = 0.11
CALIBRATED_HOST: Annotated[float, _ERROR] = 0.4
CALIBRATED_CPU: Annotated[float, _ERROR] = 0.3
DATA_SHEET: Annotated[float, _ERROR] = 0.31
NEVER_COMPARED: Annotated[float, Source("Of devices that nobody compared: a guess.", "of the step")] = 0.5
SCALING: Annotated[float, Source("Added for several GPUs: p90, by GPU and framework.", "of the step")] = 0.15
HOST_BOUND_SHARE: Annotated[float, Source("Host time from which its error counts.", "of the step")] = 0.6
SHOWN_AS_ALL: Annotated[float, Source("What is shown as 100 %.", "of the step")] = 0.995
MOST_GPUS: Annotated[int, Source("Of one node: no larger one was measured.")] = 16
BY_DATA_SHEET = "data sheet, and what an H200 takes"
BY_ITSELF = "host: a CPU has no other host, so its factor changes nothing here"
# A step takes 20 to 60 ms to prepare (the trees of a calibration), and one or two for each device. The last
# few are kept, for the prediction page: the asked batch, a curve of nine, and as many of the batch before;
# a dozen devices and a curve, as they are and imagined, twice over.
KEPT_WORKLOADS, KEPT_STEPS = 24, 96

# Corrects a prediction: from that of one GPU and that of all.
Refine = Callable[[Prediction, Prediction, Device], Prediction]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """A step on one device, with its prediction before a training is known."""

    prepared: Prepared
    speed: Speed
    step: TimedStep
    prediction: Prediction


def predict(workload: Workload, device: Device, **options: Any) -> Prediction:
    """A step on one device; the options are those of `predict_all`."""
    return predict_all(workload, [device], **options)[0]


def predict_all(
    workload: Workload,
    devices: Sequence[Device],
    *,
    samples: int | None = None,
    epochs: int | None = None,
    price_per_hour: float | None = None,
    gpus: int = 1,
    factors: Factors = AS_IT_IS,
    refine: Refine | None = None,
) -> list[Prediction]:
    """The same step on each of several devices; on `gpus` of them in one node, each with its own batch.

    factors  what is imagined of the devices
    refine   a correction by what a run took
    """
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MOST_GPUS:
        raise PredictionError(f"gpus is {gpus}; give a whole number from 1 to {MOST_GPUS}, of one node")
    if gpus > 1 and any(device.kind == "cpu" for device in devices):
        raise PredictionError("several GPUs of a node are predicted, not several CPUs; ask for one")
    if gpus > 1 and workload.mode != "training":
        raise PredictionError(
            "several GPUs exchange gradients, and there are none without training; ask for one GPU"
        )
    for name, value in (("samples", samples), ("epochs", epochs), ("price_per_hour", price_per_hour)):
        if value is not None and not value > 0:
            raise PredictionError(f"{name} is {value}; give a number above 0")
    if not workload.operations:
        raise PredictionError(f"{workload.network} computes nothing; give a network with operations")
    predictions = []
    for device in devices:
        alone = device_step(workload, device, factors)
        made = _on_gpus(alone, gpus, factors.link)
        if refine is not None:
            made = refine(alone.prediction, made, device)
        price = price_per_hour
        if price is None and (example := hardware.price(device)) is not None:
            price = example.dollars_per_hour
        made = replace(made, samples=samples, epochs=epochs, price_per_hour=price)
        predictions.append(_with_factors(made, device, factors))
    return predictions


def device_step(workload: Workload, device: Device, factors: Factors = AS_IT_IS) -> DeviceStep:
    """A step on one device before any correction; the link between GPUs is no part of it."""
    return _device_step(workload, device, speed_of(device).calibration, replace(factors, link=1.0))


@lru_cache(KEPT_STEPS)
def _device_step(
    workload: Workload, device: Device, calibration: Calibration, factors: Factors
) -> DeviceStep:
    prepared, speed = _imagined(_prepared(workload, calibration), speed_of(device), factors)
    step = predict_step(prepared, speed)
    made = prediction(prepared, speed, step)
    return DeviceStep(prepared=prepared, speed=speed, step=step, prediction=made)


_prepared = lru_cache(KEPT_WORKLOADS)(prepare)


def _imagined(prepared: Prepared, speed: Speed, factors: Factors) -> tuple[Prepared, Speed]:
    """The step and the device as they would be."""
    if factors.host != 1:
        host_us = tuple(launch_us / factors.host for launch_us in prepared.host_us)
        prepared = replace(prepared, host_us=host_us)
        handed = {
            key: (fixed / factors.host, each / factors.host)
            for key, (fixed, each) in speed.calibration.host_us.items()
        }
        speed = replace(speed, calibration=replace(speed.calibration, host_us=handed))
    if not factors.moves_roofline:
        return prepared, speed
    device = _imagined_device(speed.device, factors)
    if speed.shares is not None:
        # Constants and traits stay those of the real device: they tell its kind of kernels, not its figures.
        traits = speed.shares.traits
        more = replace(traits, multiprocessors=traits.multiprocessors / factors.compute)
        shares = replace(speed.shares, device=device, traits=more)
        return prepared, replace(speed, device=device, shares=shares)
    # Measured kernels keep their excess over the roofline; those below it, in a cache, keep their share.
    before = speed.calibration
    after = replace(
        before,
        peaks={name: peak * factors.compute for name, peak in before.peaks.items()},
        bandwidth=before.bandwidth * factors.bandwidth,
    )
    times = prepared.times_us
    old, new = (np.array([rates.bound_us(work) for work in prepared.works]) for rates in (before, after))
    fills = times / (times + SHORT_US)
    excess = np.maximum(0.0, times - old) / factors.compute**fills
    moved = new * np.minimum(1.0, times / old) + excess
    return replace(prepared, times_us=moved), replace(speed, device=device, calibration=after)


def _imagined_device(device: Device, factors: Factors) -> Device:
    peaks = {name: getattr(device, name) for name in PEAKS}
    more = {name: peak * factors.compute for name, peak in peaks.items() if peak is not None}
    return replace(device, memory_bandwidth_gbs=device.memory_bandwidth_gbs * factors.bandwidth, **more)


def _on_gpus(single: DeviceStep, gpus: int, link: float) -> Prediction:
    """The prediction for several GPUs, from that of one, with a link that is so many times as fast."""
    alone = single.prediction
    if gpus == 1:
        return alone
    habits = replace(DDP, link_share=DDP.link_share * link)
    every = single.prepared.workload.accumulate
    update = scale(alone_from_step(single.step), single.speed.device, gpus, habits, accumulate=every)
    step_s = update.step_s / every
    added = step_s - alone.step_s
    width = alone.interval_s[1] / alone.step_s - 1 + SCALING
    return replace(
        alone,
        step_s=step_s,
        interval_s=(step_s * (1 - width), step_s * (1 + width)),
        gpus=gpus,
        communication_s=added,
        bottleneck=f"the exchange of gradients: {added / step_s:.0%} of the step"
        if added > 0.3 * step_s
        else alone.bottleneck,
    )


def _with_factors(made: Prediction, device: Device, factors: Factors) -> Prediction:
    """With the interval that times carried to other figures have, and what was imagined."""
    notes = made.notes
    if factors.host != 1 and device.kind == "cpu":
        notes = (*notes, BY_ITSELF)
    if not factors.moves_roofline:
        return replace(made, notes=notes)
    least = DATA_SHEET + (SCALING if made.gpus > 1 else 0.0)
    width = max(made.interval_s[1] / made.step_s - 1, least)
    never = "no such device was ever compared: its figures were multiplied, its kernels stay as they are"
    return replace(
        made,
        interval_s=(made.step_s * (1 - width), made.step_s * (1 + width)),
        basis=f"{made.basis}; with other figures",
        notes=(*notes, never),
    )


def prediction(prepared: Prepared, speed: Speed, step: TimedStep) -> Prediction:
    """The prediction of a timed step on one device, without training time and cost."""
    workload, device = prepared.workload, speed.device
    if speed.shares is not None:
        width = DATA_SHEET if speed.shares.compared else NEVER_COMPARED
    else:
        width = CALIBRATED if speed.hosted else CALIBRATED_CPU
    if speed.hosted and step.host_s > HOST_BOUND_SHARE * step.step_s:
        width = max(width, CALIBRATED_HOST)
    notes = list(workload.notes)
    lacks = device.peak_of(workload.precision).fallback if workload.precision in PRECISIONS else None
    if lacks:
        notes.append(f"{device.name} has {lacks}")
    if speed.shares is not None and not speed.shares.compared:
        notes.append(
            f"no step on such a device ({device.architecture or 'of no known architecture'}) was ever "
            "compared with a prediction: its interval is a guess"
        )
    peak = workload.memory.peak if device.kind == "cpu" else prepared.peak_bytes + LIBRARY_BYTES
    times: dict[str, dict[Phase, float]] = {name: dict.fromkeys(Phase, 0.0) for name in workload.layers}
    for timed in step.operations:
        operation = timed.operation
        times.setdefault(operation.layer, dict.fromkeys(Phase, 0.0))[operation.phase] += timed.span_s
    layers = tuple(layer_seconds(name, seconds) for name, seconds in times.items())
    return Prediction(
        network=workload.network,
        device=device.name,
        batch=workload.batch,
        precision=workload.precision,
        mode=workload.mode,
        step_s=step.step_s,
        interval_s=(step.step_s * (1 - width), step.step_s * (1 + width)),
        busy_s=step.busy_s,
        host_s=step.host_s,
        phases=account_times(layers),
        layer_times=layers,
        bottleneck=bottleneck(step),
        uncovered=workload.uncovered,
        peak_memory_bytes=peak,
        reserved_memory_bytes=int(peak * (1 if device.kind == "cpu" else ROUNDING)),
        device_memory_bytes=device.memory_bytes,
        basis=speed.calibration.basis if speed.measured else BY_DATA_SHEET,
        notes=tuple(notes),
        watts=device.tdp_w,
    )


def bottleneck(step: TimedStep) -> str:
    """The resource that limits the step."""
    idle = 1 - step.busy_s / step.step_s
    if idle > 0.2:
        more = "; a larger batch costs little" if idle > 0.5 else ""
        return f"the host: the device waits for it {idle:.0%} of the time{more}"
    host = step.host_s / step.step_s
    if host >= SHOWN_AS_ALL:  # host-bound, however busy the device is
        return f"the host: it takes all of the step, and the device waits for it {idle:.0%} of the time"
    near = f"; the host takes {host:.0%} of the step beside it" if host > HOST_BOUND_SHARE else ""
    compute = sum(timed.device_s for timed in step.operations if timed.operation.flops)
    if compute > 0.5 * step.busy_s:
        share, what = compute / step.busy_s, "matrix products and convolutions"
    else:
        share, what = 1 - compute / step.busy_s, "memory traffic"
    return f"{what}: {share:.0%} of the device's time{near}"
