"""How long each operation of a step takes on a device, and its host to hand it over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from laptime.errors import WorkloadError
from laptime.estimate.calibration import Calibration
from laptime.estimate.datasheet_transfer import sort_of
from laptime.estimate.device_speed import Speed
from laptime.estimate.features import Work, kernel_work, work
from laptime.estimate.launch_queue import Played, play
from laptime.files.text import first_line
from laptime.model import Operation, Phase, Workload
from laptime.model.constants import Source
from laptime.ops.registry import kind_named

_HOST = Source(
    "Host time of an operation, a step, a forward pass without training, and an update, in launches of an "
    "elementwise operation as the sweep timed them (2.1 GHz core): a faster host is faster here too. Set by "
    "eye on steps of batch 2 and on the host-bound ones of `h200_measured.csv`; between machines the same "
    "step's host time differed by a third. Forward passes were not measured.",
    unit="launches",
)
_CPU = Source(
    "Modules, autograd and Python between the operations of a CPU. Set by eye on a network of 45 operations "
    "that two cores ran in 3.8 ms one hour and in 6.3 ms another."
)
_UPDATE = Source(
    "The optimizer: the share of the bandwidth that its passes reach, and what every tensor adds. Set by "
    "eye on `h200_measured.csv`."
)
HOST_SHARE: Annotated[float, Source("Share of the sweep's launch time that counts. Set by eye.")] = 0.72
HOST_OPERATION: Annotated[float, _HOST] = 0.85
HOST_STEP: Annotated[float, _HOST] = 75.0
HOST_FORWARD_PASS: Annotated[float, _HOST] = 12.0
HOST_UPDATE: Annotated[float, _HOST] = 20.0
CPU_OPERATION_US: Annotated[float, _CPU] = 12.0
CPU_STEP_US: Annotated[float, _CPU] = 150.0
UPDATE_SHARE: Annotated[float, _UPDATE] = 0.78
UPDATE_TENSOR_US: Annotated[float, _UPDATE] = 0.6

# What is no layer's: the host between two steps, where the device has to wait for it.
BETWEEN = Operation(name="host.step", kind="host", phase=Phase.FORWARD, layer="(host)", dtype="float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOperation:
    """An operation with its predicted times, in seconds."""

    operation: Operation
    device_s: float
    span_s: float  # what it adds to the step: its own time, and the wait for the host before it


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A predicted step on one device."""

    operations: tuple[PredictedOperation, ...]
    played: Played

    @property
    def step_s(self) -> float:
        """From one step to the next."""
        return self.played.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A workload as kernels, with their times on the calibrated device: the same for all that lean on it."""

    workload: Workload
    kernels: tuple[tuple[Operation, int], ...]  # with their number, in the order of the step
    works: tuple[Work, ...]
    sorts: tuple[str, ...]  # for devices known by their data sheet
    times_us: NDArray[np.float64]
    host_us: tuple[float, ...]  # by operation
    peak_bytes: int  # of tensors and of what libraries compute in

    def for_speed(self, speed: Speed) -> NDArray[np.float64]:
        """Microseconds of each kernel."""
        if speed.shares is None:
            return self.times_us
        return speed.shares.times_us(self.sorts, self.works, self.times_us)


def prepare(workload: Workload, calibration: Calibration) -> Prepared:
    """The part of a prediction that takes long, and that devices without a calibration share."""
    alone = calibration.host_is_device  # nobody hands anything over
    try:
        parts = [
            (one, (work(one),) if alone else tuple(_parts(one)))
            for one in workload.operations
            if one.phase is not Phase.UPDATE
        ]
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    works = tuple(part for _, found in parts for part in found)
    return Prepared(
        workload=workload,
        kernels=tuple((one, len(found)) for one, found in parts),
        works=works,
        sorts=tuple(sort_of(one, part, workload.mode) for one, found in parts for part in found),
        times_us=calibration.times_us(works),
        host_us=tuple(_host_us(found, calibration) for _, found in parts),
        peak_bytes=_peak(workload, parts, calibration),
    )


def _peak(
    workload: Workload, parts: Sequence[tuple[Operation, tuple[Work, ...]]], calibration: Calibration
) -> int:
    """The most that is alive, with what the operation that runs then computes in."""
    memory = workload.memory
    if not parts:
        return memory.peak
    spaces = calibration.workspace_bytes([found[0] for _, found in parts])
    most = max(one.alive + space for (one, _), space in zip(parts, spaces, strict=True))
    return max(memory.peak, memory.static + memory.inputs + int(most))


def predict_step(prepared: Prepared, speed: Speed) -> TimedStep:
    """Play a step through: what the device works off while the host hands over."""
    times = prepared.for_speed(speed)
    alone = speed.calibration.host_is_device
    unit = _unit_us(speed.calibration) if speed.hosted else 0.0
    once = HOST_STEP if prepared.workload.mode == "training" else HOST_FORWARD_PASS
    operations, device_us, host_us = [BETWEEN], [CPU_STEP_US if alone else 0.0], [once * unit]
    at = 0
    for (one, count), handed in zip(prepared.kernels, prepared.host_us, strict=True):
        operations.append(one)
        device_us.append(float(times[at : at + count].sum()) + (CPU_OPERATION_US if alone else 0.0))
        host_us.append(handed if speed.hosted else 0.0)
        at += count
    updates = [one for one in prepared.workload.operations if one.phase is Phase.UPDATE]
    if updates:  # handed over as one: torch updates all parameters at once
        device_us.append(update_us(updates, speed))
        host_us.append(HOST_UPDATE * unit)
    played = play(device_us, host_us)
    timed = [
        PredictedOperation(operation=one, device_s=device * 1e-6, span_s=float(span))
        for one, device, span in zip(operations, device_us, played.spans, strict=False)
    ]
    if updates:
        timed += _split(updates, device_us[-1] * 1e-6, float(played.spans[-1]))
    return TimedStep(operations=tuple(timed), played=played)


def _split(updates: Sequence[Operation], device_s: float, span_s: float) -> Iterator[PredictedOperation]:
    """The update by bytes, as recorded runs allocate it: the wait for the host is every layer's, too.

    So it was nearest to 62 steps measured on an H200, layer by layer (docs/prediction.md).
    """
    moved = sum(one.moved for one in updates)
    for one in updates:
        share = one.moved / moved if moved else 1 / len(updates)
        yield PredictedOperation(operation=one, device_s=device_s * share, span_s=span_s * share)


def _parts(operation: Operation) -> Iterator[Work]:
    """An operation as a GPU runs it."""
    yield work(operation)
    for kernel in kind_named(operation.kind).further_kernels(operation):
        yield kernel_work(kernel.kind, operation.dtype, kernel.sizes, kernel.moved)


def _host_us(parts: Sequence[Work], calibration: Calibration) -> float:
    handed = [calibration.handed_us(one) for one in parts]
    own = sum(HOST_SHARE * first + further for first, further in handed)
    return own + HOST_OPERATION * _unit_us(calibration)


def _unit_us(calibration: Calibration) -> float:
    return calibration.handed_us(kernel_work("elementwise", "float32", {"n": 1}, 8))[0]


def update_us(updates: Sequence[Operation], speed: Speed) -> float:
    """The optimizer's kernels: passes over all parameters, and a share for every tensor of theirs."""
    moved = sum(one.moved for one in updates)
    tensors = sum(one.sizes["tensors"] for one in updates)
    if speed.calibration.host_is_device:
        sizes = {"params": sum(one.sizes["params"] for one in updates), "tensors": tensors}
        return float(speed.calibration.times_us([kernel_work("optimizer", "float32", sizes, moved)])[0])
    return moved / (speed.bandwidth * UPDATE_SHARE) * 1e6 + tensors * UPDATE_TENSOR_US
