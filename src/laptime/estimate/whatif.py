"""The prediction page: what it asks, from a URL's query, and the answer.

Every number equals that of `laptime predict` for the same network, device, batch and GPUs, except where
what-if factors apply. Bounds keep an answer cheap: its cost grows with the number of devices alone, and no
name is a path. Workloads and steps are kept by `predict`: a caller that hands the same objects in gets
answers in tens of milliseconds.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from laptime.errors import LaptimeError, PredictionError
from laptime.estimate import device_speed
from laptime.estimate.choose_device import as_shown
from laptime.estimate.dataflow import DataFlow, Feed, feed, waited
from laptime.estimate.largest_batch import MOST, bracketed, interpolated
from laptime.estimate.predict import AS_IT_IS, KEPT_WORKLOADS, DeviceStep, Factors, device_step, predict
from laptime.estimate.run_correction import Correction, correct, measured_step, refined
from laptime.files.text import first_line, one_line
from laptime.files.write import plain
from laptime.hardware import Device
from laptime.model import Phase, Workload
from laptime.model.prediction import LIBRARY_BYTES, Prediction
from laptime.ops.optimizers import temporaries
from laptime.ops.rescaling import rescaled
from laptime.runs import Run

# Rentable today, each with an example price in the catalog: from 16 to 192 GiB, one or two of every
# generation since Turing, and one of AMD's. Slowest first.
DOZEN = (
    *("t4", "l4", "a10g", "rtx-3090", "rtx-4090", "rtx-5090"),
    *("l40s", "a100-sxm-80gb", "h100-sxm", "h200", "b200", "mi300x"),
)
LIMITS: Mapping[str, tuple[float, float]] = {
    "batch": (1, MOST),
    "gpus": (1, 8),
    "samples": (1, 10**12),
    "epochs": (1, 10**6),
    "price_per_hour": (1e-6, 1e6),
    "compute": (0.25, 8),
    "bandwidth": (0.25, 8),
    "link": (0.25, 8),
    "host": (0.25, 8),
    "loader": (1e-3, 1e9),
}
"""The least and the most of each number: what sliders and fields of a page take too."""
FACTORS: Mapping[str, str] = {
    "compute": "GPU compute: peak FLOP/s, and what kernels take beyond their roofline",
    "bandwidth": "bytes a second of the device's memory",
    "link": "bytes a second between the GPUs of a node; its latency stays",
    "host": "the speed of Python and of launching kernels",
}
"""What each factor multiplies."""
PRECISIONS = ("fp32", "bf16", "fp16")
SORTS = ("cost", "time")
MOST_DEVICES = 32
LONGEST_NAME = 80  # characters of a device's name
COUNTS = (1, 2, 4, 8)  # GPUs of the curve
DOUBLINGS = 3  # of the batch, to either side of the curve
POINTS = 2000  # of a timeline: more than a screen is wide
_WHOLE = ("batch", "gpus", "samples", "epochs")
_CHOICES = {"precision": PRECISIONS, "sort": SORTS}
# What the document has of a prediction: in every point of a curve, and in rows of devices too.
_POINT = (
    *("batch", "gpus", "step_s", "interval_s", "samples_per_s", "dollars", "fits"),
    *("peak_memory_bytes", "reserved_memory_bytes"),
)
_ROW = (
    *("epoch_s", "price_per_hour", "kilowatt_hours", "communication_s", "device_memory_bytes"),
    *("bottleneck", "basis", "notes", "uncovered"),
)

Document = dict[str, Any]  # a part of the answer, as JSON has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a network, and what-if factors; 1 is the machine as it is."""

    batch: int | None = None  # of one GPU; None: the workload's own
    precision: str | None = None  # None: the workload's own
    devices: tuple[str, ...] = ()  # none: a run's own device, and DOZEN
    shown: str | None = None  # whose layers, memory and curves; None: the first named, or of the rows
    sort: str | None = None  # None: by cost where the whole training is asked for, else by time
    gpus: int = 1  # of one node, each with its own batch
    samples: int | None = None  # in an epoch
    epochs: int | None = None
    price_per_hour: float | None = None  # of one GPU; None: the catalog's example
    compute: float = 1.0
    bandwidth: float = 1.0
    link: float = 1.0
    host: float = 1.0
    loader: float | None = None  # samples a second that the data comes in, for the whole node

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Question:
        """From the flat text of a URL's query; what is empty counts as not given.

        What lies outside of the bounds is refused in one line that names it.
        """
        known = [option.name for option in fields(cls)]
        given: dict[str, Any] = {}
        for name, text in query.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise PredictionError(f"there is no parameter {_short(name)}; {hint}")
            if text.strip():
                given[name] = _value(name, text.strip())
        if "epochs" in given and "samples" not in given:
            raise PredictionError("epochs is given without samples; give the samples of an epoch too")
        return cls(**given)

    @property
    def factors(self) -> Factors:
        """What is imagined of the machine."""
        return Factors(compute=self.compute, bandwidth=self.bandwidth, link=self.link, host=self.host)

    @property
    def imagines(self) -> bool:
        """Whether it asks for anything but the machine as it is."""
        return self.loader is not None or self.factors != AS_IT_IS

    def as_it_is(self) -> Question:
        """The same without anything imagined."""
        return replace(self, loader=None, **asdict(AS_IT_IS))


def _value(name: str, text: str) -> Any:
    if name in LIMITS:
        return _number(name, text)
    if (known := _CHOICES.get(name)) is not None:
        if text not in known:
            raise PredictionError(f"{name} is {_short(text)}; give {', '.join(known[:-1])} or {known[-1]}")
        return text
    parts = [part.strip() for part in text.split(",")] if name == "devices" else [text]
    devices = tuple(dict.fromkeys(filter(None, parts)))
    if len(devices) > MOST_DEVICES:
        raise PredictionError(f"{name} has {len(devices)} names; give {MOST_DEVICES} at most")
    for device in devices:
        told = f"{name} has {_short(device)}"
        if len(device) > LONGEST_NAME:
            raise PredictionError(
                f"{told}; give names of `laptime devices`, {LONGEST_NAME} characters at most"
            )
        # Never a file's name: whoever asks over a network must not read files here.
        if "/" in device or "\\" in device or device.lower().endswith(".toml"):
            raise PredictionError(f"{told}, a file; give names of `laptime devices`")
    return devices if name == "devices" else text


def _number(name: str, text: str) -> float:
    whole, (low, high) = name in _WHOLE, LIMITS[name]
    value: object = text
    with suppress(ValueError):
        if len(text) <= 30 and (not whole or (text.isascii() and text.isdecimal())):
            value = number = int(text) if whole else float(text)
            if low <= number <= high:
                return number
    ends = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (low, high))
    kind = "whole number" if whole else "number"
    raise PredictionError(f"{name} is {_short(value)}; give a {kind} from {' to '.join(ends)}")


def _short(value: object) -> str:
    shown = one_line(repr(value) if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A question about a network at the asked batch, and what other batches are made from."""

    question: Question
    base: Workload
    workload: Workload
    correction: Correction | None  # of a run

    @property
    def batches(self) -> list[int]:
        """Powers of two around the asked batch, and itself; itself alone where one sample was read."""
        if self.base.batch == 1:
            return [self.workload.batch]
        middle = round(math.log2(self.workload.batch))
        powers = {2**power for power in range(max(0, middle - DOUBLINGS), middle + DOUBLINGS + 1)}
        return sorted(batch for batch in powers | {self.workload.batch} if batch <= MOST)

    def predict(
        self, device: Device, *, batch: int | None = None, gpus: int | None = None
    ) -> tuple[Prediction, DataFlow | None]:
        """The prediction of a training on a device; with its data flow, if the loader's speed was given."""
        given = self.question
        workload = self.workload if batch is None else _rescaled(self.base, batch)
        made = predict(
            workload,
            device,
            gpus=given.gpus if gpus is None else gpus,
            samples=given.samples,
            epochs=given.epochs,
            price_per_hour=given.price_per_hour,
            factors=given.factors,
            refine=None if self.correction is None else partial(refined, self.correction, host=given.host),
        )
        if given.loader is None:
            return made, None
        flow = feed(Feed(decode_cores=1, decode_rate=given.loader), made, workload, device)
        return waited(made, flow.times), flow


_rescaled = lru_cache(KEPT_WORKLOADS)(rescaled)


@lru_cache(8)
def _correction(run: Run, workload: Workload) -> Correction:
    return correct(workload, measured_step(run), run)


def ask(workload: Workload, question: Question, *, run: Run | None = None) -> Document:
    """The answer to a question: rows of devices, and details of the one that is shown.

    What a run took corrects every prediction; `workload` is then its own.
    """
    precision = question.precision or workload.precision
    if precision != workload.precision:
        raise PredictionError(
            f"precision is {precision}, but this step was read in {workload.precision}; give that, or name "
            "the network instead"
        )
    correction = None if run is None else _correction(run, workload)
    taken = _rescaled(workload, question.batch or workload.batch)
    subject = _Subject(question=question, base=workload, workload=taken, correction=correction)
    own = None if correction is None else correction.device
    names: Sequence[str | Device] = question.devices or (*([own] if own is not None else []), *DOZEN)
    devices: dict[str, Device] = {}
    made: dict[str, Prediction] = {}
    failed: list[Document] = []
    unknown: list[Document] = []
    for name in names:
        try:
            device = device_speed.device(name)
        except LaptimeError as error:
            unknown.append({"device": str(name), "title": None, "error": first_line(error)})
            continue
        if device.name in devices:  # another of its names
            continue
        devices[device.name] = device
        try:
            made[device.name] = subject.predict(device)[0]
        except LaptimeError as error:
            failed.append({"device": device.name, "title": device.title, "error": first_line(error)})
    made = _sorted(question, made)
    in_order = devices if question.devices or run is not None else made
    shown = next((name for name in in_order if name in made), None)
    if question.shown is not None:
        with suppress(LaptimeError):
            asked = device_speed.device(question.shown).name
            shown = asked if asked in made else shown
    timeline = baseline = None
    if shown is not None:
        timeline = _memory_timeline(device_step(taken, devices[shown], question.factors), made[shown])
    if question.imagines:
        as_it_is = replace(subject, question=question.as_it_is())
        before = {}
        for name in made:
            with suppress(LaptimeError):
                before[name] = as_it_is.predict(devices[name])[0]
        baseline = _details(as_it_is, devices, before, shown if shown in before else None)
    details = _details(subject, devices, made, shown)
    document: Document = plain(
        {
            "question": asdict(replace(question, batch=taken.batch, precision=taken.precision)),
            "network": workload.network,
            "mode": workload.mode,
            "shown": shown,
            **details,
            "rows": [*details["rows"], *failed, *unknown],
            "memory_timeline": timeline,
            "baseline": baseline,
        }
    )
    return document


def _sorted(question: Question, made: Mapping[str, Prediction]) -> dict[str, Prediction]:
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


def _details(
    subject: _Subject, devices: Mapping[str, Device], made: Mapping[str, Prediction], shown: str | None
) -> Document:
    """Rows in the order of `made`; layers, curves and data flow of the device that is shown."""
    largest = _largest(subject, [devices[name] for name in sorted(made, key=lambda name: name != shown)])
    rows = [_row(prediction, devices[name], largest[name]) for name, prediction in made.items()]
    if shown is None:
        return {"rows": rows, "layers": [], "by_batch": [], "by_gpus": [], "data_flow": []}
    device = devices[shown]

    def curve(points: Iterable[Mapping[str, int]]) -> list[Document]:
        predictions = []
        for point in points:
            # No point: a batch that cannot be read; of GPUs a CPU, a forward pass, a device without a link.
            with suppress(LaptimeError):
                predictions.append(_point(subject.predict(device, **point)[0]))
        return predictions

    flow = subject.predict(device)[1]
    return {
        "rows": rows,
        "layers": [
            {"name": layer.layer, "total_s": layer.total_s}
            | {f"{phase.value}_s": layer.seconds(phase) for phase in Phase}
            for layer in made[shown].layers()
            if layer.total_s
        ],
        "by_batch": curve({"batch": batch} for batch in subject.batches),
        "by_gpus": curve({"gpus": count} for count in COUNTS),
        "data_flow": [] if flow is None else flow.rests_on,
    }


def _point(made: Prediction) -> Document:
    """What a curve shows, and a row too."""
    hours = None if made.training_s is None else made.training_s / 3600
    return {name: getattr(made, name) for name in _POINT} | {"hours": hours}


def _row(made: Prediction, device: Device, largest_batch: int | None) -> Document:
    point = _point(made)
    low, high = (end / made.step_s for end in made.interval_s)
    for name in ("hours", "dollars"):
        whole = point[name]
        point[f"{name}_interval"] = None if whole is None else [whole * low, whole * high]
    return (
        point
        | {name: getattr(made, name) for name in _ROW}
        | {
            "device": device.name,
            "title": device.title,
            "largest_batch": largest_batch,
            "calibrated": device_speed.speed_of(device).measured,
        }
    )


def _largest(subject: _Subject, devices: Sequence[Device]) -> dict[str, int | None]:
    """Largest batch by device. GPUs with the same calibration need the same memory, so one is evaluated."""
    groups: dict[tuple[int, str], list[Device]] = {}
    for device in devices:
        key = id(device_speed.speed_of(device).calibration), device.kind
        groups.setdefault(key, []).append(device)
    largest: dict[str, int | None] = {}
    for group in groups.values():
        limits = [member.memory_bytes for member in group if member.memory_bytes is not None]
        needs: dict[int, float] = {}
        if limits and subject.base.batch > 1:

            def need(batch: int, first: Device = group[0]) -> float:
                return device_step(_rescaled(subject.base, batch), first).prediction.reserved_memory_bytes

            needs = bracketed({batch: need(batch) for batch in subject.batches}, limits, need)
        largest |= {member.name: interpolated(needs, member.memory_bytes) for member in group}
    return largest


def _memory_timeline(timed: DeviceStep, made: Prediction) -> Document | None:
    """Bytes alive where operations of one GPU's step begin, and whose they are; None where no one counted.

    Parameters, state and inputs stay; gradients wait for the update, with what it computes in. Where a run
    corrects a layer's time its moments are as much longer.
    """
    workload, memory = timed.prepared.workload, timed.prepared.workload.memory
    if not any(operation.alive for operation in workload.operations):
        return None
    longer: dict[tuple[str, Phase], float] = {}
    if timed.prediction.layer_times != made.layer_times:
        for before, after in zip(timed.prediction.layers(), made.layers(), strict=True):
            for phase in Phase:
                old = before.seconds(phase)
                longer[before.layer, phase] = after.seconds(phase) / old if old else 1.0
    on_cpu = timed.speed.device.kind == "cpu"
    static = memory.static + memory.inputs + (0 if on_cpu else LIBRARY_BYTES)
    gradients = memory.gradients * (1 + temporaries(workload))
    spaces = iter([0.0] * len(timed.prepared.kernels) if on_cpu else timed.prepared.workspaces.tolist())
    begins, sizes, at = [], [], 0.0
    for place, timed_operation in enumerate(timed.step.operations):
        operation = timed_operation.operation
        begins.append(at)
        at += timed_operation.span_s * longer.get((operation.layer, operation.phase), 1.0)
        if place == 0:  # the host between steps: gradients are gone
            sizes.append(static)
        elif operation.phase is Phase.UPDATE:
            sizes.append(static + gradients)
        else:
            sizes.append(static + operation.alive + int(next(spaces)))
    # Of neighbours the largest is kept, so that no peak is lost.
    groups = np.array_split(np.arange(len(sizes)), min(POINTS, len(sizes)))
    points = [int(max(group, key=lambda place: sizes[place])) for group in groups]
    operations = [timed.step.operations[place].operation for place in points]
    return {
        "seconds": [begins[place] for place in points],
        "bytes": [sizes[place] for place in points],
        "phase": [operation.account.value for operation in operations],
        "layer": [operation.layer for operation in operations],
        "end_s": at,
        "static_bytes": static,
    }
