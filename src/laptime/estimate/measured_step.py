"""A run's median step in the form of a predicted one, for comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from laptime import hardware
from laptime.errors import HardwareError, LaptimeError, PredictionError
from laptime.estimate import device_speed
from laptime.files.text import one_line
from laptime.hardware import Device
from laptime.model import Account, Phase, Stage, Statistics, Workload, summarize
from laptime.model.layers import OTHER_LAYER
from laptime.runs import Run
from laptime.runs.run import WORKLOAD_FILE

# Data loading, copies, communication and recording overhead are not part of a predicted step.
OUTSIDE = (Account.DATA_WAIT, Account.COPY, Account.COMMUNICATION, Account.INSTRUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMedian:
    """Median seconds of a layer in a phase, and the error of the median."""

    seconds: float
    error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """The median step of a run, without waiting for data, copies and other ranks."""

    run: str
    device: str  # as the run's environment calls it
    mode: str  # training or inference
    steps: int
    batch: float | None  # samples of one rank in a typical step
    step_s: Statistics
    layers: Mapping[tuple[str, Phase], LayerMedian]
    host_s: float = 0.0  # Python time between the phases, outside any layer

    def phase_s(self, phase: Phase) -> float:
        """Sum over all layers."""
        return sum(layer.seconds for (_, where), layer in self.layers.items() if where is phase)


def measured_step(run: Run) -> MeasuredStep:
    """What a run measured; training steps if it has any, else its forward passes."""
    shown = one_line(run.path)
    steps = run.selected(Stage.TRAIN)
    if not len(steps):
        steps = run.selected(Stage.VALIDATION)
    if not len(steps):
        why = "failed before its first step ended" if run.status == "failed" else "holds no steps"
        raise PredictionError(f"the run at {shown} {why}; record some training steps first")
    outside = [np.nan_to_num(steps[account.column]) for account in OUTSIDE]
    samples = steps["samples"].astype(np.float64)
    known = samples[~np.isnan(samples)]
    layers: dict[tuple[str, Phase], LayerMedian] = {}
    for layer in run.layers(steps.stage):
        if layer.layer == OTHER_LAYER:
            continue
        for phase, times in zip(Phase, (layer.forward, layer.backward, layer.update), strict=True):
            if times is not None and times.median > 0:
                layers[layer.layer, phase] = LayerMedian(
                    seconds=times.median, error_s=(times.high - times.low) / 2
                )
    if not layers:
        raise PredictionError(f"the run at {shown} was recorded without layers; record it with layers")
    return MeasuredStep(
        run=run.id,
        device=str(told_device(run).get("name") or ""),
        mode="training" if steps.stage is Stage.TRAIN else "inference",
        steps=len(steps),
        batch=float(np.median(known)) if known.size else None,
        step_s=summarize(steps["wall_s"] - np.sum(outside, axis=0)),
        layers=layers,
        host_s=float(np.median(np.nan_to_num(steps[Account.HOST.column]))),
    )


def workload_of(run: Run) -> Workload:
    """The workload that was saved with the run."""
    path = run.path / WORKLOAD_FILE
    if path.exists():
        return Workload.load(path, inside=run.path)
    told = run.summary.get("workload")
    why = (told or {}).get("reason") if isinstance(told, Mapping) else "an earlier laptime recorded it"
    raise PredictionError(
        f"the run at {one_line(run.path)} has no workload ({why or 'it did not reach its first step'}); "
        "predict its network instead: laptime.predict(network, …)"
    )


def told_device(run: Run) -> Mapping[str, Any]:
    """The device entry of a run's environment; empty if missing or malformed."""
    told = run.environment.get("device")
    return told if isinstance(told, Mapping) else {}


def same_device(run: Run, name: str) -> bool | None:
    """Whether a run was measured on the device of that name; None where it cannot be told."""
    own = device_of(run)
    if own is not None:
        return own.name == name
    kind = {"cpu": "cpu", "cuda": "gpu"}.get(str(told_device(run).get("type")))
    try:
        other = device_speed.device(name).kind
    except LaptimeError:
        return None
    return False if kind is not None and kind != other else None


def device_of(run: Run) -> Device | None:
    """The device that a run was measured on; None where neither the catalog nor a calibration knows it."""
    told = told_device(run)
    name = str(told.get("name") or "")
    try:
        return hardware.device(name)
    except HardwareError:
        pass
    try:
        here = device_speed.device("cuda" if told.get("type") == "cuda" else "cpu")
    except LaptimeError:
        return None
    made_on = device_speed.speed_of(here).calibration.facts.get("environment", {})
    same = name in (made_on.get("cpu"), (made_on.get("device") or {}).get("name"))
    return here if same and name else None


def relative(found: Statistics) -> float:
    """Half the confidence interval of a median, relative to the median."""
    spread = (found.high - found.low) / 2 / found.median if found.median else 0.0
    return spread if math.isfinite(spread) else 0.0
