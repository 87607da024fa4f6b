"""`laptime predict`: how long a step takes on machines that are not here, what memory and money it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from laptime.cli import predict_options as options
from laptime.cli.options import EveryLayer, Json, wrong
from laptime.cli.outcome import answer, say
from laptime.cli.predict_checks import above_0, check_gpus, check_training, named_device
from laptime.cli.predict_document import document
from laptime.cli.predict_target import Read, Subject, Words, subject
from laptime.cli.progress import waiting

if TYPE_CHECKING:
    from laptime.estimate.choose_device import DeviceChoice
    from laptime.estimate.dataflow_step import Fed, Feed
    from laptime.estimate.explain import Explanation
    from laptime.estimate.largest_batch import Largest
    from laptime.hardware import Device
    from laptime.model import Workload
    from laptime.model.prediction import Prediction


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
    as_json: Json = False,
) -> None:
    """Predict the time of a training step, layer by layer, without running it.

    Times of an H200, and of what `laptime calibrate` ran on, rest on measured operations; those of other
    devices on their data sheets and the H200's times.
    """
    counts = _numbers("--gpus", gpus)
    sizes = None if batch is None else _numbers("--batch", batch)
    above_0(samples=samples, epochs=epochs, price=price, within=within, under=under, decode_rate=decode_rate)
    check_gpus(counts, gpus_per_link)
    check_training(samples, epochs, within, under)
    if same_samples and (samples is not None or epochs is not None):
        wrong("--same-samples", "it is for one step; hours are of GPUs with samples of their own")
    feed = _feed(
        sample_bytes, storage, remote, decode_cores, decode_rate, link, gpus_per_link, host_memory,
        no_prefetch, same_samples, direct,
    )  # fmt: skip
    training = {"samples": samples, "epochs": epochs, "price_per_hour": price}
    with waiting("reading the network"):
        chosen = _devices(device, within is not None or under is not None, counts)
        words = Words(inputs=inputs, precision=precision, optimizer=optimizer, inference=inference)
        asked = subject(name, words)
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
    found = _waited(fed) or alone
    choices = _choices(found, within, under)
    explained = _explained(found, choices, asked.read, chosen, feed is not None) if explain else None
    if as_json:
        answer(document(found, fed, room, choices, explained))
        return
    from laptime.render.terminal import prediction, run_text

    to = run_text.console()
    shown = prediction.Shown(predictions=found, fed=fed, largest=room, choices=choices, explanation=explained)
    run_text.print_lines(prediction.lines(shown, to.width, every_layer=every_layer), to)


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
    """Those that were named; or all, as far as they can do what is asked."""
    from laptime import hardware

    names = [part for text in asked or () for part in _names(text)]
    if names and "all" not in names:
        found = [named_device(one, counts) for one in names]
        return list({one.name: one for one in found}.values())
    if not names and not choosing:
        return [named_device("h200", counts)]
    every = hardware.devices()
    if choosing:
        every = tuple(one for one in every if hardware.price(one) is not None)
    if max(counts) > 1:
        every = tuple(one for one in every if one.kind == "gpu" and (one.gpu_link or one.host_link))
    return list(every)


def _names(text: str) -> list[str]:
    """`t4,a100` as two; a file's name may have a comma in it."""
    if Path(text).is_file():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


def _predicted(
    asked: Subject,
    sizes: Sequence[int],
    devices: Sequence[Device],
    counts: Sequence[int],
    training: dict[str, Any],
) -> list[Prediction]:
    return [
        _priced(made, one)
        for size in sizes
        for count in counts
        for one, made in zip(devices, asked.predict(size, devices, gpus=count, **training), strict=True)
    ]


def _priced(made: Prediction, device: Device) -> Prediction:
    """With the catalog's price where none was given."""
    from dataclasses import replace

    from laptime import hardware

    example = hardware.price(device) if made.price_per_hour is None else None
    return made if example is None else replace(made, price_per_hour=example.dollars_per_hour)


def _largest(
    asked: Subject,
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
        one
        for count in counts
        for one in largest(asked.read, devices, start=start, step=step, gpus=count, **training)
    ]


def _fed(feed: Feed, found: Sequence[Prediction], read: Read, devices: Sequence[Device]) -> list[Fed]:
    from laptime.estimate import dataflow_step

    by_name = {one.name: one for one in devices}
    return [dataflow_step.feed(feed, one, read(one.batch), by_name[one.device]) for one in found]


def _waited(fed: Sequence[Fed]) -> list[Prediction]:
    """The steps that wait for their data: all that is said is about these."""
    from laptime.estimate.dataflow_step import waited

    return [waited(one) for one in fed]


def _choices(found: Sequence[Prediction], within: float | None, under: float | None) -> list[DeviceChoice]:
    from laptime.estimate.choose_device import choose

    return [] if within is None and under is None else [choose(found, within=within, under=under)]


def _explained(
    found: Sequence[Prediction],
    choices: Sequence[DeviceChoice],
    read: Read,
    devices: Sequence[Device],
    flows: bool,
) -> Explanation | None:
    from laptime.estimate.explain import explain

    chosen = [choice.chosen or choice.closest for choice in choices]
    which = chosen[0] if chosen else found[0]
    if which is None or (not chosen and len(found) > 1):
        wrong("--explain", "it explains one prediction; give one --device, one --batch and one --gpus")
    own = next(one for one in devices if one.name == which.device)
    return explain(read(which.batch), own, which, flows=flows)
