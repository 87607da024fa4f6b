"""`laptime predict`: how long a step takes on machines that are not here, what memory and money it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Argument, Option

from laptime.cli import options
from laptime.cli.options import wrong
from laptime.cli.outcome import Outcome, quiet_torch, say, verb, waiting

if TYPE_CHECKING:
    from laptime.estimate.dataflow import Feed
    from laptime.estimate.explain import Explanation
    from laptime.hardware import Device
    from laptime.training.prediction_target import PredictionTarget
    from laptime.views.prediction import PredictionView

_TARGET_HELP = (
    "A network of the zoo or a type of transformers (gpt2), module:callable, file.py:callable, a recorded "
    "run, or a saved workload (.json)."
)
_DEVICE_HELP = (
    "A name of `laptime devices`, a file, or cpu; several: t4,h200, or 'all'. By default h200; for --within "
    "and --under all that have a price."
)
_BATCH_HELP = "Samples in a step; several: 32,64,128. By default 32, or a run's."
_GPUS_HELP = "Of one node, 16 at most, each with its own batch; several: 1,2,4,8."
_INPUT_HELP = "One sample: 3x224x224, or int64:128 for token ids."
_PRICE_HELP = "Dollars an hour of one GPU; by default the catalog's example."
_WITHIN_HELP = "Choose the cheapest that trains within it."
_UNDER_HELP = "Choose the fastest that trains for it; with --within, the cheapest within both."
_LARGEST_HELP = "Also the largest batch that fits each device."
_EXPLAIN_HELP = "Every constant with its source, and where the time goes."
_STORAGE_HELP = "Data flow: hdd, ssd, nvme …, or a RAID 0 such as 5xnvme; by default the host's memory."
_REMOTE_HELP = "Data flow: what the data comes over, such as 10GbE; by default it is kept at the node."
_RATE_HELP = "Data flow: samples a second of one core; by default Pillow's, JPEG with crop and resize."
_LINK_HELP = "Data flow: from host to GPU, such as pcie4; by default the device's."
_PER_LINK_HELP = "Data flow: GPUs that one link serves in turn."
_MEMORY_HELP = "Data flow: pinned, shared (the default) or pageable."
_PREFETCH_HELP = "Data flow: fetch a batch only when the last is done."
_SAME_HELP = "Data flow: every GPU gets the same, as parts of a model do."
_DIRECT_HELP = "Data flow: … and they hand it on from GPU to GPU."


@verb
def predict(
    name: Annotated[str, Argument(metavar="TARGET", help=_TARGET_HELP)],
    device: Annotated[list[str] | None, Option("--device", help=_DEVICE_HELP)] = None,
    batch: Annotated[str | None, Option("--batch", help=_BATCH_HELP)] = None,
    gpus: Annotated[str, Option("--gpus", help=_GPUS_HELP)] = "1",
    inputs: Annotated[list[str] | None, Option("--input", metavar="SHAPE", help=_INPUT_HELP)] = None,
    precision: Annotated[str | None, Option(help="fp32 (the default), or autocast: bf16, fp16.")] = None,
    inference: options.Inference = False,
    optimizer: Annotated[str | None, Option(help="Of the training; by default momentum.")] = None,
    samples: Annotated[int | None, Option(help="In an epoch; alone: its time.")] = None,
    epochs: Annotated[int | None, Option(help="Of the training; with --samples.")] = None,
    price: Annotated[float | None, Option(help=_PRICE_HELP)] = None,
    within: Annotated[float | None, Option(metavar="HOURS", help=_WITHIN_HELP)] = None,
    under: Annotated[float | None, Option(metavar="DOLLARS", help=_UNDER_HELP)] = None,
    largest_batch: Annotated[bool, Option("--largest-batch", help=_LARGEST_HELP)] = False,
    explain: Annotated[bool, Option("--explain", help=_EXPLAIN_HELP)] = False,
    sample_bytes: Annotated[float | None, Option(help="Data flow: bytes of one stored sample.")] = None,
    storage: Annotated[str | None, Option(help=_STORAGE_HELP)] = None,
    remote: Annotated[str | None, Option(metavar="LINK", help=_REMOTE_HELP)] = None,
    decode_cores: Annotated[int | None, Option(min=1, help="Data flow: cores that decode.")] = None,
    decode_rate: Annotated[float | None, Option(help=_RATE_HELP)] = None,
    link: Annotated[str | None, Option(help=_LINK_HELP)] = None,
    gpus_per_link: Annotated[int | None, Option(min=1, help=_PER_LINK_HELP)] = None,
    host_memory: Annotated[str | None, Option(help=_MEMORY_HELP)] = None,
    no_prefetch: Annotated[bool, Option("--no-prefetch", help=_PREFETCH_HELP)] = False,
    same_samples: Annotated[bool, Option("--same-samples", help=_SAME_HELP)] = False,
    direct: Annotated[bool, Option("--direct", help=_DIRECT_HELP)] = False,
    save: Annotated[Path | None, Option(help="Also save the workload as JSON.")] = None,
    every_layer: options.EveryLayer = False,
) -> Outcome:
    """Predict the time of a training step, layer by layer, without running it.

    Times of an H200, and of what `laptime calibrate` ran on, rest on measured operations; those of other
    devices on their data sheets and the H200's times.
    """
    from laptime.estimate.choose_device import choose
    from laptime.estimate.dataflow import feed as fed_by
    from laptime.estimate.dataflow import waited
    from laptime.estimate.largest_batch import largest
    from laptime.estimate.predict import MOST_GPUS
    from laptime.render.terminal.prediction import prediction_lines
    from laptime.views.prediction import PredictionView

    counts = _numbers("--gpus", gpus)
    if max(counts) > MOST_GPUS:
        wrong("--gpus", f"{max(counts)} GPUs are more than one node has; give {MOST_GPUS} at most")
    sizes = [] if batch is None else _numbers("--batch", batch)
    _above_0(samples=samples, epochs=epochs, price=price, within=within, under=under, decode_rate=decode_rate)
    _whole_training(samples, epochs, within=within, under=under, same_samples=same_samples)
    feed = _feed(
        counts,
        sample_bytes=sample_bytes,
        storage=storage,
        remote=remote,
        decode_cores=decode_cores,
        decode_rate=decode_rate,
        link=link,
        gpus_per_link=gpus_per_link,
        memory=host_memory,
        prefetch=False if no_prefetch else None,
        same_samples=same_samples or None,
        direct=direct or None,
    )
    choosing = within is not None or under is not None
    with waiting("reading the network"):
        devices = _devices(device, choosing, counts)
        target = named_target(name, inputs, precision, optimizer, inference)
        if explain and inference and not target.traced:
            wrong("--explain", "of a run it explains training steps; name the network instead")
        sizes = sizes or [target.batch]
        steps = [
            partial(target.predict, gpus=count, samples=samples, epochs=epochs, price_per_hour=price)
            for count in counts
        ]
        predictions = [made for size in sizes for step in steps for made in step(size, devices)]
        fitting = [largest(step, devices, start=sizes[0]) for step in steps] if largest_batch else []
        by_name = {each.name: each for each in devices}
        flows = []
        if feed is not None:
            flows = [
                fed_by(feed, made, target.read(made.batch), by_name[made.device]) for made in predictions
            ]
            predictions = [waited(made, flow.times) for made, flow in zip(predictions, flows, strict=True)]
    if save is not None:
        if len(sizes) > 1:
            wrong("--save", "a workload has one batch size; give one --batch")
        target.read(sizes[0]).save(save)
        say(f"the workload is in {save}")
    view = PredictionView(
        predictions=tuple(predictions),
        flows=tuple(flows),
        largest=tuple(each for of_count in fitting for each in of_count),
        choices=(choose(predictions, within=within, under=under),) if choosing else (),
    )
    if explain:
        view = replace(view, explanation=_explanation(view, target, by_name))
    return Outcome(
        document=view.document, lines=lambda width: prediction_lines(view, width, every_layer=every_layer)
    )


def _whole_training(
    samples: int | None, epochs: int | None, *, within: float | None, under: float | None, same_samples: bool
) -> None:
    """Options that are about more than a step need the training."""
    if (within is not None or under is not None) and (samples is None or epochs is None):
        asking = "--under" if within is None else "--within"
        wrong(asking, "it is about the whole training; give --samples and --epochs too")
    if epochs is not None and samples is None:
        wrong("--epochs", "how many samples has an epoch? give --samples too")
    if same_samples and samples is not None:
        wrong("--same-samples", "it is for one step; hours are of GPUs with samples of their own")


def _feed(counts: Sequence[int], **options: Any) -> Feed | None:
    """Where samples come from, by the fields of `Feed`; None where no option asks for the data flow."""
    from laptime.estimate.dataflow import Feed, Memory

    given = {name: value for name, value in options.items() if value is not None}
    feed = Feed(**given)
    if feed.gpus_per_link > min(counts):
        reason = f"{feed.gpus_per_link} GPUs cannot share a link where --gpus is {min(counts)}"
        wrong("--gpus-per-link", reason)
    if not (math.isfinite(feed.sample_bytes) and feed.sample_bytes >= 0):
        wrong("--sample-bytes", f"{feed.sample_bytes:g} is not a number of bytes")
    if (feed.storage or feed.remote) and not feed.sample_bytes:
        wrong("--sample-bytes", "how much is read for one sample? 110000 for a JPEG of ImageNet")
    if feed.memory not in get_args(Memory):
        wrong("--host-memory", f"{feed.memory!r} is none of {', '.join(get_args(Memory))}")
    if feed.direct and not feed.same_samples:
        alone = "every GPU has samples of its own, so there is nothing to hand on"
        wrong("--direct", f"{alone}; add --same-samples if they hold parts of one model")
    return feed if given else None


def _explanation(
    view: PredictionView, target: PredictionTarget, devices: Mapping[str, Device]
) -> Explanation:
    """Of what was chosen, or of the one prediction that there is."""
    from laptime.estimate.explain import explain

    made = view.predictions[0] if len(view.predictions) == 1 else None
    if view.choices:
        made = view.choices[0].chosen or view.choices[0].closest
    if made is None:
        wrong("--explain", "it explains one prediction; give one --device, one --batch and one --gpus")
    return explain(target.read(made.batch), devices[made.device], made, flows=bool(view.flows))


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        wrong(option, f"{text!r} is not a number above 0, nor several such as 1,2,4")
    return list(dict.fromkeys(int(part) for part in parts))


def _above_0(**given: float | None) -> None:
    """Options that are a number above 0 where they are given, by their names with underscores."""
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            wrong(f"--{name.replace('_', '-')}", f"{value:g} is not a number above 0")


def _devices(asked: Sequence[str] | None, choosing: bool, counts: Sequence[int]) -> list[Device]:
    """The named devices; or all that have a price or a link where the question needs it."""
    from laptime import hardware
    from laptime.estimate import device_speed

    names: list[str] = []
    for text in asked or ():  # a file name may contain a comma
        parts = [text] if Path(text).is_file() else [part.strip() for part in text.split(",")]
        names += list(filter(None, parts)) or [text]
    if "all" in names or (choosing and not names):
        every = hardware.devices()
        if choosing:
            every = tuple(device for device in every if hardware.price(device) is not None)
        linked = [each for each in every if each.kind == "gpu" and (each.gpu_link or each.host_link)]
        return linked if max(counts) > 1 else list(every)
    devices = {device.name: device for device in map(device_speed.device, names or ["h200"])}
    for device in devices.values():
        if device.kind == "cpu" and max(counts) > 1:
            reason = f"{device.name} is a CPU, of which a node has no {max(counts)}; leave --gpus out"
            wrong("--gpus", reason)
    return list(devices.values())


def named_target(
    name: str, inputs: Sequence[str] | None, precision: str | None, optimizer: str | None, inference: bool
) -> PredictionTarget:
    """What is predicted; an option that it cannot take ends the command."""
    quiet_torch()
    from laptime.errors import FixedOption, UnknownInput
    from laptime.training.prediction_target import NetworkOptions, prediction_target

    given = NetworkOptions(
        inputs=options.samples(inputs) or None,
        precision=precision,
        optimizer=optimizer,
        mode="inference" if inference else None,
    )
    try:
        return prediction_target(name, given)
    except FixedOption as error:
        option = {"inputs": "--input", "mode": "--inference"}.get(error.option, f"--{error.option}")
        wrong(option, error.reason)
    except UnknownInput as error:
        wrong("--input", str(error))
