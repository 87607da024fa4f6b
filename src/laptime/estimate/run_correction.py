"""Predictions corrected by a measured run: by the ratio of its measured to its predicted times.

Factors are per layer and phase where a layer's time is long and steady enough, else one for all layers.
How far a correction carries is taken from measured steps (`benchmarks.refinement`): 0.6 of its logarithm
remains with every doubling of the batch, and a part on another device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.device_speed import speed_of
from laptime.estimate.measured_step import (
    MeasuredStep,
    device_of,
    measured_step,
    relative,
    told_device,
    workload_of,
)
from laptime.estimate.predict import SCALING, predict
from laptime.hardware import Device
from laptime.model import LOSS_LAYER, Account, Phase, Workload
from laptime.model.layers import LayerSeconds
from laptime.model.prediction import Prediction
from laptime.ops.rescaling import rescaled
from laptime.runs import Run

LARGEST = 4.0  # factors are clipped to this and its inverse
SHORT_S = 30e-6  # a layer of this length, a few timing marks, gets half the weight
KEPT_PER_DOUBLING = 0.6  # of a correction's logarithm, for every doubling or halving of the batch
USUAL = 0.3  # logarithm of a correction within the usual prediction error
KEPT_ELSEWHERE = 0.7  # on another device, from one whose own bias a calibration has taken out
KEPT_FROM_DATA_SHEET = 0.5  # from a device known by its data sheet, whose bias is in the correction too
CPU_PIECES = (
    "its operations are a CPU's: attention with dropout and GRUs run in pieces there that a GPU joins"
)
WIDTH, WIDTH_PER_DOUBLING = 0.05, 0.05  # of the interval on the same device


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
        measured = speed_of(self.device).measured
        return far * (KEPT_ELSEWHERE if measured else KEPT_FROM_DATA_SHEET)


def predict_run(
    run: Run,
    device: Device,
    *,
    batch: int | None = None,
    mode: str | None = None,
    gpus: int = 1,
    **training: Any,
) -> Prediction:
    """A step of a run's network on a device, also at another batch size, corrected by what the run took."""
    measured = measured_step(run)
    asked = _named(_in_mode(workload_of(run), measured, mode), run)
    if told_device(run).get("type") == "cpu" and device.kind == "gpu":
        asked = replace(asked, notes=(*asked.notes, CPU_PIECES))
    correction = correct(asked, measured, device_of(run))
    wanted = rescaled(asked, batch) if batch is not None else asked
    return refine(wanted, device, correction, gpus=gpus, **training)


def _in_mode(workload: Workload, found: MeasuredStep, mode: str | None) -> Workload:
    """The workload of the mode that is asked for: a training step has a forward pass in it."""
    wanted = mode or workload.mode
    if wanted not in ("training", "inference"):
        raise PredictionError(f"mode is training or inference, not {wanted!r}")
    if wanted == "training" and "inference" in (workload.mode, found.mode):
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


def _named(workload: Workload, run: Run) -> Workload:
    """With the network name of the run's configuration."""
    network = run.config.get("network")
    name = network.get("name") if isinstance(network, Mapping) else network or run.config.get("target")
    return replace(workload, network=str(name)) if name else workload


def correct(workload: Workload, found: MeasuredStep, device: Device | None) -> Correction:
    """Measured over predicted time of a run."""
    factors: dict[tuple[str, Phase], float] = {}
    took, whole, rest = 1.0, 1.0, 0.0
    if device is not None:
        alone = predict(workload, device)
        forward = workload.mode == "inference" and found.mode == "training"
        step_s = found.phase_s(Phase.FORWARD) if forward else found.step_s.median
        took = step_s / alone.step_s
        times = {key: seconds for key, seconds in _times(alone).items() if seconds > 0}
        both = {key: found.layers[key] for key in times if key in found.layers}
        measured, predicted = sum(layer.seconds for layer in both.values()), sum(times[key] for key in both)
        whole = _bounded(measured / predicted if predicted else took)
        for key, layer in both.items():
            trust = layer.seconds / (layer.seconds + SHORT_S + 4 * layer.error_s)
            factor = _bounded(layer.seconds / times[key])
            factors[key] = math.exp(trust * math.log(factor) + (1 - trust) * math.log(whole))
        rest = step_s - sum(seconds * factors.get(key, whole) for key, seconds in times.items())
    return Correction(
        run=found.run,
        device=device,
        batch=workload.batch,
        factors=factors,
        whole=whole,
        took=took,
        rest_s=rest,
        noise=relative(found.step_s),
    )


def refine(
    workload: Workload, device: Device, correction: Correction, *, gpus: int = 1, **training: Any
) -> Prediction:
    """A prediction with a run's correction in it."""
    plain = predict(workload, device, **training)
    together = predict(workload, device, gpus=gpus, **training) if gpus != 1 else plain
    return refined(plain, together, device, correction)


def refined(
    plain: Prediction, together: Prediction, device: Device, correction: Correction, *, host: float = 1.0
) -> Prediction:
    """The prediction for several GPUs, corrected where that of one is; `host`: so many times as fast."""
    if correction.device is None:
        return replace(together, notes=(*together.notes, _unknown(correction.run)))
    kept = correction.kept(device, plain.batch)
    layers = tuple(_corrected(layer, correction, kept) for layer in plain.layers())
    alone_s = sum(layer.total_s for layer in layers)
    if device.name == correction.device.name:  # Python's time does not grow with the batch
        alone_s = max(alone_s + correction.rest_s * kept / host, alone_s / 2)
    added = together.step_s - plain.step_s
    step_s = alone_s + added
    width = _width(plain, device, correction) + (SCALING if together.gpus > 1 else 0.0)
    scale = alone_s / plain.step_s
    return replace(
        together,
        step_s=step_s,
        interval_s=(step_s * max(0.0, 1 - width), step_s * (1 + width)),
        busy_s=plain.busy_s * scale,
        host_s=plain.host_s,
        phases=_phases(plain, layers),
        layer_times=layers,
        basis=f"{plain.basis}, refined by run {correction.run}" if kept else plain.basis,
        notes=(*together.notes, _said(device, correction, kept)),
    )


def _corrected(one: LayerSeconds, correction: Correction, kept: float) -> LayerSeconds:
    def seconds(phase: Phase, before: float) -> float:
        return before * math.pow(correction.factors.get((one.layer, phase), correction.whole), kept)

    return replace(
        one,
        forward_s=seconds(Phase.FORWARD, one.forward_s),
        backward_s=seconds(Phase.BACKWARD, one.backward_s),
        update_s=seconds(Phase.UPDATE, one.update_s),
    )


def _phases(plain: Prediction, layers: tuple[LayerSeconds, ...]) -> dict[Account, float]:
    """Forward, loss, backward and update after the correction."""
    loss = sum(layer.forward_s for layer in layers if layer.layer == LOSS_LAYER)
    whole = {
        Account.FORWARD: sum(layer.forward_s for layer in layers) - loss,
        Account.LOSS: loss,
        Account.BACKWARD: sum(layer.backward_s for layer in layers),
        Account.UPDATE: sum(layer.update_s for layer in layers),
    }
    return {part: whole[part] for part in plain.phases if part in whole}


def _width(plain: Prediction, device: Device, correction: Correction) -> float:
    """On the same device narrower than without a run, the more so the nearer the batch; elsewhere not."""
    own = plain.interval_s[1] / plain.step_s - 1
    if correction.device is None or device.name != correction.device.name:
        return own
    doublings = abs(math.log2(plain.batch / correction.batch))
    odd = max(0.0, abs(math.log(correction.whole)) - USUAL) * min(1.0, doublings)
    return min(own, WIDTH + WIDTH_PER_DOUBLING * doublings + correction.noise) + odd


def _times(prediction: Prediction) -> dict[tuple[str, Phase], float]:
    return {
        (layer.layer, phase): seconds
        for layer in prediction.layers()
        for phase, seconds in zip(Phase, (layer.forward_s, layer.backward_s, layer.update_s), strict=True)
    }


def _bounded(factor: float) -> float:
    return min(LARGEST, max(1 / LARGEST, factor))


def _said(device: Device, correction: Correction, kept: float) -> str:
    assert correction.device is not None
    if not kept:
        kinds = f"what a {correction.device.kind.upper()} took says nothing of a {device.kind.upper()}"
        return f"run {correction.run} corrects nothing here: {kinds}"
    where = "" if device.name == correction.device.name else f" on {correction.device.name}"
    took = f"the run took {correction.took:.3g} times what is predicted for it{where}"
    return took if kept == 1 else f"{took}; {kept:.0%} of that correction is carried over"


def _unknown(run: str) -> str:
    return (
        f"run {run} corrects nothing: the device that it was measured on is neither in the catalog nor "
        "calibrated; `laptime calibrate` there makes it known"
    )
