"""`laptime predict`: how long a step takes on machines that are not here, what memory and money it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli import synthetic
from laptime.cli.options import EveryLayer, Json, wrong
from laptime.cli.outcome import answer, say
from laptime.cli.progress import waiting
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.predict.prediction import Prediction
    from laptime.workload import Workload


def predict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A network of the zoo, module:callable, or a saved workload (.json)."
        ),
    ],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="A name of `laptime devices`, a file, or cpu; several, or 'all'."),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", help="Samples in a step; several: 32,64,128.")] = "32",
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Of one node, each with its own batch.")] = 1,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SHAPE", help="One sample: 3x224x224, or int64:128 for token ids."),
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, or autocast: bf16, fp16.")] = "fp32",
    inference: Annotated[bool, typer.Option("--inference", help="Forward passes only.")] = False,
    optimizer: Annotated[str, typer.Option("--optimizer", help="Of the training.")] = "momentum",
    samples: Annotated[int | None, typer.Option("--samples", help="In an epoch.", show_default=False)] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Of the training.", show_default=False)
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price", help="Dollars an hour; by default the catalog's example.", show_default=False
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Also save the workload as JSON.", show_default=False)
    ] = None,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Predict the time of a training step, layer by layer, without running it.

    The times of an H200 rest on measured operations; those of other devices on their data sheets.
    """
    from laptime import hardware
    from laptime.predict import devices

    asked = device or ["h200"]
    chosen = hardware.devices() if asked == ["all"] else [devices.device(one) for one in asked]
    sizes = _sizes(batch)
    with waiting("reading the network"):
        workloads = _workloads(
            name, sizes, inputs, precision, "inference" if inference else "training", optimizer
        )
    if save is not None:
        if len(workloads) > 1:
            wrong("--save", "a workload has one batch size; give one --batch")
        workloads[0].save(save)
        say(f"the workload is in {save}")
    found = _predicted(workloads, chosen, samples, epochs, price, gpus)
    if as_json:
        answer({"predictions": [_document(one) for one in found]})
        return
    from laptime.report import prediction, terminal

    to = terminal.console()
    terminal.print_lines(prediction.lines(found, to.width, every_layer=every_layer), to)


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        wrong("--batch", f"{text!r} is not a number above 0, nor several such as 32,64")
    return [int(part) for part in parts]


def _workloads(
    name: str, sizes: Sequence[int], inputs: Sequence[str] | None, precision: str, mode: str, optimizer: str
) -> list[Workload]:
    if name.endswith(".json"):
        from laptime.workload import Workload

        return [Workload.load(name)]
    quiet_torch()
    from laptime import api

    network, make, loss = _subject(name, inputs, mode)
    return [
        api.workload(
            network,
            example=make(size),
            precision=precision,
            mode=mode,
            optimizer=optimizer,
            loss=loss,
            name=name,
        )
        for size in sizes
    ]


def _subject(name: str, inputs: Sequence[str] | None, mode: str) -> tuple[Any, Any, Any]:
    """A network without memory, what makes a batch for it, and its loss."""
    import torch

    from laptime.train import target

    try:
        given = [synthetic.parse(text) for text in inputs or ()]
    except ValueError as error:
        wrong("--input", str(error))
    known = None
    if ":" not in name:
        from laptime.train.networks.registry import entry

        known = entry(name)
    elif not given:
        target.attribute(name)
        wrong("--input", f"{name} does not say what it takes; give one sample's shape, such as 3x224x224")
    with torch.device("meta"):
        network = target.network(name)
    if given or known is None:
        shapes = [(one.shape, getattr(torch, one.dtype)) for one in given]
        return network, _maker(shapes), None
    x = (known.input, torch.int64 if known.ids else torch.float32)
    if mode == "inference":
        return network, _maker([x]), None
    y = (known.input if known.ids and not known.classes else (), torch.int64)
    goal = known.goal(None)
    return network, _maker([x, y]), lambda net, batch: goal.judge(net, batch).loss


def _maker(shapes: Sequence[tuple[tuple[int, ...], Any]]) -> Any:
    import torch

    def make(size: int) -> tuple[Any, ...]:
        return tuple(torch.zeros((size, *shape), dtype=dtype, device="meta") for shape, dtype in shapes)

    return make


def _predicted(
    workloads: Sequence[Workload],
    devices: Sequence[Any],
    samples: int | None,
    epochs: int | None,
    price: float | None,
    gpus: int,
) -> list[Prediction]:
    from dataclasses import replace

    from laptime import hardware
    from laptime.predict.predicting import predict_all

    found = []
    for workload in workloads:
        for one, made in zip(
            devices,
            predict_all(workload, devices, samples=samples, epochs=epochs, price_per_hour=price, gpus=gpus),
            strict=True,
        ):
            example = hardware.price(one)
            if price is None and example is not None:
                made = replace(made, price_per_hour=example.dollars_per_hour)
            found.append(made)
    return found


def _document(one: Prediction) -> dict[str, Any]:
    from laptime.store.files import plain

    derived = ("samples_per_s", "fits", "epoch_s", "training_s", "dollars", "kilowatt_hours")
    document: dict[str, Any] = plain(one)
    return document | {name: getattr(one, name) for name in derived}
