"""A measured run beside a saved prediction of it: what `laptime compare RUN prediction.json` shows.

A ratio is predicted over measured. On one and the same device, ratio - 1 is the prediction's error; between
two devices it is the ratio of their speeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.measured_step import MeasuredStep, device_of, measured_step, same_device
from laptime.estimate.op_times import BETWEEN
from laptime.files.text import one_line
from laptime.files.write import plain
from laptime.model import LOSS_LAYER, Phase
from laptime.model.prediction import PredictedTime, Prediction
from laptime.runs import Run
from laptime.views.comparison.notes import listed
from laptime.views.comparison.sides import LayerComparison
from laptime.views.prediction.view import read_view

_SAME_BATCH = 0.005
_LARGE_HOST_SHARE = 0.02  # of the step
_LARGE_SUM = 1.1  # of the step: medians of its parts need not add up to the whole's

HOST = BETWEEN.layer  # which has an account of its own where it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedComparison:
    """A run's median step and a prediction of it."""

    same_device: bool | None  # None where it cannot be told
    run_id: str
    run_path: str
    measured: MeasuredStep
    prediction_path: str
    prediction: Prediction
    layers: tuple[LayerComparison[PredictedTime], ...]
    notes: tuple[str, ...]

    @property
    def step(self) -> PredictedTime:
        """The whole step."""
        return self._time(self.measured.step_s.median, self.prediction.step_s)

    @property
    def inside(self) -> bool | None:
        """Whether the measured step is inside the predicted interval; None between two devices."""
        low, high = self.prediction.interval_s
        return None if self.same_device is False else low <= self.measured.step_s.median <= high

    @property
    def real_layers(self) -> list[LayerComparison[PredictedTime]]:
        """All layers without the host, which is not a layer."""
        return [row for row in self.layers if row.layer != HOST]

    @property
    def phases(self) -> dict[Phase, PredictedTime]:
        """All layers together."""
        rows = {phase: [row.phases[phase] for row in self.real_layers] for phase in Phase}
        return {
            phase: self._time(sum(t.measured or 0.0 for t in times), sum(t.predicted or 0.0 for t in times))
            for phase, times in rows.items()
        }

    @property
    def host(self) -> PredictedTime | None:
        """Python between the phases; None where neither side has it."""
        return next((row.total for row in self.layers if row.layer == HOST), None)

    @property
    def layer_error(self) -> float | None:
        """The sum of absolute layer errors over the measured time, so large layers weigh more."""
        return self._weighted([row.total for row in self.real_layers])

    @property
    def layer_phase_error(self) -> float | None:
        """The same over each layer's phases."""
        return self._weighted([time for row in self.real_layers for time in row.phases.values()])

    def _weighted(self, times: Sequence[PredictedTime]) -> float | None:
        whole = sum(time.measured or 0.0 for time in times)
        apart = sum(abs((time.predicted or 0.0) - (time.measured or 0.0)) for time in times)
        return apart / whole if whole and self.same_device is not False else None

    def _time(self, measured: float | None, predicted: float | None) -> PredictedTime:
        return PredictedTime(
            measured=measured, predicted=predicted, same_device=self.same_device is not False
        )

    @property
    def summary(self) -> str:
        """The step's error and the layers' in one line; of two devices, how much faster the other is."""
        step = self.step
        if step.error is None:
            own = self.measured.device or "the run’s device"
            return (
                f"a step is predicted to take {step.ratio:.3g} times as long on {self.prediction.device} as "
                f"it took on {own}: the ratio of two devices' speeds, no error of the prediction"
            )
        each = self.layer_error
        layers = "" if each is None else f"; layers are {each * 100:.1f} % off, weighted by their time"
        where = "inside" if self.inside else "outside"
        whole = f"the predicted step is {step.error * 100:+.1f} % off, {where} its interval"
        return whole + layers + self._beside()

    def _beside(self) -> str:
        """Host time of both sides where it is large: the layer errors do not include it."""
        if self.host is None or self.host.largest < _LARGE_HOST_SHARE * self.measured.step_s.median:
            return ""
        times = {"predicted": self.host.predicted, "measured": self.host.measured}
        sides = ", ".join(f"{(seconds or 0.0) * 1e3:.3g} ms {side}" for side, seconds in times.items())
        return f"; {HOST}, Python between the phases, is no layer: {sides}"

    def document(self) -> dict[str, Any]:
        """As `--json` has it: strict JSON."""
        made = self.prediction
        step = self.measured.step_s
        document = {
            "same_device": self.same_device,
            "run": {"id": self.run_id, "path": self.run_path}
            | {"device": self.measured.device, "steps": self.measured.steps},
            "prediction": {"path": self.prediction_path}
            | {name: getattr(made, name) for name in ("network", "device", "batch", "mode", "basis")},
            "step": self.step.document()
            | {"low": step.low, "high": step.high, "interval": made.interval_s, "inside": self.inside},
            "phases": [{"phase": phase, **time.document()} for phase, time in self.phases.items()],
            "layers": [
                {"layer": row.layer, "total": row.total.document()}
                | {phase.value: time.document() for phase, time in row.phases.items()}
                for row in self.layers
            ],
            "layer_error": self.layer_error,
            "layer_phase_error": self.layer_phase_error,
            "notes": self.notes,
        }
        return dict(plain(document))


# -- files -----------------------------------------------------------------------------------------


def is_prediction(path: Path) -> bool:
    """Whether a path is a file of `laptime predict --json` rather than a run."""
    return path.is_file() and path.suffix == ".json" and path.name != "run.json"


# -- a run and its prediction ----------------------------------------------------------------------


def against(run: Run, path: Path) -> PredictedComparison:
    """The run's median step beside the one prediction of a file."""
    saved = read_view([path]).predictions
    if len(saved) != 1:
        raise PredictionError(
            f"{one_line(path)} holds {len(saved)} predictions; save one alone: one --device and one --batch"
        )
    predicted, measured = saved[0], measured_step(run)
    _check_comparable(predicted, measured)
    same = same_device(run, predicted.device)
    layers = tuple(_layers(predicted, measured, run, same is not False))
    return PredictedComparison(
        same_device=same,
        run_id=run.id,
        run_path=str(run.path),
        measured=measured,
        prediction_path=str(path),
        prediction=predicted,
        layers=layers,
        notes=tuple(_notes(predicted, measured, run, [row for row in layers if row.layer != HOST], same)),
    )


def _check_comparable(predicted: Prediction, measured: MeasuredStep) -> None:
    if predicted.mode != measured.mode:
        raise PredictionError(
            f"the run measured {measured.mode}, the prediction is of {predicted.mode}; predict the same"
        )
    if measured.batch is not None and abs(measured.batch / predicted.batch - 1) > _SAME_BATCH:
        raise PredictionError(
            f"the run has {measured.batch:g} samples in a step, the prediction {predicted.batch}; "
            f"predict it with --batch {measured.batch:g}"
        )
    if not measured.step_s.median > 0:
        raise PredictionError("the run's steps took no time beside waiting; record some that compute")
    if predicted.gpus != 1:
        raise PredictionError("the prediction is of several GPUs; predict it with --gpus 1")


def _layers(
    predicted: Prediction, measured: MeasuredStep, run: Run, same_device: bool
) -> Iterator[LayerComparison[PredictedTime]]:
    """Layers in the run's order, then those that only one side has; the loss last."""

    def time(seconds: float | None, predicted_s: float | None) -> PredictedTime:
        return PredictedTime(measured=seconds, predicted=predicted_s, same_device=same_device)

    predictions = {layer.layer: layer for layer in predicted.layer_times}
    names = [*(layer.name for layer in run.network), *(name for name, _ in measured.layers), *predictions]
    for name in sorted(dict.fromkeys(names), key=lambda name: name == LOSS_LAYER):
        made = predictions.get(name)
        total = None if made is None else made.total_s
        seconds = {
            phase: median.seconds
            for phase in Phase
            if (median := measured.layers.get((name, phase))) is not None
        }
        if name == HOST and made is not None:  # which was measured as an account, in no phase
            phases = dict.fromkeys(Phase, time(None, None))
            yield LayerComparison(layer=HOST, phases=phases, total=time(measured.host_s, total))
        elif made is not None or seconds:
            phases = {
                phase: time(seconds.get(phase), None if made is None else getattr(made, f"{phase.value}_s"))
                for phase in Phase
            }
            yield LayerComparison(
                layer=name, phases=phases, total=time(sum(seconds.values()) if seconds else None, total)
            )


def _notes(
    predicted: Prediction,
    measured: MeasuredStep,
    run: Run,
    layers: Sequence[LayerComparison[PredictedTime]],
    same: bool | None,
) -> Iterator[str]:
    yield "measured times are medians over steps, without waiting for data, copies and other processes"
    if same is None:
        yield f"whether {measured.device or 'the run’s device'} is {predicted.device} is not known"
    elif not same:
        device = device_of(run)
        own = measured.device if device is None else device.name
        yield (
            f"the devices differ: measured on {own or 'another'}, predicted for {predicted.device}; "
            "how right the prediction is shows beside a run on that device"
        )
    only_measured = [row.layer for row in layers if row.total.predicted is None]
    only_predicted = [row.layer for row in layers if row.total.measured is None]
    for side, only in (("measured", only_measured), ("predicted", only_predicted)):
        if only:
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
