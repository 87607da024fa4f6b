"""A measured run beside a saved prediction of it: what `laptime compare RUN prediction.json` shows.

A ratio is predicted over measured. On one and the same device, ratio - 1 is the prediction's error; between
two devices it is the ratio of their speeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.op_times import BETWEEN
from laptime.estimate.run_correction import MeasuredStep, device_of, measured_step, same_device
from laptime.files.text import one_line
from laptime.files.write import plain
from laptime.model import LOSS_LAYER, Phase
from laptime.model.prediction import PredictedTime, Prediction
from laptime.runs import Run
from laptime.views.comparison.sides import SAME_BATCH, LayerComparison
from laptime.views.format import listed, percent
from laptime.views.prediction import read_view

_LARGE_HOST_SHARE = 0.02  # of the step
_LARGE_SUM = 1.1  # of the step: medians of its parts need not add up to the whole's

HOST = BETWEEN.layer  # which has an account of its own where it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedComparison:
    """A run's median step and a prediction of it."""

    same_device: bool | None  # None where it cannot be told
    run_path: str
    measured: MeasuredStep
    prediction_path: str
    prediction: Prediction
    layers: tuple[LayerComparison[PredictedTime], ...]
    notes: tuple[str, ...] = ()

    def _time(self, measured: float | None, predicted: float | None) -> PredictedTime:
        return PredictedTime(measured=measured, predicted=predicted, same_device=self.same_device)

    @property
    def step(self) -> PredictedTime:
        """The whole step."""
        return self._time(self.measured.step_s.median, self.prediction.step_s)

    @property
    def without_host(self) -> list[LayerComparison[PredictedTime]]:
        """The layers alone: the host is none."""
        return [row for row in self.layers if row.layer != HOST]

    @property
    def inside(self) -> bool | None:
        """Whether the measured step is inside the predicted interval; None between two devices."""
        low, high = self.prediction.interval_s
        return None if self.same_device is False else low <= self.measured.step_s.median <= high

    @property
    def phases(self) -> dict[Phase, PredictedTime]:
        """All layers together."""
        times = {phase: [row.phases[phase] for row in self.without_host] for phase in Phase}
        return {
            phase: self._time(sum(t.measured or 0.0 for t in each), sum(t.predicted or 0.0 for t in each))
            for phase, each in times.items()
        }

    @property
    def host(self) -> PredictedTime | None:
        """Python between the phases; None where neither side has it."""
        return next((row.total for row in self.layers if row.layer == HOST), None)

    @property
    def layer_error(self) -> float | None:
        """The sum of absolute layer errors over the measured time, so large layers weigh more."""
        return self._weighted([row.total for row in self.without_host])

    def _weighted(self, times: Sequence[PredictedTime]) -> float | None:
        whole = sum(time.measured or 0.0 for time in times)
        apart = sum(abs((time.predicted or 0.0) - (time.measured or 0.0)) for time in times)
        return apart / whole if whole and self.same_device is not False else None

    @property
    def summary(self) -> str:
        """The step's error and the layers' in one line; of two devices, how much faster the other is."""
        step, host, layers = self.step, self.host, self.layer_error
        if step.error is None:
            own = self.measured.device or "the run’s device"
            return (
                f"a step is predicted to take {step.ratio:.3g} times as long on {self.prediction.device} as "
                f"it took on {own}: the ratio of two devices' speeds, no error of the prediction"
            )
        where = "inside" if self.inside else "outside"
        told = f"the predicted step is {step.error * 100:+.1f} % off, {where} its interval"
        if layers is not None:
            told += f"; layers are {percent(layers)} off, weighted by their time"
        if host is not None and host.largest >= _LARGE_HOST_SHARE * self.measured.step_s.median:
            predicted, measured = ((seconds or 0.0) * 1e3 for seconds in (host.predicted, host.measured))
            told += f"; {HOST}, Python between the phases, is no layer: {predicted:.3g} ms predicted, "
            told += f"{measured:.3g} ms measured"
        return told

    def document(self) -> dict[str, Any]:
        """As `--json` has it: strict JSON."""
        made, measured, step = self.prediction, self.measured, self.measured.step_s
        said = {name: getattr(made, name) for name in ("network", "device", "batch", "mode", "basis")}
        known = {"low": step.low, "high": step.high, "interval": made.interval_s, "inside": self.inside}
        in_phases = [time for row in self.without_host for time in row.phases.values()]
        document = {
            "same_device": self.same_device,
            "run": {
                "id": measured.run,
                "path": self.run_path,
                "device": measured.device,
                "steps": measured.steps,
            },
            "prediction": {"path": self.prediction_path, **said},
            "step": self.step.document() | known,
            "phases": [{"phase": phase, **time.document()} for phase, time in self.phases.items()],
            "layers": [row.document() for row in self.layers],
            "layer_error": self.layer_error,
            "layer_phase_error": self._weighted(in_phases),
            "notes": self.notes,
        }
        return dict(plain(document))


def is_prediction(path: Path) -> bool:
    """Whether a path is a file of `laptime predict --json` rather than a run."""
    return path.is_file() and path.suffix == ".json" and path.name != "run.json"


def against(run: Run, path: Path) -> PredictedComparison:
    """The run's median step beside the one prediction of a file."""
    saved = read_view([path]).predictions
    if len(saved) != 1:
        raise PredictionError(
            f"{one_line(path)} holds {len(saved)} predictions; save one alone: one --device and one --batch"
        )
    predicted, measured = saved[0], measured_step(run)
    if predicted.mode != measured.mode:
        raise PredictionError(
            f"the run measured {measured.mode}, the prediction is of {predicted.mode}; predict the same"
        )
    if measured.batch is not None and abs(measured.batch / predicted.batch - 1) > SAME_BATCH:
        raise PredictionError(
            f"the run has {measured.batch:g} samples in a step, the prediction {predicted.batch}; "
            f"predict it with --batch {measured.batch:g}"
        )
    if not measured.step_s.median > 0:
        raise PredictionError("the run's steps took no time beside waiting; record some that compute")
    if predicted.gpus != 1:
        raise PredictionError("the prediction is of several GPUs; predict it with --gpus 1")
    same = same_device(run, predicted.device)
    view = PredictedComparison(
        same_device=same,
        run_path=str(run.path),
        measured=measured,
        prediction_path=str(path),
        prediction=predicted,
        layers=tuple(_layers(predicted, measured, run, same)),
    )
    return replace(view, notes=tuple(_notes(view, run)))


def _layers(
    predicted: Prediction, measured: MeasuredStep, run: Run, same_device: bool | None
) -> Iterator[LayerComparison[PredictedTime]]:
    """Layers in the run's order, then those that only one side has; the loss last."""

    def time(seconds: float | None, predicted_s: float | None) -> PredictedTime:
        return PredictedTime(measured=seconds, predicted=predicted_s, same_device=same_device)

    predictions = {layer.layer: layer for layer in predicted.layer_times}
    names = [*(layer.name for layer in run.network), *(name for name, _ in measured.layers), *predictions]
    for name in sorted(dict.fromkeys(names), key=lambda name: name == LOSS_LAYER):
        made = predictions.get(name)
        times = {phase: measured.layers.get((name, phase)) for phase in Phase}
        seconds = {phase: median.seconds for phase, median in times.items() if median is not None}
        if made is None and not seconds:
            continue
        phases = {phase: time(seconds.get(phase), getattr(made, f"{phase.value}_s", None)) for phase in Phase}
        total = sum(seconds.values()) if seconds else None
        if name == HOST and made is not None:  # which was measured as an account, in no phase
            phases, total = dict.fromkeys(Phase, time(None, None)), measured.host_s
        yield LayerComparison(layer=name, phases=phases, total=time(total, getattr(made, "total_s", None)))


def _notes(view: PredictedComparison, run: Run) -> Iterator[str]:
    predicted, measured, layers = view.prediction, view.measured, view.without_host
    yield "measured times are medians over steps, without waiting for data, copies and other processes"
    if view.same_device is None:
        yield f"whether {measured.device or 'the run’s device'} is {predicted.device} is not known"
    elif not view.same_device:
        device = device_of(run)
        own = measured.device if device is None else device.name
        yield (
            f"the devices differ: measured on {own or 'another'}, predicted for {predicted.device}; "
            "how right the prediction is shows beside a run on that device"
        )
    for side, other in (("measured", "predicted"), ("predicted", "measured")):
        if only := [row.layer for row in layers if getattr(row.total, other) is None]:
            yield f"only {side}: {listed(only)}"
    whole = sum(row.total.measured or 0.0 for row in layers)
    if whole > _LARGE_SUM * measured.step_s.median:
        yield (
            f"measured layers add up to {whole * 1e3:.3g} ms, more than the step: they are of steps whose "
            "layers were marked, and those were slower than most"
        )
    if f"refined by run {measured.run}" in predicted.basis:
        yield "the prediction was refined by this very run, so its error says nothing"
    yield from predicted.notes
