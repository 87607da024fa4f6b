"""The pages of saved predictions: alone, and one beside the run that it is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from laptime.errors import PredictionError
from laptime.files.text import one_line
from laptime.render.html.page import Page, Section, Table, Tile
from laptime.render.html.prediction_tables import (
    beside_table,
    constants_table,
    flow_table,
    kinds_table,
    predictions_table,
)
from laptime.views import format
from laptime.views.figures import prediction as figures
from laptime.views.predicted_comparison import host_of, read_document, summary_of
from laptime.views.time_units import duration, long_duration

_GIB = 2.0**30
_TONES = {"True": "good", "False": "bad"}  # by whether it fits

Row = Mapping[str, Any]


def read_predictions(paths: Sequence[Path]) -> dict[str, Any]:
    """The documents of `laptime predict --json` as one, the predictions of several files in their order.

    What else was asked for is kept of one file alone: it is said of its own predictions.
    """
    found = [_read(path) for path in paths]
    if len(found) == 1:
        return found[0]
    return {"predictions": [one for document in found for one in document["predictions"]]}


def _read(path: Path) -> dict[str, Any]:
    document = read_document(path)
    if not document["predictions"]:
        raise PredictionError(
            f"{one_line(path)} holds no prediction; save one: laptime predict … --json > it"
        )
    return document


# -- predictions alone -----------------------------------------------------------------------------


def prediction_page(document: Mapping[str, Any]) -> Page:
    """Everything that a document of `laptime predict --json` says, of one device or of many."""
    found = document["predictions"]
    choices = document.get("choices") or []
    chosen = choices[0].get("chosen") if choices else None
    one = chosen or found[0]
    name = figures.titles([*found, one])[-1]
    what = "forward pass" if one["mode"] == "inference" else "training step"
    networks = list(dict.fromkeys(str(each["network"]) for each in found))
    sections = [
        _answers(found, choices),
        _devices(found, document),
        _layers(one, name),
        Section(name="memory", title="Memory", figures=[figures.memory(found)]),
        _flow(document),
        _limits(found),
        _explanation(document.get("explanation")),
    ]
    return Page(
        title=f"{one_line(', '.join(networks))}: a {what}, predicted",
        subtitle=f"{format.plural(len(found), 'prediction')}; nothing here was measured",
        about=_about(found),
        tiles=list(_tiles(one, name)),
        sections=[section for section in sections if not section.empty],
    )


def _about(found: Sequence[Row]) -> list[str]:
    told = []
    for key, title in (("precision", "{}"), ("batch", "batch {}"), ("gpus", "{} GPUs of one node")):
        values = list(dict.fromkeys(str(one[key]) for one in found))
        if values != ["1"] or key == "batch":
            told.append(one_line(title.format(", ".join(values))))
    return told


def _tiles(one: Row, name: str) -> Iterator[Tile]:
    low, high = (duration(end) for end in one["interval_s"])
    yield Tile(
        name=f"a step on {one_line(name)}",
        value=duration(one["step_s"]),
        note=f"nine in ten: {low} to {high}",
    )
    yield Tile(name="samples a second", value=f"{one['samples_per_s']:,.0f}")
    for key, title in (("training_s", "training"), ("epoch_s", "an epoch")):
        if one.get(key) is not None:
            note = format.plural(one["epochs"], "epoch") if key == "training_s" and one.get("epochs") else ""
            yield Tile(name=title, value=long_duration(one[key]), note=note)
            break
    if one.get("dollars") is not None:
        price = one.get("price_per_hour")
        note = "" if price is None else f"at ${price:,.2f} an hour for each GPU"
        yield Tile(name="money", value=f"${one['dollars']:,.2f}", note=note)
    if one.get("kilowatt_hours") is not None:
        yield Tile(name="energy", value=f"{one['kilowatt_hours']:,.1f} kWh", note="at full power")
    room = one.get("device_memory_bytes")
    note = "" if not room else f"of {room / _GIB:,.0f} GiB"
    fits = one.get("fits")
    if fits is not None:
        note += ": it fits" if fits else ": it does not fit"
    needed = f"{one['reserved_memory_bytes'] / _GIB:,.1f} GiB"
    yield Tile(name="memory", value=needed, note=note.strip(": "), tone=_TONES.get(str(fits), ""))
    cause, _, share = str(one["bottleneck"]).partition(": ")
    yield Tile(name="bottleneck", value=one_line(cause), note=one_line(share))


def _answers(found: Sequence[Row], choices: Sequence[Row]) -> Section:
    """What was chosen, where that was asked for."""
    told = []
    for one in choices:
        told.append(f"{one.get('wanted')}: {one.get('why')}")
        told += [str(words_) for words_ in one.get("left_out") or ()]
    if told:
        told.append("every batch size is taken to need the same epochs")
    unfit = [name for name, one in zip(figures.titles(found), found, strict=True) if one.get("fits") is False]
    if unfit and len(found) > 1:
        named = ", ".join(unfit[:6]) + (f" and {len(unfit) - 6} more" if len(unfit) > 6 else "")
        told.append(f"does not fit: {named}")
    return Section(name="first", title="What to know first", bullets=[one_line(line) for line in told])


def _devices(found: Sequence[Row], document: Row) -> Section:
    drawn = [figures.step_times(found)] if len(found) > 1 else []
    more = [figures.throughput(found, over) for over in ("batch", "gpus")]
    return Section(
        name="devices",
        title="Devices" if len({one["device"] for one in found}) > 1 else "Predictions",
        figures=[*drawn, *(figure for figure in more if figure is not None)],
        tables=[predictions_table(found, document)],
    )


def _layers(one: Row, name: str) -> Section:
    drawn = figures.layers(one, one_line(name))
    told = [] if drawn else ["This prediction names no layers."]
    if drawn and one.get("gpus", 1) > 1:
        told = [f"Layers of one GPU; the exchange of gradients adds {duration(one['communication_s'])}."]
    return Section(name="layers", title="Layers", sentences=told, figures=[drawn] if drawn else [])


def _flow(document: Row) -> Section:
    flows = document.get("data_flow") or []
    made: list[Table] = [flow_table(flows)] if flows else []
    told = list(dict.fromkeys(str(line) for one in flows for line in one.get("rests_on") or ()))
    return Section(name="flow", title="Data flow", tables=made, bullets=[one_line(line) for line in told])


def _limits(found: Sequence[Row]) -> Section:
    """What the times rest on, what was assumed and what is not covered; what holds for all is said once."""
    said: dict[str, list[str]] = {}
    for name, one in zip(figures.titles(found), found, strict=True):
        lines = [f"times rest on: {one['basis']}", *map(str, one.get("notes") or ())]
        lines += [
            f"without a formula, counted by its bytes alone: {operation} ({share:.1%} of the bytes)"
            for operation, share in (one.get("uncovered") or {}).items()
        ]
        for line in lines:
            said.setdefault(line, []).append(name)
    bullets = []
    for line, names in said.items():
        whose = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        bullets.append(one_line(line if len(names) == len(found) else f"{whose}: {line}"))
    if not any(one.get("uncovered") for one in found):
        bullets.append("every operation of the step has a formula: nothing is left uncovered")
    return Section(name="limits", title="What it rests on", bullets=bullets[:60])


def _explanation(explained: Row | None) -> Section:
    made = []
    if explained:
        made = [kinds_table(explained.get("kinds") or ()), constants_table(explained.get("constants") or ())]
    return Section(name="explanation", title="Explanation", tables=[one for one in made if one.rows])


# -- beside a run ----------------------------------------------------------------------------------


def beside_page(found: Mapping[str, Any]) -> Page:
    """A run and its prediction, layer by layer, from the document of `comparison_predicted.against`."""
    run, made = found["run"], found["prediction"]
    drawn = [figures.layers_beside(found["layers"]), figures.errors(found["layers"])]
    off = "ratio" if found["same_device"] is False else "off"
    sections = [
        Section(
            name="first",
            title="What to know first",
            bullets=[one_line(line) for line in (summary_of(found), *found["notes"])],
        ),
        Section(
            name="phases", title="Phases", tables=[beside_table("phases", "phase", _phases(found), off=off)]
        ),
        Section(
            name="layers",
            title="Layers",
            figures=[figure for figure in drawn if figure is not None],
            tables=[
                beside_table(
                    "layers",
                    "layer",
                    [(row["layer"], row["total"]) for row in found["layers"]],
                    phases=found["layers"],
                    off=off,
                )
            ],
        ),
        Section(
            name="limits", title="What it rests on", bullets=[one_line(f"times rest on: {made['basis']}")]
        ),
    ]
    return Page(
        title=f"{one_line(made['network'])}: measured and predicted",
        subtitle=f"{one_line(run['path'])} beside {one_line(made['path'])}",
        about=[
            one_line(
                f"measured on {run['device'] or 'an unknown device'}, {format.plural(run['steps'], 'step')}"
            ),
            one_line(f"predicted for {made['device']}"),
            f"batch {made['batch']}",
        ],
        tiles=list(_beside_tiles(found)),
        sections=[section for section in sections if not section.empty],
    )


def _phases(found: Row) -> list[tuple[str, Row]]:
    rows = [(row["phase"], row) for row in found["phases"] if row["measured"] or row["predicted"]]
    return [*rows, *host_of(found), ("step", found["step"])]


def _beside_tiles(found: Row) -> Iterator[Tile]:
    step = found["step"]
    low, high = (duration(end) for end in step["interval"])
    yield Tile(name="measured step", value=duration(step["measured"]), note="without waiting for data")
    yield Tile(name="predicted step", value=duration(step["predicted"]), note=f"nine in ten: {low} to {high}")
    if found["same_device"] is False:
        yield Tile(name="predicted over measured", value=f"{step['ratio']:.3g}x", note="of two devices")
    if step["error"] is not None:
        inside = "inside its interval" if step["inside"] else "outside its interval"
        tone = ("good" if step["inside"] else "bad") if found["same_device"] else ""
        yield Tile(name="off by", value=f"{step['error'] * 100:+.1f} %", note=inside, tone=tone)
    if found["layer_error"] is not None:
        each = f"{found['layer_error'] * 100:.1f} %"
        yield Tile(name="layers are off by", value=each, note="weighted by their time")
