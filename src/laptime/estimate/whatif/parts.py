"""The parts of an answer: a row for each device; of the one that is shown, its layers and its curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from laptime.errors import LaptimeError, WorkloadError
from laptime.estimate.choose_device import as_shown
from laptime.estimate.dataflow_step import assumptions
from laptime.estimate.device_speed import speed_of
from laptime.estimate.largest_batch import MOST
from laptime.estimate.whatif.memory import around, largest_batch
from laptime.estimate.whatif.question import Question
from laptime.estimate.whatif.steps import at_batch
from laptime.estimate.whatif.training import Asked, fed, predicted, step_on
from laptime.files.text import first_line
from laptime.hardware import Device
from laptime.model import Workload
from laptime.model.prediction import Prediction

COUNTS = (1, 2, 4, 8)  # GPUs of the curve
DOUBLINGS = 3  # of the batch, to either side of the curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network at the asked batch, and what other batches are made from."""

    workload: Workload
    base: Workload | None  # None: a batch of one sample cannot be rescaled

    def at(self, batch: int) -> Workload:
        """At any batch."""
        if batch == self.workload.batch:
            return self.workload
        if self.base is None:
            raise WorkloadError("one sample does not tell what grows with the batch; read a step with two")
        return at_batch(self.base, batch)

    @property
    def batches(self) -> list[int]:
        """Powers of two around the asked one, and itself."""
        if self.base is None:
            return [self.workload.batch]
        middle = round(math.log2(self.workload.batch))
        powers = {2**power for power in range(max(0, middle - DOUBLINGS), middle + DOUBLINGS + 1)}
        return sorted(batch for batch in powers | {self.workload.batch} if batch <= MOST)


def predictions(
    common: Asked, subject: Subject, found: Mapping[str, Device]
) -> tuple[dict[str, Prediction], list[dict[str, Any]]]:
    """Predictions by device, and error rows for the devices that failed."""
    made: dict[str, Prediction] = {}
    failed = []
    for name, device in found.items():
        try:
            made[name] = predicted(common, subject.workload, device)
        except LaptimeError as error:
            failed.append({"device": name, "title": device.title, "error": first_line(error)})
    return made, failed


def ordered(question: Question, made: Mapping[str, Prediction]) -> dict[str, Prediction]:
    """The cheapest or the fastest first, equal ones by the other and by name; what does not fit is last."""
    whole = question.samples is not None and question.epochs is not None
    by_cost = (question.sort or ("cost" if whole else "time")) == "cost"

    def place(name: str) -> tuple[float | str, ...]:
        prediction = made[name]
        cost = prediction.dollars
        if cost is None:
            price = prediction.price_per_hour
            cost = math.inf if price is None else price * prediction.gpus / prediction.samples_per_s
        cost, time = as_shown(cost), as_shown(1 / prediction.samples_per_s)
        return (float(prediction.fits is False), *((cost, time) if by_cost else (time, cost)), name)

    return {name: made[name] for name in sorted(made, key=place)}


def answered(
    common: Asked,
    subject: Subject,
    found: Mapping[str, Device],
    made: Mapping[str, Prediction],
    shown: str | None,
) -> dict[str, Any]:
    """Rows in the order of `made`; layers, curves and data flow of the device that is shown."""
    largest = _largest(common.as_it_is(), subject, {name: found[name] for name in made}, shown)
    told: dict[str, Any] = {
        "rows": [_row(prediction, found[name], largest.get(name)) for name, prediction in made.items()],
        "layers": [],
        "by_batch": [],
        "by_gpus": [],
        "data_flow": [],
    }
    if shown is None:
        return told
    device = found[shown]
    told["layers"] = _layers(made[shown])
    for batch in subject.batches:
        with suppress(LaptimeError):  # a batch that cannot be read is no point of the curve
            told["by_batch"].append(_point(predicted(common, subject.at(batch), device)))
    for count in COUNTS:
        with suppress(LaptimeError):  # a CPU, a forward pass, a device without a link
            told["by_gpus"].append(_point(predicted(common, subject.workload, device, count)))
    flow = fed(common, subject.workload, device)
    told["data_flow"] = [] if flow is None else list(assumptions(flow))
    return told


def _row(one: Prediction, device: Device, largest: int | None) -> dict[str, Any]:
    low, high = (end / one.step_s for end in one.interval_s)
    hours = None if one.training_s is None else one.training_s / 3600
    return _point(one) | {
        "device": device.name,
        "title": device.title,
        "epoch_s": one.epoch_s,
        "hours_interval": None if hours is None else [hours * low, hours * high],
        "dollars_interval": None if one.dollars is None else [one.dollars * low, one.dollars * high],
        "price_per_hour": one.price_per_hour,
        "kilowatt_hours": one.kilowatt_hours,
        "communication_s": one.communication_s,
        "device_memory_bytes": one.device_memory_bytes,
        "largest_batch": largest,
        "bottleneck": one.bottleneck,
        "basis": one.basis,
        "calibrated": speed_of(device).measured,
        "notes": one.notes,
        "uncovered": one.uncovered,
    }


def _point(one: Prediction) -> dict[str, Any]:
    """What a curve shows, and a row too."""
    return {
        "batch": one.batch,
        "gpus": one.gpus,
        "step_s": one.step_s,
        "interval_s": one.interval_s,
        "samples_per_s": one.samples_per_s,
        "hours": None if one.training_s is None else one.training_s / 3600,
        "dollars": one.dollars,
        "peak_memory_bytes": one.peak_memory_bytes,
        "reserved_memory_bytes": one.reserved_memory_bytes,
        "fits": one.fits,
    }


def _layers(one: Prediction) -> list[dict[str, Any]]:
    return [
        {
            "name": layer.layer,
            "forward_s": layer.forward_s,
            "backward_s": layer.backward_s,
            "update_s": layer.update_s,
            "total_s": layer.total_s,
        }
        for layer in one.layers()
        if layer.total_s
    ]


def _largest(
    common: Asked, subject: Subject, found: Mapping[str, Device], shown: str | None
) -> dict[str, int | None]:
    """Largest batch by device. GPUs with the same calibration need the same memory, so one is evaluated."""
    groups: dict[tuple[int, str], list[Device]] = {}
    for name in sorted(
        found, key=lambda name: name != shown
    ):  # the shown device first: its steps are cached for the curve
        device = found[name]
        groups.setdefault((id(speed_of(device).calibration), device.kind), []).append(device)
    largest: dict[str, int | None] = {}
    for group in groups.values():
        limits = [member.memory_bytes for member in group if member.memory_bytes is not None]
        needs: dict[int, float] = {}
        if limits and subject.base is not None:

            def need(batch: int, first: Device = group[0]) -> float:
                return step_on(common, subject.at(batch), first).prediction.reserved_memory_bytes

            needs = around({batch: need(batch) for batch in subject.batches}, limits, need)
        largest |= {member.name: largest_batch(needs, member.memory_bytes) for member in group}
    return largest
