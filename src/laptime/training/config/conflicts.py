"""Checks of values that are each valid but conflict with each other, the network or the files they name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from laptime.ops.optimizers import OPTIMIZERS
from laptime.training import optimizers
from laptime.training.config import fields
from laptime.training.config.network import NamedNetwork
from laptime.training.config.problems import Problem, hint, nearest, problem, shown
from laptime.training.config.schema import Config
from laptime.training.data.kinds import KINDS, DigitsData, FolderData, SyntheticData, TextData
from laptime.training.schedules import SCHEDULES

if TYPE_CHECKING:
    from laptime.training.networks.registry import ZooEntry

Problems = Iterator[Problem]


def conflicts(config: Config, network: NamedNetwork, given: Collection[str]) -> list[Problem]:
    """All conflicts between values. `given` are the keys that were set, as opposed to defaults."""
    return [conflict for check in _CHECKS for conflict in check(config, network, given)]


def out_of_place(key: str, values: Mapping[str, Any], kind: str, network: NamedNetwork) -> str | None:
    """The key whose value makes the given key meaningless; None if it has a meaning."""
    if not network.takes(key):
        return "network.name"
    section = key.partition(".")[0]
    if section == "data":
        return "data.kind" if kind and kind not in fields.kinds_with(key) and fields.kinds_with(key) else None
    chooser, names = f"{section}.name", _names_with(key)
    return chooser if names and chooser in values and values[chooser] not in names else None


def _names_with(key: str) -> list[str]:
    """The names of its section that use a key; empty: all of them."""
    section, _, option = key.partition(".")
    taken: dict[str, tuple[str, ...]] = {}
    if section == "optimizer":
        taken = {name: optimizers.settings(name) for name in OPTIMIZERS}
    elif section == "schedule":
        taken = {name: kind.settings for name, kind in SCHEDULES.items()}
    return [name for name, options in taken.items() if option in options]


def _without_meaning(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    for key in given:
        section, _, option = key.partition(".")
        names = _names_with(key)
        if not names:
            continue
        chosen = getattr(config, section)
        default = type(chosen).model_fields[option].default
        if chosen.name not in names and getattr(chosen, option) != default:
            text = f"{key} is for {' and '.join(names)}, and {section}.name is {chosen.name}; leave one out"
            yield problem(text, key, f"{section}.name")
    optimizer = config.optimizer
    if optimizer.nesterov and optimizer.name == "momentum" and not optimizer.momentum:
        text = (
            "optimizer.nesterov needs momentum, and optimizer.momentum is 0; write 0.9, or nesterov = false"
        )
        yield problem(text, "optimizer.nesterov", "optimizer.momentum")


def _loop(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    train, schedule = config.train, config.schedule
    device = train.device
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        near = "cuda" if device.lower().startswith("gpu") else nearest(device.lower(), ("cpu", "cuda"))
        advice = hint(near, "write cpu, cuda or cuda:N")
        yield problem(f"train.device is {shown(device)}, which is no device; {advice}", "train.device")
    if train.precision == "fp16" and (device == "cpu" or (device is None and not _gpu())):
        where = "train.device is cpu" if device else "this machine has none"
        text = f"train.precision is fp16, which needs a GPU, and {where}; write bf16 or fp32"
        yield problem(text, "train.precision", "train.device")
    if train.steps is not None and schedule.warmup_steps >= train.steps:
        text = (
            f"schedule.warmup_steps is {schedule.warmup_steps}, and train.steps ends the training at "
            f"{train.steps}; lower the one or raise the other"
        )
        yield problem(text, "schedule.warmup_steps", "train.steps")
    layers = config.record.layers
    if not re.fullmatch(r"layer|module|[1-9]\d?", layers):
        advice = hint(nearest(layers, ("layer", "module")), "write layer, module or a depth such as 2")
        yield problem(
            f"record.layers is {shown(layers)}, which divides no network; {advice}", "record.layers"
        )


def _threads(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    """A thread has a stack of 8 MiB, and torch starts them all at once: very many end the process."""
    asked, cores = config.train.threads, os.cpu_count() or 1
    most = max(16, 4 * cores)
    if asked is not None and asked > most:
        text = (
            f"train.threads is {asked}, and this machine has {cores} core{'s' * (cores > 1)}; write at most"
        )
        yield problem(f"{text} {most}", "train.threads")


def _name(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    """The name becomes a folder in `runs/`, so it must not lead anywhere else."""
    name = config.name
    if name.startswith(".") or re.search(r"[/\\]", name) or not name.isprintable() or len(name) > 200:
        text = f"name is {shown(name)}, which is no folder's name; write one without slashes and leading dots"
        yield problem(text, "name")


def _kernels(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    last, most = max(config.record.kernels, default=0), _most_steps(config)
    if most is not None and last >= most:
        text = (
            f"record.kernels has {last}, and the run has at most {most} steps, validation included, "
            "numbered from 0; lower it"
        )
        yield problem(text, "record.kernels", "train.steps", "train.epochs")


def _most_steps(config: Config) -> int | None:
    """The most steps that a run can have, validation included; None where it depends on the data."""
    train = config.train
    samples: int | None = getattr(config.data, "samples", None)
    held: int | None = getattr(config.data, "validation_samples", None)
    if config.validation.folds:
        held = samples
    if not config.validation.every:
        held = 0
    trained = train.steps if samples is None else train.epochs * -(-samples // train.batch)
    if trained is None or held is None:
        return None
    trained = min(trained, train.steps or trained)
    return trained + min(train.epochs, trained) * -(-held // train.batch)


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _samples(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    samples = getattr(config.data, "samples", None)
    folds, batch = config.validation.folds, config.train.batch
    if samples is not None and folds > samples:
        text = f"validation.folds is {folds}, more than data.samples, {samples}; lower it"
        yield problem(text, "validation.folds", "data.samples")
    elif samples is not None and config.loader.drop_last and batch > samples:
        text = (
            f"train.batch is {batch}, more than data.samples, {samples}; lower it, or write "
            "loader.drop_last = false"
        )
        yield problem(text, "train.batch", "data.samples", "loader.drop_last")
    if folds and not config.validation.every:
        text = "validation.folds holds data out, and validation.every = 0 never looks at it; leave one out"
        yield problem(text, "validation.folds", "validation.every")
    for name in ("validation_samples", "validation_share"):
        none = getattr(config.data, name, None) == 0 and f"data.{name}" in given
        if none and "validation.every" in given and config.validation.every and not folds:
            text = f"validation.every needs held-out data, and data.{name} is 0; raise it, or write every = 0"
            yield problem(text, "validation.every", f"data.{name}")


def _files(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    data = config.data
    wanted: list[tuple[str, Any, Callable[[str], bool], str]] = []
    if isinstance(data, FolderData):
        # What `laptime data sync` is yet to bring need not be there.
        exists = os.path.isdir if data.remote is None else lambda path: not os.path.isfile(path)
        wanted = [("path", data.path, exists, "folder"), ("labels", data.labels, os.path.isfile, "file")]
    elif isinstance(data, TextData):
        wanted = [("path", data.path, os.path.isfile, "file")]
    for name, path, there, noun in wanted:
        if path is not None and not there(str(path)):
            what = f"is no {noun}" if os.path.exists(str(path)) else "does not exist"
            text = f"data.{name} is {shown(path, 200)}, which {what}; name a {noun} that is there"
            yield problem(text, f"data.{name}")


def _classes(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    data, key = config.data, "data.classes"
    named = getattr(data, "classes", None)
    if isinstance(data, FolderData):
        if key in given and not data.classes:
            yield problem(f"{key} is empty; name folders, or leave it out for all of them", key)
        odd = [name for name in data.classes if name in ("", ".", "..") or re.search(r"[/\\\0]", name)]
        if odd:
            yield problem(f"{key} has {shown(odd[0])}, which is no folder's name; correct it", key)
        twice = [name for name in data.classes if data.classes.count(name) > 1]
        if twice:
            yield problem(f"{key} has {shown(twice[0])} twice; leave one out", key)
        if len(set(data.classes)) == 1:
            yield problem(f"{key} has one class, and there is nothing to tell apart; name two or more", key)
    count = named if isinstance(named, int) else len(named) if named else data.class_count
    heads = config.network.options.get("num_classes")
    option = f"{fields.OPTIONS}.num_classes"
    if heads is not None and (not isinstance(heads, int) or isinstance(heads, bool) or heads < 1):
        yield problem(f"{option} is {shown(heads)}; write a whole number of at least 1", option)
    elif (
        heads is not None and count is not None and network.entry and network.entry.classes and heads < count
    ):
        text = f"{option} is {heads}, fewer than the {count} classes of the data; raise it or leave it out"
        yield problem(text, option, key)


def _shapes(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    data = config.data
    if isinstance(data, SyntheticData) and data.shape == ():
        yield problem("data.shape is empty; write one sample's, such as [3, 224, 224]", "data.shape")
    if config.train.channels_last and not _images(config, network):
        text = "train.channels_last is for images, and these samples are none; leave it out"
        yield problem(text, "train.channels_last", "data.shape", "data.flat")
    size, row = getattr(data, "size", None), _row(config, network)
    for option, key, seen in (("size", "data.size", size), ("inputs", "data.shape", row)):
        built = config.network.options.get(option, network.options.get(option))
        if seen is not None and isinstance(built, int) and built != seen:
            full = f"{fields.OPTIONS}.{option}"
            text = f"{full} is {built}, and a sample of the data has {seen}; write {full} = {seen}"
            if fields.find(key, data.kind) is not None:
                text += f", or {key} = {built if option == 'size' else [built]}"
            yield problem(text, full, key)
    if network.entry is not None and not _goes_with(data.kind, network.entry):
        text = (
            f"data.kind is {data.kind}, which {network.name} cannot take; write {network.data} or synthetic"
        )
        yield problem(text, "data.kind", "network.name")


def _row(config: Config, network: NamedNetwork) -> int | None:
    """How many numbers a sample of one dimension has, where that can be told."""
    shape = network.input
    if isinstance(config.data, SyntheticData):
        shape = config.data.shape or shape
    elif not (isinstance(config.data, DigitsData) and shape is not None and len(shape) == 1):
        shape = None
    return shape[0] if shape is not None and len(shape) == 1 else None


def _images(config: Config, network: NamedNetwork) -> bool:
    data = config.data
    if isinstance(data, SyntheticData) and data.shape is not None:
        return len(data.shape) == 3
    if isinstance(data, DigitsData) and data.flat is not None:
        return not data.flat
    return data.images and (network.input is None or len(network.input) == 3)


def _goes_with(kind: str, network: ZooEntry) -> bool:
    """Text and trees are for networks that read them, and these read nothing else."""
    if kind in (network.data, "synthetic"):
        return True
    return not (KINDS[kind].only_its_networks or KINDS[network.data].only_its_networks or network.ids)


def _loss(config: Config, network: NamedNetwork, given: Collection[str]) -> Problems:
    entry = network.entry
    if config.loss.name == "cross-entropy" and entry is not None and not entry.classes and not entry.ids:
        text = f"loss.name is cross-entropy, and {network.name} tells no classes apart; write squared"
        yield problem(f"{text}, or leave it out", "loss.name", "network.name")


_CHECKS = (_without_meaning, _name, _loop, _threads, _kernels, _samples, _files, _classes, _shapes, _loss)
