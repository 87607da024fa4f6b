"""How long each operation of a step takes on a device, and its host to hand it over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laptime.predict.calibration import Calibration
from laptime.predict.features import BYTES, Work, of, work
from laptime.predict.timeline import Played, play
from laptime.workload import Operation, Phase, Workload

# The host's time, on the machine of the H200 calibration (a 2.1 GHz core): what torch and Python need for an
# operation, and for what a step does once: zero_grad, the optimizer, the loss.
HOST_OPERATION_US = 27.0
HOST_STEP_US = 600.0
HOST_UPDATE_US = 250.0
# The optimizer: the share of the bandwidth that its passes reach, and what every tensor adds.
UPDATE_SHARE = 0.78
UPDATE_TENSOR_US = 0.6
# All five were set by eye on the steps of `h200_measured.csv`, which the error table is over too.


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An operation with its predicted times, in seconds."""

    operation: Operation
    device_s: float
    span_s: float  # what it adds to the step: its own time, and the wait for the host before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A predicted step on one device."""

    operations: tuple[Timed, ...]
    played: Played

    @property
    def step_s(self) -> float:
        """From one step to the next."""
        return self.played.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A workload as kernels, with how far each stays behind its bound: the same for every device."""

    workload: Workload
    kernels: tuple[tuple[Operation, int], ...]  # with their number, in the order of the step
    works: tuple[Work, ...]
    factors: NDArray[np.float64]


def prepare(workload: Workload, calibration: Calibration) -> Prepared:
    """The part of a prediction that takes long, and that devices without a calibration share."""
    alone = calibration.host_is_device  # nobody hands anything over
    parts = [
        (one, (work(one),) if alone else tuple(_parts(one)))
        for one in workload.operations
        if one.phase is not Phase.UPDATE
    ]
    works = tuple(part for _, found in parts for part in found)
    return Prepared(
        workload=workload,
        kernels=tuple((one, len(found)) for one, found in parts),
        works=works,
        factors=calibration.factors(works),
    )


def predict_step(prepared: Prepared, calibration: Calibration) -> Step:
    """Play a step through: what the device works off while the host hands over."""
    times = calibration.times_us(prepared.works, prepared.factors)
    operations, device_us, host_us = [], [], []
    alone = calibration.host_is_device  # nobody hands anything over
    at = 0
    for one, count in prepared.kernels:
        operations.append(one)
        device_us.append(float(times[at : at + count].sum()))
        host_us.append(0.0 if alone else _host_us(one, calibration))
        at += count
    updates = [one for one in prepared.workload.operations if one.phase is Phase.UPDATE]
    if updates:
        whole = update_us(updates, calibration)
        moved = sum(one.moved for one in updates) or 1
        for index, one in enumerate(updates):
            operations.append(one)
            device_us.append(whole * one.moved / moved)  # allocated by bytes: torch updates all at once
            host_us.append(HOST_UPDATE_US if index == 0 and not alone else 0.0)
    if host_us and not alone:
        host_us[0] += HOST_STEP_US
    played = play(device_us, host_us)
    timed = tuple(
        Timed(operation=one, device_s=device * 1e-6, span_s=float(span))
        for one, device, span in zip(operations, device_us, played.spans, strict=True)
    )
    return Step(operations=timed, played=played)


def _parts(operation: Operation) -> Iterator[Work]:
    """An operation as a GPU runs it: cuDNN leaves a convolution's bias to a kernel of its own."""
    yield work(operation)
    sizes, dtype = operation.sizes, operation.dtype
    if operation.kind.startswith("convolution") and sizes.get("bias"):
        outputs = sizes["n"] * sizes["o"] * sizes["places"]
        size = outputs * BYTES.get(dtype, 4)
        if operation.kind == "convolution":
            yield of("elementwise", dtype, {"n": outputs, "broadcast": 1}, 2 * size)
        else:
            yield of("reduction", dtype, {"n": outputs, "o": sizes["o"], "inner": 1}, size)


def _host_us(operation: Operation, calibration: Calibration) -> float:
    if operation.kind.startswith("recurrent"):  # a kernel for each step of the sequence
        return calibration.host_us.get(operation.kind, HOST_OPERATION_US)
    return HOST_OPERATION_US


def update_us(updates: Sequence[Operation], calibration: Calibration) -> float:
    """The optimizer's kernels: passes over all parameters, and a share for every tensor of theirs."""
    moved = sum(one.moved for one in updates)
    tensors = sum(one.sizes["tensors"] for one in updates)
    if calibration.host_is_device:
        sizes = {"params": sum(one.sizes["params"] for one in updates), "tensors": tensors}
        return float(calibration.times_us([of("optimizer", "float32", sizes, moved)])[0])
    return moved / (calibration.bandwidth * UPDATE_SHARE) * 1e6 + tensors * UPDATE_TENSOR_US
