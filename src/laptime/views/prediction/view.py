"""Predictions and what else was asked of them. `document` is what `laptime predict --json` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.dataflow import FlowTimes, Remedy
from laptime.estimate.dataflow_step import Fed, assumptions, waited
from laptime.estimate.explain import Explanation, KindTime
from laptime.estimate.largest_batch import Largest
from laptime.model.constants import Constant
from laptime.model.prediction import Prediction
from laptime.runs.files import one_line, plain

_DERIVED = ("samples_per_s", "fits", "epoch_s", "training_s", "dollars", "kilowatt_hours")
_NUMBERS = ("batch", "gpus", "step_s", "peak_memory_bytes", "reserved_memory_bytes", "communication_s")
_OPTIONAL = ("device_memory_bytes", "samples", "epochs", "price_per_hour", "watts")
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
    def read(cls, document: Mapping[str, Any]) -> DataFlow:
        """From its document."""
        own = {field.name: document[field.name] for field in fields(cls) if field.name in document}
        times = FlowTimes(
            stages={str(stage): float(seconds) for stage, seconds in document["stages"].items()},  # type: ignore[misc]
            step_s=float(document["step_s"]),
            starving=document["starving"],
            samples=int(document.get("samples") or document["batch"] * document["gpus"]),
            remedies=tuple(Remedy(*remedy) for remedy in document.get("remedies") or ()),
        )
        return cls(**own | {"times": times, "rests_on": tuple(map(str, document.get("rests_on") or ()))})

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
        of_device = [found for found in self.largest if found.device == made.device]
        exact = [found for found in of_device if found.prediction and found.prediction.gpus == made.gpus]
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
    def of(cls, document: Mapping[str, Any]) -> PredictionView:
        """From a document; raises what a document in another form raises."""
        predictions = tuple(_prediction(made) for made in document["predictions"])
        explained = document.get("explanation")
        return cls(
            predictions=predictions,
            flows=tuple(DataFlow.read(flow) for flow in document.get("data_flow") or ()),
            largest=tuple(_largest(each) for each in document.get("largest") or ()),
            choices=tuple(_choice(choice) for choice in document.get("choices") or ()),
            explanation=None if not explained else _explanation(explained, predictions[0]),
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
        view = PredictionView.of(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise PredictionError(f"{shown} is no prediction; save one: laptime predict … --json > it") from None
    if not view.predictions:
        raise PredictionError(f"{shown} holds no prediction; save one: laptime predict … --json > it")
    return view


def _prediction(document: Any) -> Prediction:
    made = Prediction.of(document)
    given = [getattr(made, name) for name in _OPTIONAL]
    numbers = [getattr(made, name) for name in _NUMBERS] + [value for value in given if value is not None]
    numbers += [
        seconds for layer in made.layers() for seconds in (layer.forward_s, layer.backward_s, layer.update_s)
    ]
    numbers += [*made.interval_s, *made.uncovered.values()]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        raise ValueError("not a number")
    if not (made.step_s > 0 and made.batch >= 1 and made.interval_s[0] <= made.interval_s[1]):
        raise ValueError("out of range")
    return made


def _largest(document: Mapping[str, Any]) -> Largest:
    made = document.get("prediction")
    return Largest(
        device=str(document["device"]),
        batch=None if document["batch"] is None else int(document["batch"]),
        prediction=None if made is None else _prediction(made),
        readings=int(document.get("readings") or 0),
        exact=bool(document.get("exact", True)),
    )


def _choice(document: Mapping[str, Any]) -> DeviceChoice:
    picked = {name: made and _prediction(made) for name in _PICKED for made in (document.get(name),)}
    return DeviceChoice(
        wanted=str(document["wanted"]),
        by=document.get("by", "dollars"),
        considered=int(document.get("considered") or 0),
        left_out=tuple(map(str, document.get("left_out") or ())),
        why=str(document["why"]),
        within_hours=document.get("within_hours"),
        under_dollars=document.get("under_dollars"),
        **picked,
    )


def _explanation(document: Mapping[str, Any], made: Prediction) -> Explanation:
    return Explanation(
        prediction=made,
        constants=tuple(Constant(**each) for each in document.get("constants") or ()),
        kinds=tuple(KindTime(**each) for each in document.get("kinds") or ()),
    )
