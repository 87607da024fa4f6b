"""What `laptime predict --json` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laptime.estimate.choose_device import DeviceChoice
    from laptime.estimate.dataflow_step import Fed
    from laptime.estimate.explain import Explanation
    from laptime.estimate.largest_batch import Largest
    from laptime.model.prediction import Prediction


def document(
    found: Sequence[Prediction],
    fed: Sequence[Fed],
    room: Sequence[Largest],
    choices: Sequence[DeviceChoice],
    explained: Explanation | None,
) -> dict[str, Any]:
    """Every prediction, and what else was asked for. With data flow, `found` are the steps that wait."""
    from laptime.estimate.dataflow_step import assumptions, waited
    from laptime.files.write import plain

    made: dict[str, Any] = {"predictions": [_one(one) for one in found]}
    if fed:
        made["data_flow"] = [
            plain(one.times)
            | {name: getattr(one.times, name) for name in ("effective_share", "idle_s", "samples_per_s")}
            | {"device": one.prediction.device, "batch": one.prediction.batch, "gpus": one.prediction.gpus}
            | {"epoch_s": one.epoch_s, "training_s": one.training_s, "rests_on": assumptions(one)}
            | {"hours": None if one.training_s is None else one.training_s / 3600}
            | {name: getattr(waited(one), name) for name in ("dollars", "kilowatt_hours")}
            for one in fed
        ]
        for told, one in zip(made["predictions"], fed, strict=True):
            told["samples_per_s"] = one.times.samples_per_s  # GPUs may share their samples
    if room:
        made["largest"] = [
            plain(one)
            | {"samples_per_s": one.samples_per_s, "prediction": one.prediction and _one(one.prediction)}
            for one in room
        ]
    if choices:
        kept = ("chosen", "runner_up", "closest")
        made["choices"] = [
            plain(one) | {name: (its := getattr(one, name)) and _one(its) for name in kept} for one in choices
        ]
    if explained is not None:
        made["explanation"] = {"constants": explained.constants, "kinds": explained.kinds}
    return made


def _one(one: Prediction) -> dict[str, Any]:
    from laptime.files.write import plain

    derived = ("samples_per_s", "fits", "epoch_s", "training_s", "dollars", "kilowatt_hours")
    made: dict[str, Any] = plain(one)
    return made | {name: getattr(one, name) for name in derived}
