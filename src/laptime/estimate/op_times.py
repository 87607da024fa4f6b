"""Predicted device and launch time of each operation of a step.

The host launches operations one by one, the device executes them in order. Either side can be the slower one
in parts of a step, so the launch queue is simulated: the maximum of both totals is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from laptime.errors import WorkloadError
from laptime.estimate.calibration import Calibration, Floats, Work, kernel_work, work
from laptime.estimate.device_speed import Speed
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
STEPS: Annotated[int, Source("Steps played until the queue no longer changes from one to the next.")] = 4

# Host time between two steps, outside any layer.
BETWEEN = Operation(name="host.step", kind="host", phase=Phase.FORWARD, layer="(host)", dtype="float32")


def step_spans(device_us: Sequence[float], host_us: Sequence[float]) -> Floats:
    """Seconds that each operation adds to a steady step: its own time, and the wait for its launch.

    Steps are simulated one after another: the host starts the next one while the device is still busy.
    """
    device, launched = np.tile(device_us, STEPS), np.cumsum(np.tile(host_us, STEPS))
    # end[i] = max(end[i-1], launched[i]) + device[i], unrolled into a running maximum.
    before = np.concatenate([[0.0], np.cumsum(device)])
    ends = before[1:] + np.maximum.accumulate(launched - before[:-1])
    spans: Floats = np.diff(ends)[-len(device_us) :] * 1e-6
    return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedOperation:
    """An operation with its predicted times, in seconds."""

    operation: Operation
    device_s: float
    span_s: float  # time it adds to the step: its own, and the wait for its launch


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A predicted step on one device, in seconds."""

    operations: tuple[PredictedOperation, ...]
    step_s: float  # from the end of one step to the end of the next
    busy_s: float  # of the device
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A workload as kernels with their times on the calibrated device, shared by devices that use it."""

    workload: Workload
    kernels: tuple[tuple[Operation, int], ...]  # with their number, in the order of the step
    works: tuple[Work, ...]
    work_classes: tuple[str, ...]  # for devices known by their data sheet
    times_us: Floats
    host_us: tuple[float, ...]  # by operation
    workspaces: Floats  # bytes that each operation computes in, beside its tensors
    peak_bytes: int  # tensors and library workspaces


def prepare(workload: Workload, calibration: Calibration) -> Prepared:
    """The slow part of a prediction, shared by all devices that use the same calibration."""
    alone = calibration.host_is_device  # no launches on a CPU
    try:
        parts = [
            (operation, _kernels(operation, alone=alone))
            for operation in workload.operations
            if operation.phase is not Phase.UPDATE
        ]
        for update in workload.phase(Phase.UPDATE):
            _ = update.sizes["params"], update.sizes["tensors"]
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    works = tuple(kernel for _, kernels in parts for kernel in kernels)
    unit = _unit_us(calibration)
    # The peak of live tensors plus the workspace of the running operation.
    memory, peak = workload.memory, workload.memory.peak
    spaces = calibration.workspace_bytes([kernels[0] for _, kernels in parts])
    if parts:
        most = max(operation.alive + space for (operation, _), space in zip(parts, spaces, strict=True))
        peak = max(peak, memory.static + memory.inputs + int(most))
    return Prepared(
        workload=workload,
        kernels=tuple((operation, len(kernels)) for operation, kernels in parts),
        works=works,
        work_classes=tuple(
            kind_named(kernel.kind).transfer_class(operation.sizes, workload.mode)
            for operation, kernels in parts
            for kernel in kernels
        ),
        times_us=calibration.times_us(works),
        host_us=tuple(
            sum(HOST_SHARE * first + further for first, further in map(calibration.launch_us, kernels))
            + HOST_OPERATION * unit
            for _, kernels in parts
        ),
        workspaces=spaces,
        peak_bytes=peak,
    )


def predict_step(prepared: Prepared, speed: Speed) -> TimedStep:
    """Simulate a step: the host launches while the device executes."""
    times = prepared.times_us
    if speed.shares is not None:
        times = speed.shares.times_us(prepared.work_classes, prepared.works, times)
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
        every = prepared.workload.accumulate  # a step has its share of an update
        device_us.append(update_us(updates, speed) / every)
        host_us.append(HOST_UPDATE * unit / every)
    spans = step_spans(device_us, host_us)
    timed = [
        PredictedOperation(operation=operation, device_s=device * 1e-6, span_s=float(span))
        for operation, device, span in zip(operations, device_us, spans, strict=False)
    ]
    # The update is divided among layers by bytes, launch wait included, as recorded runs do. This came
    # closest to 62 steps measured on an H200, layer by layer (docs/prediction.md).
    moved = sum(update.moved for update in updates)
    for update in updates:
        share = update.moved / moved if moved else 1 / len(updates)
        device_s, span_s = device_us[-1] * 1e-6 * share, float(spans[-1]) * share
        timed.append(PredictedOperation(operation=update, device_s=device_s, span_s=span_s))
    return TimedStep(
        operations=tuple(timed),
        step_s=float(spans.sum()),
        busy_s=float(np.sum(device_us)) * 1e-6,
        host_s=float(np.sum(host_us)) * 1e-6,
    )


def _kernels(operation: Operation, *, alone: bool) -> tuple[Work, ...]:
    """The kernels that a GPU runs for an operation; `alone`: that a CPU does."""
    further = () if alone else kind_named(operation.kind).further_kernels(operation)
    return (
        work(operation),
        *(kernel_work(kernel.kind, operation.dtype, kernel.sizes, kernel.moved) for kernel in further),
    )


def _unit_us(calibration: Calibration) -> float:
    return calibration.launch_us(kernel_work("elementwise", "float32", {"n": 1}, 8))[0]


def update_us(updates: Sequence[Operation], speed: Speed) -> float:
    """Time of the optimizer's kernels: passes over all parameters, plus a fixed time per tensor."""
    moved = sum(update.moved for update in updates)
    tensors = sum(update.sizes["tensors"] for update in updates)
    if speed.calibration.host_is_device:
        sizes = {"params": sum(update.sizes["params"] for update in updates), "tensors": tensors}
        return float(speed.calibration.times_us([kernel_work("optimizer", "float32", sizes, moved)])[0])
    return moved / (speed.bandwidth * UPDATE_SHARE) * 1e6 + tensors * UPDATE_TENSOR_US
