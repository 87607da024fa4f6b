"""`laptime predict`: how long a step takes on machines that are not here, what memory and money it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from laptime.cli import predict_options as options
from laptime.cli import synthetic
from laptime.cli.options import EveryLayer, wrong
from laptime.cli.outcome import Outcome, say, verb
from laptime.cli.progress import waiting
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.estimate.choose_device import DeviceChoice
    from laptime.estimate.dataflow_step import Fed, Feed
    from laptime.estimate.explain import Explanation
    from laptime.estimate.largest_batch import Largest
    from laptime.hardware import Device
    from laptime.model import Workload
    from laptime.model.prediction import Prediction
    from laptime.training.prediction_target import PredictionTarget
    from laptime.views.prediction.view import PredictionView


@verb
def predict(
    name: options.Target,
    device: options.Devices = None,
    batch: options.Batch = None,
    gpus: options.Gpus = "1",
    inputs: options.Inputs = None,
    precision: options.Precision = None,
    inference: options.Inference = False,
    optimizer: options.Optimizer = None,
    samples: options.Samples = None,
    epochs: options.Epochs = None,
    price: options.Price = None,
    within: options.Within = None,
    under: options.Under = None,
    largest_batch: options.LargestBatch = False,
    explain: options.Explain = False,
    sample_bytes: options.SampleBytes = None,
    storage: options.Storage = None,
    remote: options.Remote = None,
    decode_cores: options.DecodeCores = None,
    decode_rate: options.DecodeRate = None,
    link: options.Link = None,
    gpus_per_link: options.GpusPerLink = None,
    host_memory: options.HostMemory = None,
    no_prefetch: options.NoPrefetch = False,
    same_samples: options.SameSamples = False,
    direct: options.Direct = False,
    save: options.Save = None,
    every_layer: EveryLayer = False,
) -> Outcome:
    """Predict the time of a training step, layer by layer, without running it.

    Times of an H200, and of what `laptime calibrate` ran on, rest on measured operations; those of other
    devices on their data sheets and the H200's times.
    """
    counts = _numbers("--gpus", gpus)
    sizes = None if batch is None else _numbers("--batch", batch)
    _above_0(samples=samples, epochs=epochs, price=price, within=within, under=under, decode_rate=decode_rate)
    _check_gpus(counts, gpus_per_link)
    _check_training(samples, epochs, within, under)
    if same_samples and (samples is not None or epochs is not None):
        wrong("--same-samples", "it is for one step; hours are of GPUs with samples of their own")
    feed = _feed(
        sample_bytes, storage, remote, decode_cores, decode_rate, link, gpus_per_link, host_memory,
        no_prefetch, same_samples, direct,
    )  # fmt: skip
    training = {"samples": samples, "epochs": epochs, "price_per_hour": price}
    with waiting("reading the network"):
        chosen = _devices(device, within is not None or under is not None, counts)
        asked = _target(name, inputs, precision, optimizer, inference)
        if explain and inference and not asked.traced:
            wrong("--explain", "of a run it explains training steps; name the network instead")
        sizes = sizes or [asked.batch]
        alone = _predicted(asked, sizes, chosen, counts, training)
        room = _largest(asked, sizes[0], chosen, counts, training) if largest_batch else []
        fed = _fed(feed, alone, asked.read, chosen) if feed is not None else []
    if save is not None:
        if len(sizes) > 1:
            wrong("--save", "a workload has one batch size; give one --batch")
        asked.read(sizes[0]).save(save)
        say(f"the workload is in {save}")
    predictions = _waited(fed) or alone
    choices = _choices(predictions, within, under)
    explained = _explained(predictions, choices, asked.read, chosen, feed is not None) if explain else None
    from laptime.views.prediction.view import DataFlow, PredictionView

    view = PredictionView(
        predictions=tuple(predictions),
        flows=tuple(map(DataFlow.of, fed)),
        largest=tuple(room),
        choices=tuple(choices),
        explanation=explained,
    )
    return Outcome(document=view.document(), show=lambda: _show(view, every_layer))


def _show(view: PredictionView, every_layer: bool) -> None:
    from laptime.render.terminal import prediction, run_text

    to = run_text.console()
    run_text.print_lines(prediction.lines(view, to.width, every_layer=every_layer), to)


def _above_0(**given: float | None) -> None:
    """Options that are a number above 0 where they are given, by their names with underscores."""
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            wrong(f"--{name.replace('_', '-')}", f"{value:g} is not a number above 0")


def _check_training(
    samples: int | None, epochs: int | None, within: float | None, under: float | None
) -> None:
    """Epochs alone say nothing; a choice needs the whole training."""
    if (within is not None or under is not None) and (samples is None or epochs is None):
        asking = "--within" if within is not None else "--under"
        wrong(asking, "it is about the whole training; give --samples and --epochs too")
    if epochs is not None and samples is None:
        wrong("--epochs", "how many samples has an epoch? give --samples too")


def _check_gpus(counts: Sequence[int], gpus_per_link: int | None) -> None:
    """Check that the GPUs fit one node and its links."""
    from laptime.estimate.predict import MOST_GPUS

    if max(counts) > MOST_GPUS:
        wrong("--gpus", f"{max(counts)} GPUs are more than one node has; give {MOST_GPUS} at most")
    if gpus_per_link is not None and gpus_per_link > min(counts):
        wrong("--gpus-per-link", f"{gpus_per_link} GPUs cannot share a link where --gpus is {min(counts)}")


def _named_device(name: str, counts: Sequence[int]) -> Device:
    """The device of that name, as many of it as were asked for."""
    from laptime.estimate import device_speed

    device = device_speed.device(name)
    if device.kind == "cpu" and max(counts) > 1:
        wrong("--gpus", f"{device.name} is a CPU, of which a node has no {max(counts)}; leave --gpus out")
    return device


def _target(
    name: str, inputs: Sequence[str] | None, precision: str | None, optimizer: str | None, inference: bool
) -> PredictionTarget:
    """What is predicted; an option that it cannot take ends the command."""
    quiet_torch()
    from laptime.errors import FixedOption, UnknownInput
    from laptime.training.prediction_target import NetworkOptions, prediction_target

    try:
        shapes = [synthetic.parse(text) for text in inputs or ()]
    except ValueError as error:
        wrong("--input", str(error))
    options = NetworkOptions(
        inputs=[(spec.shape, spec.dtype) for spec in shapes] or None,
        precision=precision,
        optimizer=optimizer,
        mode="inference" if inference else None,
    )
    try:
        return prediction_target(name, options)
    except FixedOption as error:
        option = {"inputs": "--input", "mode": "--inference"}.get(error.option, f"--{error.option}")
        wrong(option, error.reason)
    except UnknownInput as error:
        wrong("--input", str(error))


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        wrong(option, f"{text!r} is not a number above 0, nor several such as 1,2,4")
    return list(dict.fromkeys(int(part) for part in parts))


def _feed(
    sample_bytes: float | None,
    storage: str | None,
    remote: str | None,
    decode_cores: int | None,
    decode_rate: float | None,
    link: str | None,
    gpus_per_link: int | None,
    host_memory: str | None,
    no_prefetch: bool,
    same_samples: bool,
    direct: bool,
) -> Feed | None:
    """The data flow, if any of its options was given."""
    from laptime.estimate.dataflow import Memory
    from laptime.estimate.dataflow_step import Feed

    words = (sample_bytes, storage, remote, decode_cores, decode_rate, link, gpus_per_link, host_memory)
    if all(word is None for word in words) and not (no_prefetch or same_samples or direct):
        return None
    if sample_bytes is not None and not (math.isfinite(sample_bytes) and sample_bytes >= 0):
        wrong("--sample-bytes", f"{sample_bytes:g} is not a number of bytes")
    if (storage or remote) and not sample_bytes:
        wrong("--sample-bytes", "how much is read for one sample? 110000 for a JPEG of ImageNet")
    if host_memory is not None and host_memory not in get_args(Memory):
        wrong("--host-memory", f"{host_memory!r} is none of {', '.join(get_args(Memory))}")
    if direct and not same_samples:
        wrong(
            "--direct",
            "every GPU has samples of its own, so there is nothing to hand on; add --same-samples if they "
            "hold parts of one model",
        )
    return Feed(
        sample_bytes=sample_bytes or 0.0,
        storage=storage,
        remote=remote,
        decode_cores=decode_cores,
        decode_rate=decode_rate,
        link=link,
        gpus_per_link=gpus_per_link or 1,
        memory=cast("Memory", host_memory or "shared"),
        prefetch=not no_prefetch,
        same_samples=same_samples,
        direct=direct,
    )


def _devices(asked: Sequence[str] | None, choosing: bool, counts: Sequence[int]) -> list[Device]:
    """The named devices; or all that have a price or a link where the question needs it."""
    from laptime import hardware

    names = [part for text in asked or () for part in _names(text)]
    if names and "all" not in names:
        named = [_named_device(name, counts) for name in names]
        return list({device.name: device for device in named}.values())
    if not names and not choosing:
        return [_named_device("h200", counts)]
    every = hardware.devices()
    if choosing:
        every = tuple(device for device in every if hardware.price(device) is not None)
    if max(counts) > 1:
        every = tuple(
            device for device in every if device.kind == "gpu" and (device.gpu_link or device.host_link)
        )
    return list(every)


def _names(text: str) -> list[str]:
    """`t4,a100` as two names; a file name may contain a comma."""
    if Path(text).is_file():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


def _predicted(
    asked: PredictionTarget,
    sizes: Sequence[int],
    devices: Sequence[Device],
    counts: Sequence[int],
    training: dict[str, Any],
) -> list[Prediction]:
    return [
        _priced(made, device)
        for size in sizes
        for count in counts
        for device, made in zip(devices, asked.predict(size, devices, gpus=count, **training), strict=True)
    ]


def _priced(made: Prediction, device: Device) -> Prediction:
    """The prediction with the catalog's price where none was given."""
    from dataclasses import replace

    from laptime import hardware

    example = hardware.price(device) if made.price_per_hour is None else None
    return made if example is None else replace(made, price_per_hour=example.dollars_per_hour)


def _largest(
    asked: PredictionTarget,
    start: int,
    devices: Sequence[Device],
    counts: Sequence[int],
    training: dict[str, Any],
) -> list[Largest]:
    """In the order of `_predicted`, for one batch size."""
    from laptime.estimate.largest_batch import largest

    def step(workload: Workload, on: Sequence[Device], **more: Any) -> list[Prediction]:
        return asked.predict(workload.batch, on, **more)

    return [
        batch
        for count in counts
        for batch in largest(asked.read, devices, start=start, step=step, gpus=count, **training)
    ]


def _fed(
    feed: Feed, found: Sequence[Prediction], read: Callable[[int], Workload], devices: Sequence[Device]
) -> list[Fed]:
    from laptime.estimate import dataflow_step

    by_name = {device.name: device for device in devices}
    return [
        dataflow_step.feed(feed, estimate, read(estimate.batch), by_name[estimate.device])
        for estimate in found
    ]


def _waited(fed: Sequence[Fed]) -> list[Prediction]:
    """The predictions with the time that each step waits for its data added."""
    from laptime.estimate.dataflow_step import waited

    return [waited(step) for step in fed]


def _choices(found: Sequence[Prediction], within: float | None, under: float | None) -> list[DeviceChoice]:
    from laptime.estimate.choose_device import choose

    return [] if within is None and under is None else [choose(found, within=within, under=under)]


def _explained(
    found: Sequence[Prediction],
    choices: Sequence[DeviceChoice],
    read: Callable[[int], Workload],
    devices: Sequence[Device],
    flows: bool,
) -> Explanation | None:
    from laptime.estimate.explain import explain

    chosen = [choice.chosen or choice.closest for choice in choices]
    which = chosen[0] if chosen else found[0]
    if which is None or (not chosen and len(found) > 1):
        wrong("--explain", "it explains one prediction; give one --device, one --batch and one --gpus")
    own = next(device for device in devices if device.name == which.device)
    return explain(read(which.batch), own, which, flows=flows)
