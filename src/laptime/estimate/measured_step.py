"""A run's typical step in the shape of a predicted one, so that the two can be set side by side."""

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

# Waiting for data or for other ranks, and what recording costs: a predicted step has none of them.
OUTSIDE = (Account.DATA_WAIT, Account.COPY, Account.COMMUNICATION, Account.INSTRUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMedian:
    """Seconds of a layer in a phase: the median over steps, and how far that may be off."""

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
    host_s: float = 0.0  # Python between the phases, which is no layer's

    def phase_s(self, phase: Phase) -> float:
        """All layers together."""
        return sum(one.seconds for (_, where), one in self.layers.items() if where is phase)


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
    for one in run.layers(steps.stage):
        if one.layer == OTHER_LAYER:
            continue
        for phase, found in zip(Phase, (one.forward, one.backward, one.update), strict=True):
            if found is not None and found.median > 0:
                layers[one.layer, phase] = LayerMedian(
                    seconds=found.median, error_s=(found.high - found.low) / 2
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
    """What the run's step asks of a machine, as it was read while it was recorded."""
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
    """What a run's environment says of its device, if it says it as laptime does."""
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
    """Half the interval of a median, over it."""
    spread = (found.high - found.low) / 2 / found.median if found.median else 0.0
    return spread if math.isfinite(spread) else 0.0
