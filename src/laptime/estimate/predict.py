"""From a workload and a device to a prediction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from laptime import hardware
from laptime.errors import PredictionError
from laptime.estimate.data_parallel import Scaled, alone_from_step, scale
from laptime.estimate.device_speed import Speed, basis, speed_of
from laptime.estimate.op_times import Prepared, TimedStep, predict_step, prepare
from laptime.hardware import PRECISIONS, Device
from laptime.model import Account, Phase, Workload
from laptime.model.constants import Source
from laptime.model.layers import LayerSeconds
from laptime.model.prediction import LIBRARY_BYTES, ROUNDING, Prediction

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


def predict(workload: Workload, device: Device, **training: Any) -> Prediction:
    """One device, one step after the other. `training`: samples, epochs and price_per_hour."""
    return predict_all(workload, [device], **training)[0]


def predict_all(
    workload: Workload,
    devices: Sequence[Device],
    *,
    samples: int | None = None,
    epochs: int | None = None,
    price_per_hour: float | None = None,
    gpus: int = 1,
) -> list[Prediction]:
    """The same step on each of several devices; on `gpus` of them in one node, each with its own batch."""
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
    prepared: dict[int, Prepared] = {}  # by the calibration that devices share
    predictions = []
    for device in devices:
        speed = speed_of(device)
        key = id(speed.calibration)  # the caches of `devices` keep it alive
        if key not in prepared:
            prepared[key] = prepare(workload, speed.calibration)
        step = predict_step(prepared[key], speed)
        price = price_per_hour if price_per_hour is not None else _example(device)
        alone = prediction(prepared[key], speed, step)
        alone = replace(alone, samples=samples, epochs=epochs, price_per_hour=price)
        predictions.append(
            alone if gpus == 1 else together(alone, scale(alone_from_step(step), device, gpus))
        )
    return predictions


def together(alone: Prediction, scaled: Scaled) -> Prediction:
    """The prediction for several GPUs, from that of one."""
    added = scaled.step_s - alone.step_s
    width = alone.interval_s[1] / alone.step_s - 1 + SCALING
    return replace(
        alone,
        step_s=scaled.step_s,
        interval_s=(scaled.step_s * (1 - width), scaled.step_s * (1 + width)),
        gpus=scaled.gpus,
        communication_s=added,
        bottleneck=f"the exchange of gradients: {added / scaled.step_s:.0%} of the step"
        if added > 0.3 * scaled.step_s
        else alone.bottleneck,
    )


def _example(device: Device) -> float | None:
    price = hardware.price(device)
    return None if price is None else price.dollars_per_hour


def _notes(workload: Workload, speed: Speed) -> tuple[str, ...]:
    """Assumptions about the network and the device."""
    notes = list(workload.notes)
    lacks = speed.device.peak_of(workload.precision).fallback if workload.precision in PRECISIONS else None
    if lacks:
        notes.append(f"{speed.device.name} has {lacks}")
    if speed.shares is not None and not speed.shares.compared:
        notes.append(
            f"no step on such a device ({speed.device.architecture or 'of no known architecture'}) was ever "
            "compared with a prediction: its interval is a guess"
        )
    return tuple(notes)


def prediction(prepared: Prepared, speed: Speed, step: TimedStep) -> Prediction:
    """The prediction of a timed step on one device, without training time and cost."""
    workload, device = prepared.workload, speed.device
    width = _width(speed, step)
    peak = workload.memory.peak if device.kind == "cpu" else prepared.peak_bytes + LIBRARY_BYTES
    phases: dict[Account, float] = defaultdict(float)
    for timed in step.operations:
        phases[timed.operation.account] += timed.span_s
    return Prediction(
        network=workload.network,
        device=device.name,
        batch=workload.batch,
        precision=workload.precision,
        mode=workload.mode,
        step_s=step.step_s,
        interval_s=(step.step_s * (1 - width), step.step_s * (1 + width)),
        busy_s=step.played.busy_s,
        host_s=step.played.host_s,
        phases=dict(phases),
        layer_times=_layers(workload, step),
        bottleneck=bottleneck(step),
        uncovered=workload.uncovered,
        peak_memory_bytes=peak,
        reserved_memory_bytes=int(peak * (1 if device.kind == "cpu" else ROUNDING)),
        device_memory_bytes=device.memory_bytes,
        basis=basis(speed.calibration) if speed.measured else BY_DATA_SHEET,
        notes=_notes(workload, speed),
        watts=device.tdp_w,
    )


def _width(speed: Speed, step: TimedStep) -> float:
    """Half the interval, relative to the step."""
    if speed.shares is not None:
        own = DATA_SHEET if speed.shares.compared else NEVER_COMPARED
    else:
        own = CALIBRATED if speed.hosted else CALIBRATED_CPU
    near = speed.hosted and step.played.host_s > HOST_BOUND_SHARE * step.step_s
    return max(own, CALIBRATED_HOST) if near else own


def _layers(workload: Workload, step: TimedStep) -> tuple[LayerSeconds, ...]:
    layers: dict[str, dict[Phase, float]] = {name: defaultdict(float) for name in workload.layers}
    for timed in step.operations:
        layers.setdefault(timed.operation.layer, defaultdict(float))[timed.operation.phase] += timed.span_s
    return tuple(
        LayerSeconds(
            layer=name,
            forward_s=times[Phase.FORWARD],
            backward_s=times[Phase.BACKWARD],
            update_s=times[Phase.UPDATE],
        )
        for name, times in layers.items()
    )


def bottleneck(step: TimedStep) -> str:
    """The resource that limits the step."""
    idle = 1 - step.played.busy_s / step.step_s
    if idle > 0.2:
        more = "; a larger batch costs little" if idle > 0.5 else ""
        return f"the host: the device waits for it {idle:.0%} of the time{more}"
    host = step.played.host_s / step.step_s
    if host >= SHOWN_AS_ALL:  # host-bound, however busy the device is
        return f"the host: it takes all of the step, and the device waits for it {idle:.0%} of the time"
    near = f"; the host takes {host:.0%} of the step beside it" if host > HOST_BOUND_SHARE else ""
    compute = sum(timed.device_s for timed in step.operations if timed.operation.flops)
    if compute > 0.5 * step.played.busy_s:
        share, what = compute / step.played.busy_s, "matrix products and convolutions"
    else:
        share, what = 1 - compute / step.played.busy_s, "memory traffic"
    return f"{what}: {share:.0%} of the device's time{near}"
