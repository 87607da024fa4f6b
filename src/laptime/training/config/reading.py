"""A configuration file and settings, made into one valid `Config` that knows where each value came from.

Every value is kept under its full key (`train.batch`) with its source until the end, so a setting goes over
the file's value key by key, and a problem names where its value came from. Torch is imported only to look a
network up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.errors import ConfigError, UnsupportedDevice
from laptime.files.text import one_line
from laptime.training.config import fields
from laptime.training.config.conflicts import conflicts, network_problems, out_of_place
from laptime.training.config.formats import REPETITIONS, read_tree
from laptime.training.config.schema import Config
from laptime.training.data.kinds import KINDS
from laptime.training.target import described

if TYPE_CHECKING:
    from laptime.training.networks.registry import ZooEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A valid configuration, and why each of its values is what it is."""

    path: Path
    config: Config
    sources: dict[str, str]
    repeat: int | None = None  # `<repetitions>` of an XML file; `--repeat` goes before it


def read_config(path: Path | str, settings: Sequence[str] = (), swept: Sequence[str] = ()) -> Resolved:
    """Read a TOML, YAML or XML file and set settings over it. A `ConfigError` says what to change.

    `swept` are the settings of one point of a sweep, which go over the others.
    """
    path = Path(path)
    tree = read_tree(path)
    repeat = tree.pop(REPETITIONS, None) if path.suffix.lower() == ".xml" else None
    if repeat is not None and not (isinstance(repeat, str) and repeat.isdecimal() and int(repeat[:9]) > 0):
        advice = "write a whole number of at least 1"
        raise ConfigError(f"{one_line(path)}: repetitions is {fields.shown(repeat)}; {advice}")
    values = leaves(tree, path)
    sources = dict.fromkeys(values, str(path))
    for option, texts in (("--set", settings), ("--sweep", swept)):
        for text in texts:
            key, sign, value = (part.strip() for part in text.partition("="))
            if not sign or not key:
                raise ConfigError(f"{option} {fields.plain(text)} is not key=value, such as train.batch=64")
            full = full_key(key, option)
            inside = leaves(
                {full: fields.literal(value) if full.startswith(fields.OPTIONS) else value}, option
            )
            values |= inside
            sources |= dict.fromkeys(inside, option)
    config, sources = _resolved(path, values, sources)
    return Resolved(path=path, config=config, sources=sources, repeat=int(repeat[:9]) if repeat else None)


# -- full keys -----------------------------------------------------------------------------------------------


def full_key(key: str, option: str) -> str:
    """The key with its section. A bare one stands for the only field so named; `.name` is the run's own."""
    if key in fields.sections() or "." in key:
        return key.removeprefix(".") if key == ".name" else key
    same = [name for name in fields.names() if name.rpartition(".")[2] == key]
    if len(same) > 1:
        *others, last = (name if "." in name else f".{name}" for name in same)
        raise ConfigError(f"{option} {key} could be {', '.join(others)} or {last}; write one of them in full")
    if same:
        return same[0]
    bare = {name.rpartition(".")[2]: name for name in fields.names()}
    near = fields.nearest(key, [*bare, *fields.sections()])
    advice = fields.hint(
        bare.get(near, near) if near else None, "laptime train CONFIG --explain lists all keys"
    )
    raise ConfigError(f"{option} {fields.plain(key)}: there is no such key; {advice}")


def leaves(tree: Mapping[Any, Any], source: str | Path = "", path: str = "") -> dict[str, Any]:
    """Every value under its full key. `optimizer = "adam"` is `optimizer.name`."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{path}.{name}" if path else str(name)
        if not isinstance(name, str):
            said = f"{key} has the key {fields.shown(name)}, which is no text; put it in quotes"
            raise ConfigError(one_line(f"{source}: {said}"))
        inside = {key: value}
        table = isinstance(value, dict) or value is None  # YAML has nothing where a section is empty
        if table and key == fields.OPTIONS:
            inside = {f"{key}.{name}": option for name, option in (value or {}).items()}
        elif table and key in fields.tables():
            inside = leaves(value or {}, source, key)
        elif key in fields.SHORT and isinstance(value, str):
            inside = {f"{key}.{fields.SHORT[key]}": value}
        if twice := min(set(values) & set(inside), default=""):
            raise ConfigError(one_line(f"{source}: {twice} is given twice; leave one out"))
        values |= inside
    return values


# -- from full keys to a configuration -----------------------------------------------------------------------


def _resolved(path: Path, values: dict[str, Any], sources: dict[str, str]) -> tuple[Config, dict[str, str]]:
    """The configuration, and the source of each of its values."""
    file = str(path)
    network = described(str(values.get("network.name")))
    kind, why = network.data, f"default of network {network.name}"
    if "data.kind" in values:
        asked, why = values["data.kind"], sources["data.kind"]
        kind = asked if isinstance(asked, str) and asked in KINDS else ""
    # What a setting makes meaningless in the file is dropped.
    for key in [key for key in values if sources[key] == file]:
        if sources.get(out_of_place(key, values, kind, network), file) != file:
            del values[key]
    fitted, wrong = _fitted(path, values, sources, kind)
    problems = [*network_problems(network, values), *wrong]
    known, config = fields.keys(kind), None
    absent = [key for key in known.values() if key.info.is_required() and key.name not in fitted]
    if absent or not kind:
        further = [fields.missing(key, kind) for key in absent]
    else:
        defaults = {"name": path.stem.lstrip("."), "data.kind": kind}
        config = Config.model_validate(_tree(defaults | fitted), strict=True)
        further = conflicts(config, network)
    bad = {key for each in problems for key in each.keys}  # one problem of a key is enough
    problems += [
        each for each in further if not bad & {*each.keys, *(key.partition(".")[0] for key in each.keys)}
    ]
    if config is None or problems:
        raise fields.refusal(path, problems, sources)
    told = {"name": "the file's name", "data.kind": why} | {key: sources[key] for key in values}
    return config, dict.fromkeys(known, "default") | told


def _fitted(
    path: Path, values: Mapping[str, Any], sources: Mapping[str, str], kind: str
) -> tuple[dict[str, Any], list[fields.Problem]]:
    """The values in the types of the schema, and what is wrong with the others.

    Paths in the file start from its folder; those of settings, where one is.
    """
    fitted: dict[str, Any] = {}
    problems, known = [], fields.keys(kind)
    for name, value in values.items():
        if name == fields.OPTIONS:  # no table: `network_problems` has said so
            continue
        if name.startswith(f"{fields.OPTIONS}."):
            fitted[name] = value
        elif name in fields.tables():
            problems.append(fields.no_table(name, value))
        elif name.startswith("data.") and not kind and fields.kinds_with(name):
            if name == "data.kind":
                problems.append(fields.wrong_value(fields.keys("zener")[name], value))
        elif name not in known:
            problems.append(fields.unknown_key(name, kind))
        elif problem := known[name].problem_of(value := known[name].fit(value)):
            problems.append(problem)
        else:
            if isinstance(value, Path) and "\0" not in str(value):
                base = path.parent if sources[name] == str(path) else Path()
                value = Path(os.path.abspath(base / os.path.expanduser(value)))
            fitted[name] = value
    return fitted, problems


def _tree(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *tables, last = key.split(".", 2)
        reduce(lambda table, name: table.setdefault(name, {}), tables, tree)[last] = value
    return tree


# -- what `--explain` tells ----------------------------------------------------------------------------------

Row = tuple[str, str, str, str]


def explain(resolved: Resolved) -> list[Row]:
    """Rows of key, value, why and meaning. What the configuration leaves open is decided as the loop does."""
    config, network, rows = resolved.config, described(resolved.config.network.name), []
    for key, known in fields.keys(config.data.kind).items():
        if key == fields.OPTIONS:  # listed below their network
            continue
        why = resolved.sources[key]
        value = attrgetter(key)(config)
        shown = fields.written(value)
        if value is None:
            shown, why = _left_open(key, config, network)
        rows.append((key, shown, why, known.meaning or " ".join((type(config.data).__doc__ or "").split())))
        if key == "network.name":
            rows += _options(resolved, network)
    return rows


def _options(resolved: Resolved, network: ZooEntry) -> Iterator[Row]:
    """All options of the network, given or default."""
    given = resolved.config.network.options
    for name, value in {**given, **network.defaults, **given}.items():  # those that are given come first
        key = f"{fields.OPTIONS}.{name}"
        shown = "as the data has" if name == "num_classes" and name not in given else fields.written(value)
        why = resolved.sources.get(key, f"default of network {network.name}")
        yield key, shown, why, f"An option of {network.name}."


def _left_open(key: str, config: Config, network: ZooEntry) -> tuple[str, str]:
    """The value that is used where the configuration has none, and why."""
    own = f"default of network {network.name}"
    if key == "optimizer.lr":
        return fields.written(config.optimizer.rate), f"default of {config.optimizer.name}"
    if key in ("train.device", "loader.pin_memory"):
        from laptime.recorder.backends import backend_of
        from laptime.training.device_setup import choose_device

        try:
            device, why = choose_device(config.train.device)
        except UnsupportedDevice as error:  # one that this machine lacks, another may have
            return "none", str(error)
        pinned = fields.written(backend_of(device).accelerator)
        return (str(device), why) if key == "train.device" else (pinned, f"device {device}")
    if key == "train.threads":
        import torch

        return str(torch.get_num_threads()), "torch's choice on this machine"
    if key == "data.shape" and network.input:
        return fields.written(network.input), own
    if key == "data.classes":
        known = network.classes if network.data else None  # of a network of one's own, nothing is known
        classes = config.network.options.get("num_classes", known)
        return fields.written(classes), f"{fields.OPTIONS}.num_classes" if classes != known else own
    if key == "optimizer.eps":
        return "torch's own", f"default of {config.optimizer.name}"
    if key in ("loss.name", "network.dropout", "data.flat"):
        return "the network's own", own
    return "none", "default"
