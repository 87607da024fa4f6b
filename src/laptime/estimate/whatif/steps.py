"""Cached predicted steps for the prediction page.

A step takes 20 to 60 ms to prepare (the trees of a calibration), and one or two for each device. Kept are the
last few workloads, prepared steps and timed ones, by identity: a caller that hands the same objects in gets
answers in tens of milliseconds. The same question has the same answer, kept or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from laptime.estimate.calibration import Calibration
from laptime.estimate.device_speed import Speed, speed_of
from laptime.estimate.op_times import Prepared, TimedStep, predict_step, prepare
from laptime.estimate.predict import prediction
from laptime.estimate.whatif.factors import Factors, imagined
from laptime.hardware import Device
from laptime.model import Workload
from laptime.model.prediction import Prediction
from laptime.ops.rescaling import rescaled

KEPT_WORKLOADS = 24  # the asked batch, a curve of nine, and as many of the batch before
KEPT_STEPS = 96  # a dozen devices and a curve, as they are and imagined, twice over

_T = TypeVar("_T")


class Same(Generic[_T]):
    """Wraps a value to be compared and hashed by identity, as a cache key."""

    __slots__ = ("value",)

    def __init__(self, value: _T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """A step on one device, with its prediction before a training is known."""

    prepared: Prepared
    speed: Speed
    step: TimedStep
    prediction: Prediction


def at_batch(workload: Workload, batch: int) -> Workload:
    """The workload at another batch size, from its own sizes."""
    return workload if batch == workload.batch else _rescaled(Same(workload), batch)


def read_once(read: Callable[[int, str], Workload], batch: int, precision: str) -> Workload:
    """A network read anew, once for each batch size and precision."""
    return _read(Same(read), batch, precision)


def timed(workload: Workload, device: Device, factors: Factors) -> DeviceStep:
    """A step on one device; the link between GPUs is no part of it."""
    calibration = speed_of(device).calibration
    return _timed(Same(workload), device, Same(calibration), replace(factors, link=1.0))


def workspaces(timed: DeviceStep) -> NDArray[np.float64]:
    """The bytes that each operation of the prepared step computes in, beside its tensors."""
    calibration = speed_of(timed.speed.device).calibration
    return _workspaces(Same(timed.prepared.workload), Same(calibration))


@lru_cache(KEPT_WORKLOADS)
def _rescaled(workload: Same[Workload], batch: int) -> Workload:
    return rescaled(workload.value, batch)


@lru_cache(KEPT_WORKLOADS)
def _read(read: Same[Callable[[int, str], Workload]], batch: int, precision: str) -> Workload:
    return read.value(batch, precision)


@lru_cache(KEPT_WORKLOADS)
def _prepared(workload: Same[Workload], calibration: Same[Calibration]) -> Prepared:
    return prepare(workload.value, calibration.value)


@lru_cache(KEPT_STEPS)
def _timed(
    workload: Same[Workload], device: Device, calibration: Same[Calibration], factors: Factors
) -> DeviceStep:
    prepared, speed = imagined(_prepared(workload, calibration), speed_of(device), factors)
    step = predict_step(prepared, speed)
    made = prediction(prepared, speed, step)
    return DeviceStep(prepared=prepared, speed=speed, step=step, prediction=made)


@lru_cache(KEPT_WORKLOADS)
def _workspaces(workload: Same[Workload], calibration: Same[Calibration]) -> NDArray[np.float64]:
    prepared, firsts, at = _prepared(workload, calibration), [], 0
    for _, count in prepared.kernels:
        firsts.append(prepared.works[at])
        at += count
    return calibration.value.workspace_bytes(firsts)
