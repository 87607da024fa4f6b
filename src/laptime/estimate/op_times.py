"""Predicted device and launch time of each operation of a step."""

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

# Host time between two steps, outside any layer.
BETWEEN = Operation(name="host.step", kind="host", phase=Phase.FORWARD, layer="(host)", dtype="float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOperation:
    """An operation with its predicted times, in seconds."""

    operation: Operation
    device_s: float
    span_s: float  # time it adds to the step: its own, and the wait for its launch


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
    """A workload as kernels with their times on the calibrated device, shared by devices that use it."""

    workload: Workload
    kernels: tuple[tuple[Operation, int], ...]  # with their number, in the order of the step
    works: tuple[Work, ...]
    sorts: tuple[str, ...]  # for devices known by their data sheet
    times_us: NDArray[np.float64]
    host_us: tuple[float, ...]  # by operation
    peak_bytes: int  # tensors and library workspaces

    def for_speed(self, speed: Speed) -> NDArray[np.float64]:
        """Microseconds of each kernel."""
        if speed.shares is None:
            return self.times_us
        return speed.shares.times_us(self.sorts, self.works, self.times_us)


def prepare(workload: Workload, calibration: Calibration) -> Prepared:
    """The slow part of a prediction, shared by all devices that use the same calibration."""
    alone = calibration.host_is_device  # no launches on a CPU
    try:
        parts = [
            (operation, (work(operation),) if alone else tuple(_parts(operation)))
            for operation in workload.operations
            if operation.phase is not Phase.UPDATE
        ]
        for update in workload.phase(Phase.UPDATE):
            for size in ("params", "tensors"):
                if size not in update.sizes:
                    raise KeyError(size)
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    works = tuple(kernel for _, kernels in parts for kernel in kernels)
    return Prepared(
        workload=workload,
        kernels=tuple((operation, len(kernels)) for operation, kernels in parts),
        works=works,
        sorts=tuple(
            sort_of(operation, kernel, workload.mode) for operation, kernels in parts for kernel in kernels
        ),
        times_us=calibration.times_us(works),
        host_us=tuple(_host_us(kernels, calibration) for _, kernels in parts),
        peak_bytes=_peak(workload, parts, calibration),
    )


def _peak(
    workload: Workload, parts: Sequence[tuple[Operation, tuple[Work, ...]]], calibration: Calibration
) -> int:
    """Peak of live tensors plus the workspace of the running operation."""
    memory = workload.memory
    if not parts:
        return memory.peak
    spaces = calibration.workspace_bytes([kernels[0] for _, kernels in parts])
    most = max(operation.alive + space for (operation, _), space in zip(parts, spaces, strict=True))
    return max(memory.peak, memory.static + memory.inputs + int(most))


def predict_step(prepared: Prepared, speed: Speed) -> TimedStep:
    """Simulate a step: the host launches while the device executes."""
    times = prepared.for_speed(speed)
    alone = speed.calibration.host_is_device
    unit = _unit_us(speed.calibration) if speed.hosted else 0.0
    once = HOST_STEP if prepared.workload.mode == "training" else HOST_FORWARD_PASS
    operations, device_us, host_us = [BETWEEN], [CPU_STEP_US if alone else 0.0], [once * unit]
    at = 0
    for (operation, count), handed in zip(prepared.kernels, prepared.host_us, strict=True):
        operations.append(operation)
        device_us.append(float(times[at : at + count].sum()) + (CPU_OPERATION_US if alone else 0.0))
        host_us.append(handed if speed.hosted else 0.0)
        at += count
    updates = [operation for operation in prepared.workload.operations if operation.phase is Phase.UPDATE]
    if updates:  # one launch: torch updates all parameters at once
        device_us.append(update_us(updates, speed))
        host_us.append(HOST_UPDATE * unit)
    played = play(device_us, host_us)
    timed = [
        PredictedOperation(operation=operation, device_s=device * 1e-6, span_s=float(span))
        for operation, device, span in zip(operations, device_us, played.spans, strict=False)
    ]
    if updates:
        timed += _split(updates, device_us[-1] * 1e-6, float(played.spans[-1]))
    return TimedStep(operations=tuple(timed), played=played)


def _split(updates: Sequence[Operation], device_s: float, span_s: float) -> Iterator[PredictedOperation]:
    """Divide the update among layers by bytes, launch wait included, as recorded runs do.

    This came closest to 62 steps measured on an H200, layer by layer (docs/prediction.md).
    """
    moved = sum(update.moved for update in updates)
    for update in updates:
        share = update.moved / moved if moved else 1 / len(updates)
        yield PredictedOperation(operation=update, device_s=device_s * share, span_s=span_s * share)


def _parts(operation: Operation) -> Iterator[Work]:
    """The kernels that a GPU runs for an operation."""
    yield work(operation)
    for kernel in kind_named(operation.kind).further_kernels(operation):
        yield kernel_work(kernel.kind, operation.dtype, kernel.sizes, kernel.moved)


def _host_us(parts: Sequence[Work], calibration: Calibration) -> float:
    handed = [calibration.handed_us(part) for part in parts]
    own = sum(HOST_SHARE * first + further for first, further in handed)
    return own + HOST_OPERATION * _unit_us(calibration)


def _unit_us(calibration: Calibration) -> float:
    return calibration.handed_us(kernel_work("elementwise", "float32", {"n": 1}, 8))[0]


def update_us(updates: Sequence[Operation], speed: Speed) -> float:
    """Time of the optimizer's kernels: passes over all parameters, plus a fixed time per tensor."""
    moved = sum(update.moved for update in updates)
    tensors = sum(update.sizes["tensors"] for update in updates)
    if speed.calibration.host_is_device:
        sizes = {"params": sum(update.sizes["params"] for update in updates), "tensors": tensors}
        return float(speed.calibration.times_us([kernel_work("optimizer", "float32", sizes, moved)])[0])
    return moved / (speed.bandwidth * UPDATE_SHARE) * 1e6 + tensors * UPDATE_TENSOR_US
