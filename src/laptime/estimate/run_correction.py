"""What a run measured, in the form of a predicted step; and predictions corrected by it.

A correction is the ratio of measured to predicted times: per layer and phase where a layer's time is long and
steady enough, else one for all layers. How far it carries is taken from measured steps
(`benchmarks.refinement`): 0.6 of its logarithm remains with every doubling of the batch, and a part on
another device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from laptime import hardware
from laptime.errors import HardwareError, LaptimeError, PredictionError
from laptime.estimate import device_speed
from laptime.estimate.predict import SCALING, predict, predict_all
from laptime.files.text import one_line
from laptime.hardware import Device
from laptime.model import ACCOUNTS, COMPUTE, Account, Phase, Stage, Statistics, Workload, summarize
from laptime.model.layers import OTHER_LAYER, layer_seconds
from laptime.model.prediction import Prediction, account_times
from laptime.ops.rescaling import rescaled
from laptime.runs import Run
from laptime.runs.document import WORKLOAD_FILE
from laptime.runs.select import SelectedSteps

# A predicted step computes, and its host works; it does not load or copy data, wait for ranks, or record.
PREDICTED = {*COMPUTE, Account.HOST, Account.IDLE, Account.UNEXPLAINED}
LARGEST = 4.0  # factors are clipped to this and its inverse
SHORT_S = 30e-6  # a layer of this length, a few timing marks, gets half the weight
KEPT_PER_DOUBLING = 0.6  # of a correction's logarithm, for every doubling or halving of the batch
USUAL = 0.3  # logarithm of a correction within the usual prediction error
KEPT_ELSEWHERE = 0.7  # on another device, from one whose own bias a calibration has taken out
KEPT_FROM_DATA_SHEET = 0.5  # from a device known by its data sheet, whose bias is in the correction too
CPU_PIECES = (
    "its operations are a CPU's: attention with dropout and GRUs run in pieces there that a GPU joins"
)
# What tells them in a layer's forward pass: torch's scaled_dot_product_attention with dropout, and its GRU.
_PIECES = ({"bmm", "_safe_softmax", "bernoulli_"}, {"unsafe_split", "sigmoid_", "tanh_"})
WIDTH, WIDTH_PER_DOUBLING = 0.05, 0.05  # of the interval on the same device


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


def measured_step(run: Run) -> MeasuredStep:
    """What a run measured; training steps if it has any, else its forward passes.

    With gradient accumulation a step has its share of the update that several have in common.
    """
    shown = one_line(run.path)
    steps = run.selected(Stage.TRAIN)
    if not len(steps):
        steps = run.selected(Stage.VALIDATION)
    if not len(steps):
        why = "failed before its first step ended" if run.status == "failed" else "holds no steps"
        raise PredictionError(f"the run at {shown} {why}; record some training steps first")
    outside = [np.nan_to_num(steps[account.column]) for account in ACCOUNTS if account not in PREDICTED]
    took = steps["wall_s"] - np.sum(outside, axis=0)
    every, updates = _accumulation(steps)
    if every > 1:
        whole = np.isin(updates, np.flatnonzero(np.bincount(updates) == every))
        took = np.bincount(updates[whole], weights=took[whole])[np.unique(updates[whole])] / every
    samples = steps["samples"].astype(np.float64)
    known = samples[~np.isnan(samples)]
    layers: dict[tuple[str, Phase], LayerMedian] = {}
    for layer in run.layers(steps.stage):
        if layer.layer == OTHER_LAYER:
            continue
        for phase, times in zip(Phase, (layer.forward, layer.backward, layer.update), strict=True):
            if times is None:
                continue
            seconds = times.mean if phase is Phase.UPDATE and every > 1 else times.median
            if seconds > 0:
                error_s = (times.high - times.low) / 2
                layers[layer.layer, phase] = LayerMedian(seconds=seconds, error_s=error_s)
    if not layers:
        raise PredictionError(f"the run at {shown} was recorded without layers; record it with layers")
    return MeasuredStep(
        run=run.id,
        device=str(device_entry(run).get("name") or ""),
        mode="training" if steps.stage is Stage.TRAIN else "inference",
        steps=len(steps),
        batch=float(np.median(known)) if known.size else None,
        step_s=summarize(took),
        layers=layers,
        host_s=float(np.median(np.nan_to_num(steps[Account.HOST.column]))),
    )


def _accumulation(steps: SelectedSteps) -> tuple[int, Any]:
    """Steps that an update follows on, 1 where the run does not tell; and each step's update, by number."""
    if not len(steps):
        return 1, np.empty(0, int)
    keys = np.stack([steps[name] for name in ("attempt", "rank", "optimizer_step")])
    _, updates, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    return int(np.bincount(counts[1:-1]).argmax()) if len(counts) > 2 else 1, updates.ravel()


def workload_of(run: Run) -> Workload:
    """The workload that was saved with the run; with gradient accumulation, as its steps tell."""
    path = run.path / WORKLOAD_FILE
    if path.exists():
        workload = Workload.load(path, inside=run.path)
        every, _ = _accumulation(run.selected(Stage.TRAIN))
        return replace(workload, accumulate=every) if every > 1 else workload
    told = run.summary.get("workload")
    why = (told or {}).get("reason") if isinstance(told, Mapping) else "an earlier laptime recorded it"
    raise PredictionError(
        f"the run at {one_line(run.path)} has no workload ({why or 'it did not reach its first step'}); "
        "predict its network instead: laptime.predict(network, …)"
    )


def named_workload(run: Run) -> Workload:
    """The run's workload under the name that its configuration gives the network."""
    network = run.config.get("network")
    name = network.get("name") if isinstance(network, Mapping) else network or run.config.get("target")
    workload = workload_of(run)
    return replace(workload, network=str(name)) if name else workload


def device_entry(run: Run) -> Mapping[str, Any]:
    """The device entry of a run's environment; empty if missing or malformed."""
    told = run.environment.get("device")
    return told if isinstance(told, Mapping) else {}


def same_device(run: Run, name: str) -> bool | None:
    """Whether a run was measured on the device of that name; None where it cannot be told."""
    own = device_of(run)
    if own is not None:
        return own.name == name
    told = device_entry(run).get("type")
    kind = None if told is None else "cpu" if told == "cpu" else "gpu"
    try:
        other = device_speed.device(name).kind
    except LaptimeError:
        return None
    return False if kind is not None and kind != other else None


def device_of(run: Run) -> Device | None:
    """The device that a run was measured on; None where neither the catalog nor a calibration knows it."""
    told = device_entry(run)
    name = str(told.get("name") or "")
    try:
        return hardware.device(name)
    except HardwareError:
        pass
    if told.get("type") not in device_speed.HERE:
        return None
    try:
        here = device_speed.device(str(told["type"]))
    except LaptimeError:
        return None
    made_on = device_speed.speed_of(here).calibration.facts.get("environment", {})
    same = name in (made_on.get("cpu"), (made_on.get("device") or {}).get("name"))
    return here if same and name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured over predicted, for one run."""

    run: str
    device: Device | None  # that it was measured on; None: not known, and nothing is corrected
    batch: int
    factors: Mapping[tuple[str, Phase], float]
    whole: float  # of all layers together, within bounds
    took: float  # of the step
    rest_s: float  # of the step beyond its layers: Python between the phases
    noise: float  # half the interval of the measured step, over it
    in_pieces: bool  # whether a GPU joins operations of the run, which ran on a CPU

    def kept(self, device: Device, batch: int) -> float:
        """The share of a correction's logarithm that counts on a device at a batch size.

        What fades with the batch is as large as predictions usually err; a step that took three times as long
        has a reason, such as fewer threads, that another batch size does not take away.
        """
        if self.device is None or (self.device.kind == "cpu") != (device.kind == "cpu"):
            return 0.0
        far = math.pow(KEPT_PER_DOUBLING, abs(math.log2(batch / self.batch)))
        size = abs(math.log(self.whole))
        if size > USUAL:
            far = (size - USUAL + USUAL * far) / size
        if device.name == self.device.name:
            return far
        measured = device_speed.speed_of(self.device).measured
        return far * (KEPT_ELSEWHERE if measured else KEPT_FROM_DATA_SHEET)

    def factor(self, layer: str, phase: Phase, kept: float) -> float:
        """Times as long as predicted, of which so much is kept."""
        return math.pow(self.factors.get((layer, phase), self.whole), kept)

    def width(self, own: float, device: Device, batch: int) -> float:
        """Half of the interval around a step whose prediction has `own`, relative: on the same device
        narrower than without a run, the more so the nearer the batch; elsewhere not."""
        if self.device is None or device.name != self.device.name:
            return own
        doublings = abs(math.log2(batch / self.batch))
        odd = max(0.0, abs(math.log(self.whole)) - USUAL) * min(1.0, doublings)
        return min(own, WIDTH + WIDTH_PER_DOUBLING * doublings + self.noise) + odd

    def note(self, device: Device, kept: float) -> str:
        """What the run says of that device, of which so much is kept."""
        if self.device is None:
            return (
                f"run {self.run} corrects nothing: the device that it was measured on is neither in the "
                "catalog nor calibrated; `laptime calibrate` there makes it known"
            )
        if not kept:
            kinds = f"what a {self.device.kind.upper()} took says nothing of a {device.kind.upper()}"
            return f"run {self.run} corrects nothing here: {kinds}"
        where = "" if device.name == self.device.name else f" on {self.device.name}"
        took = f"the run took {self.took:.3g} times what is predicted for it{where}"
        return took if kept == 1 else f"{took}; {kept:.0%} of that correction is carried over"


def predict_run(
    run: Run, devices: Sequence[Device], *, batch: int | None = None, mode: str | None = None, **options: Any
) -> list[Prediction]:
    """A step of a run's network on devices, also at another batch size, corrected by what the run took.

    The options are those of `predict_all`.
    """
    measured = measured_step(run)
    asked = _in_mode(named_workload(run), measured, mode)
    refine = partial(refined, correct(asked, measured, run))
    wanted = asked if batch is None else rescaled(asked, batch)
    return predict_all(wanted, devices, refine=refine, **options)


def _in_mode(workload: Workload, measured: MeasuredStep, mode: str | None) -> Workload:
    """The workload of the mode that is asked for: a training step has a forward pass in it."""
    wanted = mode or workload.mode
    if wanted not in ("training", "inference"):
        raise PredictionError(f"mode is training or inference, not {wanted!r}")
    if wanted == "training" and "inference" in (workload.mode, measured.mode):
        raise PredictionError(
            "the run has forward passes only, which say nothing of a training; ask for forward passes "
            "(inference), or record training steps"
        )
    if wanted == workload.mode:
        return workload
    # Nothing is kept for a backward pass, and no operation needs more than it reads and writes.
    kept = tuple(
        replace(operation, alive=min(operation.alive, operation.moved))
        for operation in workload.operations
        if operation.account is Account.FORWARD
    )
    memory = workload.memory
    static = memory.parameters + memory.buffers + memory.inputs
    largest = max((operation.moved for operation in kept), default=0)
    return replace(
        workload,
        mode="inference",
        operations=kept,
        memory=replace(memory, gradients=0, state=0, activations=0, peak=static + largest),
        notes=(*workload.notes, "its forward pass was taken from a training step"),
    )


def correction_of(run: Run) -> Correction:
    """Measured over predicted time of a run's own step."""
    return correct(workload_of(run), measured_step(run), run)


def correct(workload: Workload, measured: MeasuredStep, run: Run) -> Correction:
    """Measured over predicted time of a run, whose workload it is."""
    device = device_of(run)
    factors: dict[tuple[str, Phase], float] = {}
    took, whole, rest = 1.0, 1.0, 0.0
    if device is not None:
        alone = predict(workload, device)
        step_s = measured.step_s.median
        if workload.mode == "inference" and measured.mode == "training":
            passes = (layer for (_, phase), layer in measured.layers.items() if phase is Phase.FORWARD)
            step_s = sum(layer.seconds for layer in passes)
        took = step_s / alone.step_s
        times = {
            (layer.layer, phase): seconds
            for layer in alone.layers()
            for phase in Phase
            if (seconds := layer.seconds(phase)) > 0
        }
        both = {key: measured.layers[key] for key in times if key in measured.layers}
        predicted = sum(times[key] for key in both)
        ratio = sum(layer.seconds for layer in both.values()) / predicted if predicted else took
        whole = _bounded(ratio)
        for key, layer in both.items():
            trust = layer.seconds / (layer.seconds + SHORT_S + 4 * layer.error_s)
            factor = _bounded(layer.seconds / times[key])
            factors[key] = math.exp(trust * math.log(factor) + (1 - trust) * math.log(whole))
        rest = step_s - sum(seconds * factors.get(key, whole) for key, seconds in times.items())
    spread = measured.step_s
    noise = (spread.high - spread.low) / 2 / spread.median if spread.median else 0.0
    return Correction(
        run=measured.run,
        device=device,
        batch=workload.batch,
        factors=factors,
        whole=whole,
        took=took,
        rest_s=rest,
        noise=noise if math.isfinite(noise) else 0.0,
        in_pieces=device_entry(run).get("type") == "cpu" and _in_pieces(workload),
    )


def _in_pieces(workload: Workload) -> bool:
    """Whether it has attention with dropout, or a GRU, as a CPU runs them: operation by operation."""
    names: dict[str, set[str]] = {}
    for operation in workload.phase(Phase.FORWARD):
        names.setdefault(operation.layer, set()).add(operation.name.partition(".")[2])
    return any(pieces <= layer for layer in names.values() for pieces in _PIECES)


def refined(
    correction: Correction, plain: Prediction, together: Prediction, device: Device, *, host: float = 1.0
) -> Prediction:
    """The prediction for several GPUs, corrected where that of one is; `host`: so many times as fast."""
    notes = together.notes
    if correction.in_pieces and device.kind == "gpu":
        notes = (*notes, CPU_PIECES)
    kept = correction.kept(device, plain.batch)
    notes = (*notes, correction.note(device, kept))
    if correction.device is None:
        return replace(together, notes=notes)
    layers = tuple(
        layer_seconds(
            each.layer,
            {phase: each.seconds(phase) * correction.factor(each.layer, phase, kept) for phase in Phase},
        )
        for each in plain.layers()
    )
    alone_s = sum(layer.total_s for layer in layers)
    if device.name == correction.device.name:  # Python's time does not grow with the batch
        alone_s = max(alone_s + correction.rest_s * kept / host, alone_s / 2)
    step_s = alone_s + (together.step_s - plain.step_s)
    width = correction.width(plain.interval_s[1] / plain.step_s - 1, device, plain.batch)
    width += SCALING if together.gpus > 1 else 0.0
    return replace(
        together,
        step_s=step_s,
        interval_s=(step_s * max(0.0, 1 - width), step_s * (1 + width)),
        busy_s=plain.busy_s * (alone_s / plain.step_s),
        host_s=plain.host_s,
        phases=account_times(layers),
        layer_times=layers,
        basis=f"{plain.basis}, refined by run {correction.run}" if kept else plain.basis,
        notes=notes,
    )


def _bounded(factor: float) -> float:
    return min(LARGEST, max(1 / LARGEST, factor))
