"""A measured run beside a saved prediction of it: what `laptime compare RUN prediction.json` shows.

Everything is a strict-JSON dictionary. A ratio is predicted over measured; an error is that, less one, and is
said of one and the same device only: between two it is how much faster the one is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.measured_step import MeasuredStep, device_of, measured_step, same_device
from laptime.estimate.op_times import BETWEEN
from laptime.files.read import read_json
from laptime.files.text import first_line, one_line
from laptime.files.typed import build
from laptime.files.write import plain
from laptime.model import LOSS_LAYER, Phase
from laptime.model.prediction import Prediction
from laptime.runs import Run

_SAME_BATCH = 0.005
_WORTH_SAYING = 0.02  # of the step
_TOO_MUCH = 1.1  # of the step: medians of its parts need not add up to the whole's
Row = dict[str, Any]

HOST = BETWEEN.layer  # which has an account of its own where it was measured


def is_prediction(path: Path) -> bool:
    """Whether a path is a file of `laptime predict --json` rather than a run."""
    return path.is_file() and path.suffix == ".json" and path.name != "run.json"


def read_prediction(path: Path) -> Row:
    """The one prediction of a file."""
    shown = one_line(path)
    found = read_document(path)["predictions"]
    if len(found) != 1:
        raise PredictionError(
            f"{shown} holds {len(found)} predictions; save one alone: one --device and one --batch"
        )
    return dict(found[0])


def read_predictions(path: Path) -> list[Prediction]:
    """All predictions of a file."""
    return [Prediction.of(one) for one in read_document(path)["predictions"]]


def read_document(path: Path) -> Row:
    """What `laptime predict --json` wrote, each of its predictions checked."""
    try:
        document = read_json(path)
        if not isinstance(document, dict) or not isinstance(document.get("predictions"), list):
            raise ValueError("it holds no predictions")
        read = [_with_derived(one, Prediction.of(one)) for one in document["predictions"]]
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise PredictionError(
            f"{one_line(path)} is no prediction ({why}); save one: laptime predict … --json > it"
        ) from None
    return document | {"predictions": read}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Derived:
    """What a document says of a prediction that follows from the rest; None where it does not say it."""

    samples_per_s: float | None = None
    fits: bool | None = None
    epoch_s: float | None = None
    training_s: float | None = None
    dollars: float | None = None
    kilowatt_hours: float | None = None


def _with_derived(document: Row, prediction: Prediction) -> Row:
    told = asdict(build(_Derived, document))
    derived = {name: getattr(prediction, name) if value is None else value for name, value in told.items()}
    fields: Row = plain(prediction)
    return document | fields | derived


def against(run: Run, path: Path) -> Row:
    """The run's median step and the prediction: step, phases, layers, and how far they are apart."""
    predicted, found = read_prediction(path), measured_step(run)
    _comparable(predicted, found)
    same = same_device(run, predicted["device"])
    rows = _layers(predicted, found, run)
    layers = [row for row in rows if row["layer"] != HOST]
    low, high = predicted["interval_s"]
    document = dict(
        plain(
            {
                "same_device": same,
                "run": {"id": run.id, "path": str(run.path), "device": found.device, "steps": found.steps},
                "prediction": {"path": str(path)}
                | {name: predicted[name] for name in ("network", "device", "batch", "mode", "basis")},
                "step": _row(found.step_s.median, predicted["step_s"])
                | {"low": found.step_s.low, "high": found.step_s.high}
                | {"interval": [low, high], "inside": low <= found.step_s.median <= high},
                "phases": [{"phase": phase.value, **_summed(layers, phase.value)} for phase in Phase],
                "layers": rows,
                "layer_error": _weighted(layers, ("total",)),
                "layer_phase_error": _weighted(layers, [phase.value for phase in Phase]),
                "notes": list(_notes(predicted, found, run, layers, same)),
            }
        )
    )
    return _of_two_devices(document) if same is False else document


def _of_two_devices(document: Row) -> Row:
    """Without what only one device can be told: errors, and whether an interval was kept."""
    cells = [document["step"], *document["phases"]]
    cells += [row[key] for row in document["layers"] for key in (*(one.value for one in Phase), "total")]
    for one in cells:
        one["error"] = None
    document["step"]["inside"] = None
    return document | {"layer_error": None, "layer_phase_error": None}


def _comparable(predicted: Row, found: MeasuredStep) -> None:
    if predicted["mode"] != found.mode:
        raise PredictionError(
            f"the run measured {found.mode}, the prediction is of {predicted['mode']}; predict the same"
        )
    if found.batch is not None and abs(found.batch / predicted["batch"] - 1) > _SAME_BATCH:
        raise PredictionError(
            f"the run has {found.batch:g} samples in a step, the prediction {predicted['batch']}; "
            f"predict it with --batch {found.batch:g}"
        )
    if not found.step_s.median > 0:
        raise PredictionError("the run's steps took no time beside waiting; record some that compute")
    if predicted["gpus"] != 1:
        raise PredictionError("the prediction is of several GPUs; predict it with --gpus 1")


def _layers(predicted: Row, found: MeasuredStep, run: Run) -> list[Row]:
    """Layers in the run's order, then those that only one side has."""
    times = {one["layer"]: one for one in predicted["layer_times"]}
    names = [layer.name for layer in run.network]
    names += [name for name, _ in found.layers if name not in names]
    names = list(dict.fromkeys([*names, *times]))
    names.sort(key=lambda name: name == LOSS_LAYER)  # the loss last
    rows = []
    for name in names:
        mine = {phase: found.layers.get((name, phase)) for phase in Phase}
        theirs = times.get(name)
        if theirs is None and not any(mine.values()):
            continue
        if name == HOST:  # which was measured as an account, in no phase
            rows.append(_host_row(found, theirs))
            continue
        row: Row = {"layer": name}
        for phase in Phase:
            measured = mine[phase]
            seconds = measured.seconds if measured is not None else None
            row[phase.value] = _row(seconds, theirs and theirs[f"{phase.value}_s"])
        whole = [one.seconds for one in mine.values() if one is not None]
        row["total"] = _row(
            sum(whole) if whole else None, theirs and sum(theirs[f"{phase.value}_s"] for phase in Phase)
        )
        rows.append(row)
    return rows


def _host_row(found: MeasuredStep, theirs: Mapping[str, float] | None) -> Row:
    whole = None if theirs is None else sum(theirs[f"{phase.value}_s"] for phase in Phase)
    return {"layer": HOST, **{phase.value: _row(None, None) for phase in Phase}} | {
        "total": _row(found.host_s, whole)
    }


def _row(measured: float | None, predicted: float | None) -> Row:
    ratio = predicted / measured if measured and predicted is not None else None
    return {
        "measured": measured,
        "predicted": predicted,
        "ratio": ratio,
        "error": None if ratio is None else ratio - 1,
    }


def _summed(layers: Sequence[Row], key: str) -> Row:
    return _row(*(sum(row[key][side] or 0.0 for row in layers) for side in ("measured", "predicted")))


def _weighted(layers: Sequence[Row], keys: Sequence[str]) -> float | None:
    """Differences over measured time, all added up: a layer counts as much as it takes."""
    cells = [row[key] for row in layers for key in keys]
    whole = sum(one["measured"] or 0.0 for one in cells)
    apart = sum(abs((one["predicted"] or 0.0) - (one["measured"] or 0.0)) for one in cells)
    return apart / whole if whole else None


def _notes(
    predicted: Row, found: MeasuredStep, run: Run, layers: Sequence[Row], same: bool | None
) -> list[str]:
    said = ["measured are medians over steps, without waiting for data, copies and other processes"]
    device = device_of(run)
    if same is None:
        said.append(f"whether {found.device or 'the run’s device'} is {predicted['device']} is not known")
    elif not same:
        own = found.device if device is None else device.name
        said.append(
            f"the devices differ: measured on {own or 'another'}, predicted for {predicted['device']}; "
            "how right the prediction is shows beside a run on that device"
        )
    for side, other in (("measured", "predicted"), ("predicted", "measured")):
        only = [row["layer"] for row in layers if row["total"][other] is None]
        if only:
            more = f" and {len(only) - 8} more" if len(only) > 8 else ""
            said.append(f"only {side}: {', '.join(map(one_line, only[:8]))}{more}")
    whole = sum(row["total"]["measured"] or 0.0 for row in layers)
    if whole > _TOO_MUCH * found.step_s.median:
        said.append(
            f"measured layers add up to {whole * 1e3:.3g} ms, more than the step: they are of steps whose "
            "layers were marked, and those were slower than most"
        )
    if "refined by run " + found.run in str(predicted["basis"]):
        said.append("the prediction was refined by this very run, so its error says nothing")
    return [*said, *map(str, predicted.get("notes") or ())]


def summary_of(found: Mapping[str, Any]) -> str:
    """The step's error and the layers' in one line; of two devices, how much faster the other is."""
    step, each = found["step"], found["layer_error"]
    if found["same_device"] is False:
        own, other = found["run"]["device"] or "the run’s device", found["prediction"]["device"]
        return (
            f"a step is predicted to take {step['ratio']:.3g} times as long on {other} as it took on {own}: "
            "the ratio of two devices' speeds, no error of the prediction"
        )
    inside = "inside" if step["inside"] else "outside"
    apart = "" if each is None else f"; layers are {each * 100:.1f} % off, weighted by their time"
    whole = f"the predicted step is {step['error'] * 100:+.1f} % off, {inside} its interval"
    return whole + apart + _beside(found)


def host_of(found: Mapping[str, Any]) -> list[tuple[str, Row]]:
    """The row that stands below the phases, so that they add up to the step; none where neither has it."""
    return [(HOST, row["total"]) for row in found["layers"] if row["layer"] == HOST]


def _beside(found: Mapping[str, Any]) -> str:
    """What (host) has of both, which is no layer and not in their error."""
    host = dict(host_of(found)).get(HOST, {})
    both = {side: host.get(side) or 0.0 for side in ("predicted", "measured")}
    if max(both.values()) < _WORTH_SAYING * found["step"]["measured"]:
        return ""
    sides = ", ".join(f"{seconds * 1e3:.3g} ms {side}" for side, seconds in both.items())
    return f"; {HOST}, Python between the phases, is no layer: {sides}"
