"""Predictions and what else was asked of them. `document` is what `laptime predict --json` writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.dataflow import FlowTimes
from laptime.estimate.dataflow_step import Fed, assumptions, waited
from laptime.estimate.explain import Explanation, KindTime
from laptime.estimate.largest_batch import Largest
from laptime.files.read import read_json
from laptime.files.text import first_line, one_line
from laptime.files.typed import build, count, mapping, sequence
from laptime.files.write import plain
from laptime.model.constants import Constant
from laptime.model.prediction import Prediction

_DERIVED = ("samples_per_s", "fits", "epoch_s", "training_s", "dollars", "kilowatt_hours")
_PICKED = ("chosen", "runner_up", "closest")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """What feeds a predicted step, stage by stage, and the training that results."""

    device: str
    batch: int
    gpus: int
    times: FlowTimes
    rests_on: tuple[str, ...]
    epoch_s: float | None = None
    training_s: float | None = None
    dollars: float | None = None
    kilowatt_hours: float | None = None

    @classmethod
    def of(cls, fed: Fed) -> DataFlow:
        """Of a predicted step and its stages."""
        step = waited(fed)
        return cls(
            device=step.device,
            batch=step.batch,
            gpus=step.gpus,
            times=fed.times,
            rests_on=assumptions(fed),
            epoch_s=fed.epoch_s,
            training_s=fed.training_s,
            dollars=step.dollars,
            kilowatt_hours=step.kilowatt_hours,
        )

    @classmethod
    def read(cls, document: Any) -> DataFlow:
        """From its document."""
        given = mapping(document)
        samples = given.get("samples") or count(given.get("batch")) * count(given.get("gpus"))
        flow = build(cls, {"rests_on": (), **given, "times": {"remedies": (), **given, "samples": samples}})
        if not flow.times.step_s > 0 or not {"device", flow.times.starving} <= flow.times.stages.keys():
            raise ValueError("step_s must be above 0, and the device one of the stages")
        return flow

    @property
    def starves(self) -> bool:
        """Whether the device waits for its data."""
        return self.times.starving != "device"

    @property
    def waits_for(self) -> str:
        """The stage that the device waits for."""
        return self.times.starving if self.starves else "nothing"

    def document(self) -> dict[str, Any]:
        """As JSON has it: the times beside the rest."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "times"}
        derived = {name: getattr(self.times, name) for name in ("effective_share", "idle_s", "samples_per_s")}
        hours = None if self.training_s is None else self.training_s / 3600
        return dict(plain(self.times)) | derived | own | {"hours": hours}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionView:
    """Predictions in their order. With data flow, they are those of steps that wait for their data."""

    predictions: tuple[Prediction, ...]
    flows: tuple[DataFlow, ...] = ()  # of each
    largest: tuple[Largest, ...] = ()  # of each device and number of GPUs
    choices: tuple[DeviceChoice, ...] = ()
    explanation: Explanation | None = None

    @property
    def first(self) -> Prediction:
        """The one that details are shown of: what was chosen, or the first."""
        return (self.choices[0].chosen if self.choices else None) or self.predictions[0]

    @property
    def samples_per_s(self) -> list[float]:
        """Throughput; GPUs that are parts of one model share their samples."""
        return [flow.times.samples_per_s for flow in self.flows] or [
            made.samples_per_s for made in self.predictions
        ]

    def largest_of(self, made: Prediction) -> Largest | None:
        """The largest batch of a prediction's device and number of GPUs."""
        of_device = [largest for largest in self.largest if largest.device == made.device]
        exact = [
            largest for largest in of_device if largest.prediction and largest.prediction.gpus == made.gpus
        ]
        return next(iter(exact or of_device), None)

    def document(self) -> dict[str, Any]:
        """As `laptime predict --json` writes it."""
        made: dict[str, Any] = {
            "predictions": [
                prediction_document(each) | {"samples_per_s": speed}
                for each, speed in zip(self.predictions, self.samples_per_s, strict=True)
            ]
        }
        if self.flows:
            made["data_flow"] = [flow.document() for flow in self.flows]
        if self.largest:
            made["largest"] = [
                plain(each)
                | {
                    "samples_per_s": each.samples_per_s,
                    "prediction": each.prediction and prediction_document(each.prediction),
                }
                for each in self.largest
            ]
        if self.choices:
            made["choices"] = [
                plain(choice)
                | {name: (its := getattr(choice, name)) and prediction_document(its) for name in _PICKED}
                for choice in self.choices
            ]
        if self.explanation is not None:
            made["explanation"] = {"constants": self.explanation.constants, "kinds": self.explanation.kinds}
        return made

    @classmethod
    def of(cls, document: Any) -> PredictionView:
        """From a document; ValueError where that has another form."""
        given = mapping(document)
        predictions = tuple(Prediction.of(made) for made in sequence(given.get("predictions")))
        flows = tuple(DataFlow.read(flow) for flow in sequence(given.get("data_flow") or []))
        if flows and len(flows) != len(predictions):
            raise ValueError(f"{len(flows)} data flows stand beside {len(predictions)} predictions")
        explained = given.get("explanation")
        return cls(
            predictions=predictions,
            flows=flows,
            largest=tuple(_largest(each) for each in sequence(given.get("largest") or [])),
            choices=tuple(_choice(choice) for choice in sequence(given.get("choices") or [])),
            explanation=None if not explained or not predictions else _explanation(explained, predictions[0]),
        )


def prediction_document(made: Prediction) -> dict[str, Any]:
    """A prediction as JSON has it, with what follows from it."""
    return dict(plain(made)) | {name: getattr(made, name) for name in _DERIVED}


def read_view(paths: Sequence[Path]) -> PredictionView:
    """The files of `laptime predict --json` as one view, their predictions in their order.

    What else was asked for is kept of one file alone: it is said of its own predictions.
    """
    views = [_read(path) for path in paths]
    if len(views) == 1:
        return views[0]
    return PredictionView(predictions=tuple(made for view in views for made in view.predictions))


def _read(path: Path) -> PredictionView:
    shown = one_line(path)
    try:
        view = PredictionView.of(read_json(path))
    except (OSError, ValueError) as error:
        raise PredictionError(
            f"{shown} is no prediction ({first_line(error)}); save one: laptime predict … --json > it"
        ) from None
    if not view.predictions:
        raise PredictionError(f"{shown} holds no prediction; save one: laptime predict … --json > it")
    return view


def _largest(document: Any) -> Largest:
    given = mapping(document)
    made = given.get("prediction")
    largest = build(Largest, {"readings": 0, "exact": True, **given, "prediction": None})
    return replace(largest, prediction=None if made is None else Prediction.of(made))


def _choice(document: Any) -> DeviceChoice:
    given = mapping(document)
    picked: dict[str, Any] = {
        name: made and Prediction.of(made) for name in _PICKED for made in (given.get(name),)
    }
    unsaid = {"by": "dollars", "considered": 0, "left_out": (), "within_hours": None, "under_dollars": None}
    return replace(build(DeviceChoice, unsaid | dict(given) | dict.fromkeys(_PICKED)), **picked)


def _explanation(document: Any, made: Prediction) -> Explanation:
    given = mapping(document)
    return Explanation(
        prediction=made,
        constants=tuple(build(Constant, each) for each in sequence(given.get("constants") or [])),
        kinds=tuple(build(KindTime, each) for each in sequence(given.get("kinds") or [])),
    )
