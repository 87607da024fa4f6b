"""Checks of values that are each valid but conflict with each other, the network or the files they name."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from laptime.errors import UnknownNetwork
from laptime.ops.optimizers import OPTIMIZERS
from laptime.training import optimizers
from laptime.training.config import fields
from laptime.training.config.fields import Problem, hint, nearest, plain, shown
from laptime.training.config.schema import Config
from laptime.training.data.kinds import KINDS, DigitsData, FolderData, SyntheticData, TextData

if TYPE_CHECKING:
    from laptime.training.networks.registry import ZooEntry

Problems = Iterator[Problem]
_PREFIX = f"{fields.OPTIONS}."


# -- the network ---------------------------------------------------------------------------------------------


def _takes(network: ZooEntry, key: str) -> bool:
    """Whether a key is no option, or one that the network has."""
    return not key.startswith(_PREFIX) or network.takes(key.removeprefix(_PREFIX))


def network_problems(network: ZooEntry, values: Mapping[str, Any]) -> Problems:
    """What is wrong with the network's name and options."""
    from laptime.training.networks.registry import entries

    name = values.get("network.name")
    name = str(name) if type(name) is int else name  # as any text that TOML reads as a number
    if not isinstance(name, str):  # told as a value of the wrong type, or a missing one
        return
    if not network.data and ":" not in name:
        unknown = f"no network is called {shown(name)}"
        if name.isprintable() and len(name) < 80:
            unknown = str(UnknownNetwork(name, known=tuple(entries())))
        yield Problem(unknown, "network.name", "data.kind")
    if ":" in name and not all(part.strip() for part in name.split(":", 1)):
        text = f"network.name is {shown(name)}; write module:callable, such as mypackage.models:build"
        yield Problem(text, "network.name")
    if ":" in name and "data.kind" not in values:
        text = f"data.kind is missing; a network of your own has no default: write {' or '.join(KINDS)}"
        yield Problem(text, "data.kind")
    for key_name in values:
        if not _takes(network, key_name):
            near = nearest(key_name.removeprefix(_PREFIX), network.defaults)
            advice = hint(near, f"{name} takes {', '.join(network.defaults) or 'none'}")
            yield Problem(f"{plain(key_name)} is unknown; {advice}", key_name)
    for key_name, value in values.items():
        if key_name.startswith(_PREFIX) and not _simple(value):
            text = f"{plain(key_name)} is {shown(value)}; write a number, text, true, false or a list"
            yield Problem(text, key_name)
    if fields.OPTIONS in values:
        said = f"{fields.OPTIONS} is {shown(values[fields.OPTIONS])}, which is no table"
        yield Problem(f"{said}; write {{ batch_norm = true }}", fields.OPTIONS)


def _simple(value: Any) -> bool:
    """Whether a run's record can hold a value; a date is none."""
    if isinstance(value, list):
        return all(map(_simple, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _simple(inner) for key, inner in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63)


# -- keys that another key makes meaningless -----------------------------------------------------------------


def out_of_place(key: str, values: Mapping[str, Any], kind: str, network: ZooEntry) -> str:
    """The key whose value makes the given key meaningless; empty if it has a meaning."""
    if not _takes(network, key):
        return "network.name"
    section = key.partition(".")[0]
    if section == "data":
        return "data.kind" if kind and key in fields.names() and key not in fields.keys(kind) else ""
    chooser, names = f"{section}.name", _names_with(key)
    return chooser if names and chooser in values and values[chooser] not in names else ""


def _names_with(key: str) -> list[str]:
    """The names of its section that use a key; empty: all of them."""
    section, _, option = key.partition(".")
    if section == "optimizer":
        return [name for name in OPTIMIZERS if option in optimizers.settings(name)]
    if section == "schedule":
        return [name for name, kind in optimizers.SCHEDULES.items() if option in kind.settings]
    return []


def _without_meaning(config: Config, network: ZooEntry) -> Problems:
    sections: dict[str, Any] = {"optimizer": config.optimizer, "schedule": config.schedule}
    for section, chosen in sections.items():
        for option, info in type(chosen).model_fields.items():
            names = _names_with(f"{section}.{option}")
            if names and chosen.name not in names and getattr(chosen, option) != info.default:
                told = f"{section}.{option} is for {' and '.join(names)}, and {section}.name is {chosen.name}"
                yield Problem(f"{told}; leave one out", f"{section}.{option}", f"{section}.name")
    optimizer = config.optimizer
    if optimizer.nesterov and optimizer.name == "momentum" and not optimizer.momentum:
        text = (
            "optimizer.nesterov needs momentum, and optimizer.momentum is 0; write 0.9, or nesterov = false"
        )
        yield Problem(text, "optimizer.nesterov", "optimizer.momentum")


# -- the loop ------------------------------------------------------------------------------------------------


def _name_and_device(config: Config, network: ZooEntry) -> Problems:
    name, train, device = config.name, config.train, config.train.device
    # The name becomes a folder in `runs/`, so it must not lead anywhere else.
    if name.startswith(".") or re.search(r"[/\\]", name) or not name.isprintable() or len(name) > 200:
        text = f"name is {shown(name)}, which is no folder's name; write one without slashes and leading dots"
        yield Problem(text, "name")
    if device is None and train.precision != "fp16":
        return
    from laptime.recorder.backends import accelerators

    kinds = [backend.type for backend in accelerators()]
    if device is not None and not re.fullmatch(rf"cpu|({'|'.join(kinds)})(:\d{{1,3}})?", device):
        near = kinds[0] if device.lower().startswith("gpu") else nearest(device.lower(), ("cpu", *kinds))
        advice = hint(near, f"write cpu, {', '.join(kinds)} or {kinds[0]}:N")
        yield Problem(f"train.device is {shown(device)}, which is no device; {advice}", "train.device")
    here = any(backend.count() for backend in accelerators())
    if train.precision == "fp16" and (device == "cpu" or (device is None and not here)):
        where = "train.device is cpu" if device else "this machine has none"
        text = f"train.precision is fp16, which needs a GPU, and {where}; write bf16 or fp32"
        yield Problem(text, "train.precision", "train.device")


def _loop(config: Config, network: ZooEntry) -> Problems:
    train, warmup, layers = config.train, config.schedule.warmup_steps, config.record.layers
    if train.steps is not None and warmup >= -(-train.steps // train.accumulate):
        text = f"schedule.warmup_steps is {warmup}, and train.steps ends the training at {train.steps}; "
        yield Problem(f"{text}lower the one or raise the other", "schedule.warmup_steps", "train.steps")
    until = train.until
    if until.loss is not None and until.top1 is not None:
        text = "train.until has both loss and top1; leave one out: a training has one target"
        yield Problem(text, "train.until.loss", "train.until.top1")
    if until.top1 is not None and network.data and not network.classes and not network.ids:
        text = f"train.until.top1 is of classes, and {network.name} tells none apart; write loss"
        yield Problem(text, "train.until.top1", "network.name")
    if until.metric and not config.validation.every:
        text = f"train.until.{until.metric} is looked for in validations, and validation.every = 0 has none"
        yield Problem(f"{text}; write 1", f"train.until.{until.metric}", "validation.every")
    if not re.fullmatch(r"layer|module|[1-9]\d?", layers):
        advice = hint(nearest(layers, ("layer", "module")), "write layer, module or a depth such as 2")
        text = f"record.layers is {shown(layers)}, which divides no network; {advice}"
        yield Problem(text, "record.layers")
    # A thread has a stack of 8 MiB, and torch starts them all at once: very many end the process.
    cores = os.cpu_count() or 1
    most_threads = max(16, 4 * cores)
    if train.threads is not None and train.threads > most_threads:
        text = f"train.threads is {train.threads}, and this machine has {cores} core{'s' * (cores > 1)}; "
        yield Problem(f"{text}write at most {most_threads}", "train.threads")
    last, most = max(config.record.kernels, default=0), _most_steps(config)
    if most is not None and last >= most:
        text = (
            f"record.kernels has {last}, and the run has at most {most} steps, validation included, "
            "numbered from 0; lower it"
        )
        yield Problem(text, "record.kernels", "train.steps", "train.epochs")


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


# -- the data ------------------------------------------------------------------------------------------------


def _samples(config: Config, network: ZooEntry) -> Problems:
    samples = getattr(config.data, "samples", None)
    folds, batch = config.validation.folds, config.train.batch
    if samples is not None and folds > samples:
        text = f"validation.folds is {folds}, more than data.samples, {samples}; lower it"
        yield Problem(text, "validation.folds", "data.samples")
    elif samples is not None and config.loader.drop_last and batch > samples:
        text = f"train.batch is {batch}, more than data.samples, {samples}; lower it, or write "
        keys = ("train.batch", "data.samples", "loader.drop_last")
        yield Problem(f"{text}loader.drop_last = false", *keys)
    if folds and not config.validation.every:
        text = "validation.folds holds data out, and validation.every = 0 never looks at it; leave one out"
        yield Problem(text, "validation.folds", "validation.every")
    for name in ("validation_samples", "validation_share"):
        none = getattr(config.data, name, None) == 0 and name in config.data.model_fields_set
        if none and "every" in config.validation.model_fields_set and config.validation.every and not folds:
            text = f"validation.every needs held-out data, and data.{name} is 0; raise it, or write every = 0"
            yield Problem(text, "validation.every", f"data.{name}")


def _files(config: Config, network: ZooEntry) -> Problems:
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
            yield Problem(text, f"data.{name}")


def _classes(config: Config, network: ZooEntry) -> Problems:
    data, key = config.data, "data.classes"
    named = getattr(data, "classes", None)
    if isinstance(data, FolderData):
        if "classes" in data.model_fields_set and not data.classes:
            yield Problem(f"{key} is empty; name folders, or leave it out for all of them", key)
        odd = [name for name in data.classes if name in ("", ".", "..") or re.search(r"[/\\\0]", name)]
        if odd:
            yield Problem(f"{key} has {shown(odd[0])}, which is no folder's name; correct it", key)
        twice = [name for name in data.classes if data.classes.count(name) > 1]
        if twice:
            yield Problem(f"{key} has {shown(twice[0])} twice; leave one out", key)
        if len(set(data.classes)) == 1:
            yield Problem(f"{key} has one class, and there is nothing to tell apart; name two or more", key)
    count = named if isinstance(named, int) else len(named) if named else data.class_count
    heads, option = config.network.options.get("num_classes"), f"{_PREFIX}num_classes"
    if heads is not None and (not isinstance(heads, int) or isinstance(heads, bool) or heads < 1):
        yield Problem(f"{option} is {shown(heads)}; write a whole number of at least 1", option)
    elif heads is not None and count is not None and network.classes and heads < count:
        text = f"{option} is {heads}, fewer than the {count} classes of the data; raise it or leave it out"
        yield Problem(text, option, key)


def _shapes(config: Config, network: ZooEntry) -> Problems:
    data = config.data
    if isinstance(data, SyntheticData) and data.shape == ():
        yield Problem("data.shape is empty; write one sample's, such as [3, 224, 224]", "data.shape")
    if config.train.channels_last and not _images(config, network):
        text = "train.channels_last is for images, and these samples are none; leave it out"
        yield Problem(text, "train.channels_last", "data.shape", "data.flat")
    size, row = getattr(data, "size", None), _row(config, network)
    for option, key, seen in (("size", "data.size", size), ("inputs", "data.shape", row)):
        built = config.network.options.get(option, network.defaults.get(option))
        if seen is not None and isinstance(built, int) and built != seen:
            full = f"{_PREFIX}{option}"
            text = f"{full} is {built}, and a sample of the data has {seen}; write {full} = {seen}"
            if key in fields.keys(data.kind):
                text += f", or {key} = {built if option == 'size' else [built]}"
            yield Problem(text, full, key)
    if not network.data:  # a network of one's own
        return
    # Text and trees are for networks that read them, and these read nothing else.
    special = KINDS[data.kind].only_its_networks or KINDS[network.data].only_its_networks or network.ids
    if data.kind not in (network.data, "synthetic") and special:
        text = (
            f"data.kind is {data.kind}, which {network.name} cannot take; write {network.data} or synthetic"
        )
        yield Problem(text, "data.kind", "network.name")
    if config.loss.name == "cross-entropy" and not network.classes and not network.ids:
        text = f"loss.name is cross-entropy, and {network.name} tells no classes apart; write squared"
        yield Problem(f"{text}, or leave it out", "loss.name", "network.name")


def _row(config: Config, network: ZooEntry) -> int | None:
    """How many numbers a sample of one dimension has, where that can be told."""
    shape = network.input
    if isinstance(config.data, SyntheticData):
        shape = config.data.shape or shape
    elif not isinstance(config.data, DigitsData):
        return None
    return shape[0] if len(shape) == 1 else None


def _images(config: Config, network: ZooEntry) -> bool:
    data = config.data
    if isinstance(data, SyntheticData) and data.shape is not None:
        return len(data.shape) == 3
    if isinstance(data, DigitsData) and data.flat is not None:
        return not data.flat
    return data.images and len(network.input) in (0, 3)


_CHECKS = (_without_meaning, _name_and_device, _loop, _samples, _files, _classes, _shapes)


def conflicts(config: Config, network: ZooEntry) -> list[Problem]:
    """All conflicts between values."""
    return [conflict for check in _CHECKS for conflict in check(config, network)]
