"""Every constant that a prediction used, with its source, and the kinds of operations that its time goes to.

Constants are declared with their sources in the modules that use them (`model.constants`): a new one shows up
here by itself, and no figure is written down twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from laptime import hardware
from laptime.estimate import (
    calibration,
    data_parallel,
    dataflow,
    datasheet_transfer,
    launch_queue,
    op_times,
    predict,
)
from laptime.estimate.device_speed import Speed, speed_of
from laptime.estimate.features import TYPES, work
from laptime.hardware import Device
from laptime.model import Phase, Workload, prediction
from laptime.model.constants import Constant, of_module, of_value, unit_of
from laptime.model.prediction import Prediction

MODULES = (op_times, launch_queue, calibration, prediction, predict)
_PEAKS = ("fp", "bf", "tf")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTime:
    """The operations of one kind in a step."""

    kind: str
    phase: str
    count: int
    seconds: float  # of the device
    share: float  # of the device's time
    of_bound: float  # roofline time over predicted time


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The constants of a prediction, and its time by kind."""

    prediction: Prediction
    constants: tuple[Constant, ...]
    kinds: tuple[KindTime, ...]  # the longest first


def explain(workload: Workload, device: Device, made: Prediction, *, flows: bool = False) -> Explanation:
    """Of a prediction that was made for the workload on the device; `flows`: with its data flow."""
    speed = speed_of(device)
    constants = [*_of_device(device, made), *_of_calibration(speed)]
    modules = [*MODULES]
    for module, used in (
        (datasheet_transfer, not speed.measured),
        (data_parallel, made.gpus > 1),
        (dataflow, flows),
    ):
        modules += [module] if used else []
    for module in modules:
        constants += (constant for constant in of_module(module) if _concerns(constant, device))
    if made.gpus > 1:
        constants += of_value(data_parallel.DDP)
    constants += _of_workload(workload)
    width = made.interval_s[1] / made.step_s - 1
    constants.append(
        Constant(
            name="interval",
            value=width,
            unit="of the step",
            source="chosen from the errors above",
        )
    )
    return Explanation(prediction=made, constants=tuple(constants), kinds=kinds(workload, speed))


def kinds(workload: Workload, speed: Speed) -> tuple[KindTime, ...]:
    """Where the device's time goes, by kind and phase."""
    step = op_times.predict_step(op_times.prepare(workload, speed.calibration), speed)
    totals: dict[tuple[str, str], list[float]] = {}
    for timed in step.operations:
        operation = timed.operation
        if operation is op_times.BETWEEN:
            continue
        if operation.phase is Phase.UPDATE:  # memory passes without a fitted model
            bound_s = operation.moved / speed.bandwidth
        else:
            bound_s = speed.bound_us(work(operation)) * 1e-6
        sums = totals.setdefault((operation.kind, operation.phase.value), [0, 0.0, 0.0])
        for place, value in enumerate((1, timed.device_s, bound_s)):
            sums[place] += value
    busy = sum(seconds for _, seconds, _ in totals.values()) or 1.0
    made = [
        KindTime(
            kind=kind,
            phase=phase,
            count=int(count),
            seconds=seconds,
            share=seconds / busy,
            of_bound=bound_s / seconds if seconds else 0.0,
        )
        for (kind, phase), (count, seconds, bound_s) in totals.items()
    ]
    return tuple(sorted(made, key=lambda kind_time: -kind_time.seconds))


def _concerns(one: Constant, device: Device) -> bool:
    """Constants of single devices stand in dictionaries by the beginnings of their names."""
    of = one.name.partition("[")[2].partition("]")[0]
    return (
        not of
        or device.name.startswith(of)
        or not any(known.name.startswith(of) for known in hardware.devices())
    )


def _of_device(device: Device, made: Prediction) -> Iterator[Constant]:
    used = ["memory_bandwidth_gbs", "memory_gib", "tdp_w", "host_link", "gpu_link"]
    used[1:1] = dict.fromkeys(device.peak_of(precision).figure for precision in TYPES.values())
    for figure in used:
        value = getattr(device, figure)
        if value is None:
            continue
        source = device.sources.get(figure, "no source")
        guess = " (estimated)" if figure in device.estimated else ""
        unit = "TFLOP/s" if figure.startswith(_PEAKS) else unit_of(figure)
        yield Constant(name=f"{device.name}: {figure}", value=value, unit=unit, source=source + guess)
    for precision in TYPES.values():
        if (peak := device.peak_of(precision)).fallback:
            yield Constant(name=f"{device.name}: {precision}", value=peak.flops / 1e12, unit="TFLOP/s",
                           source=peak.fallback)  # fmt: skip
    for name in dict.fromkeys((device.host_link, device.gpu_link)):
        if name is not None:
            joint = hardware.link(name)
            for figure in ("bandwidth_gbs", "latency_us"):
                yield Constant(
                    name=f"{name}: {figure}",
                    value=getattr(joint, figure),
                    unit=unit_of(figure),
                    source=joint.sources.get(figure, "no source"),
                )
    price = hardware.price(device)
    if made.price_per_hour is not None:
        own = price is None or price.dollars_per_hour != made.price_per_hour
        source = "given" if own or price is None else f"{price.source} ({price.date})"
        yield Constant(name="price_per_hour", value=made.price_per_hour, unit="$/h", source=source)


def _of_calibration(speed: Speed) -> Iterator[Constant]:
    rates = speed.calibration
    if speed.measured:
        where = f"calibration of {rates.device}"
        for dtype, peak in rates.peaks.items():
            yield Constant(name=f"peak of {dtype}", value=peak / 1e12, unit="TFLOP/s", source=where)
        yield Constant(name="bandwidth", value=rates.bandwidth / 1e9, unit="GB/s", source=where)
    models = "of this device" if speed.measured else "of an H200, carried over by estimate.datasheet_transfer"
    names = ", ".join(sorted({kind for kind, _ in rates.forests}))
    yield Constant(
        name="models of operations",
        value=len(rates.forests),
        unit="kinds and types",
        source=f"calibration {models}: {names}",
    )
    for name, value in rates.facts.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield Constant(name=f"calibration: {name}", value=value, unit="", source="recorded with it")
    if speed.shares is not None:
        yield from of_value(speed.shares.constants)


def _of_workload(workload: Workload) -> Iterator[Constant]:
    update = next(iter(workload.phase(Phase.UPDATE)), None)
    if update is not None:
        source = "torch's multi-tensor implementation (ops.optimizers)"
        yield Constant(name=update.name, value=update.sizes["passes"], unit="passes over the parameters",
                       source=source)  # fmt: skip
