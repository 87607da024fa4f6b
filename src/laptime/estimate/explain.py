"""Every constant that a prediction used, with its source, and the kinds of operations that its time goes to.

Constants are declared with their sources in the modules that use them (`model.constants`): a new one shows up
here by itself, and no figure is written down twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from laptime import hardware
from laptime.estimate import calibration, data_parallel, dataflow, datasheet_transfer, op_times, predict
from laptime.estimate.calibration import TYPES
from laptime.estimate.device_speed import Speed, speed_of
from laptime.hardware import Device
from laptime.hardware.device import PEAKS
from laptime.model import Phase, Workload, prediction
from laptime.model.constants import Constant, of_module, of_value, unit_of
from laptime.model.prediction import Prediction


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

    constants: tuple[Constant, ...]
    kinds: tuple[KindTime, ...]  # the longest first


def explain(workload: Workload, device: Device, made: Prediction, *, flows: bool = False) -> Explanation:
    """Of a prediction that was made for the workload on the device; `flows`: with its data flow."""
    speed = speed_of(device)
    modules = [op_times, calibration, prediction, predict]
    modules += [] if speed.measured else [datasheet_transfer]
    modules += [data_parallel] if made.gpus > 1 else []
    modules += [dataflow] if flows else []
    catalog = [known.name for known in hardware.devices()]

    def concerns(constant: Constant) -> bool:
        """Constants of single devices stand in dictionaries by the beginnings of their names."""
        of = constant.name.partition("[")[2].partition("]")[0]
        return not of or device.name.startswith(of) or not any(name.startswith(of) for name in catalog)

    constants = [*_of_device(device, made), *_of_calibration(speed)]
    constants += (constant for module in modules for constant in of_module(module) if concerns(constant))
    if made.gpus > 1:
        constants += of_value(data_parallel.DDP)
    update = next(iter(workload.phase(Phase.UPDATE)), None)
    if update is not None:
        implementation = "torch's multi-tensor implementation (ops.optimizers)"
        passes = update.sizes["passes"]
        constants.append(Constant(update.name, passes, "passes over the parameters", implementation))
    width = made.interval_s[1] / made.step_s - 1
    constants.append(Constant("interval", width, "of the step", "chosen from the errors above"))
    return Explanation(constants=tuple(constants), kinds=kinds(workload, speed))


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
            bound_s = speed.bound_us(calibration.work(operation)) * 1e-6
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


def _of_device(device: Device, made: Prediction) -> Iterator[Constant]:
    used = ["memory_bandwidth_gbs", "memory_gib", "tdp_w", "host_link", "gpu_link"]
    used[1:1] = dict.fromkeys(device.peak_of(precision).figure for precision in TYPES.values())
    for figure in used:
        value = getattr(device, figure)
        if value is None:
            continue
        guess = " (estimated)" if figure in device.estimated else ""
        unit = "TFLOP/s" if figure in PEAKS else unit_of(figure)
        source = device.sources.get(figure, "no source") + guess
        yield Constant(f"{device.name}: {figure}", value, unit, source)
    for precision in TYPES.values():
        if (peak := device.peak_of(precision)).fallback:
            yield Constant(f"{device.name}: {precision}", peak.flops / 1e12, "TFLOP/s", peak.fallback)
    for name in dict.fromkeys((device.host_link, device.gpu_link)):
        if name is not None:
            joint = hardware.link(name)
            for figure in ("bandwidth_gbs", "latency_us"):
                source = joint.sources.get(figure, "no source")
                yield Constant(f"{name}: {figure}", getattr(joint, figure), unit_of(figure), source)
    price = hardware.price(device)
    if made.price_per_hour is not None:
        given = price is None or price.dollars_per_hour != made.price_per_hour
        source = "given" if given or price is None else f"{price.source} ({price.date})"
        yield Constant("price_per_hour", made.price_per_hour, "$/h", source)


def _of_calibration(speed: Speed) -> Iterator[Constant]:
    rates = speed.calibration
    if speed.measured:
        where = f"calibration of {rates.device}"
        for dtype, peak in rates.peaks.items():
            yield Constant(f"peak of {dtype}", peak / 1e12, "TFLOP/s", where)
        yield Constant("bandwidth", rates.bandwidth / 1e9, "GB/s", where)
    models = "of this device" if speed.measured else "of an H200, carried over by estimate.datasheet_transfer"
    source = f"calibration {models}: {', '.join(sorted({kind for kind, _ in rates.forests}))}"
    yield Constant("models of operations", len(rates.forests), "kinds and types", source)
    for name, value in rates.facts.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield Constant(f"calibration: {name}", value, "", "recorded with it")
    if speed.shares is not None:
        yield from of_value(speed.shares.constants)
