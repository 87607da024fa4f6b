"""A configuration file and settings, made into one valid `Config` that knows where each value came from.

Every value is kept under its full key (`train.batch`) with its source until the end, so a setting goes over
the file's value key by key, and a problem names where its value came from. Torch is imported only to look a
network up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from laptime.errors import ConfigError
from laptime.files.text import one_line
from laptime.training.config import fields
from laptime.training.config.conflicts import conflicts, out_of_place
from laptime.training.config.formats import REPETITIONS, read_tree
from laptime.training.config.network import NamedNetwork, look_up
from laptime.training.config.notation import fit, read_setting
from laptime.training.config.problems import (
    Problem,
    from_schema,
    problem,
    refusal,
    shown,
    unknown_key,
    wrong_value,
)
from laptime.training.config.schema import Config
from laptime.training.data.kinds import KINDS

SETTING, SWEEP = "--set", "--sweep"


@dataclass(frozen=True, slots=True)
class Given:
    """A given value: where it came from, and the folder that its relative paths start from."""

    value: Any
    source: str
    base: Path


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
    problems: list[Problem] = []
    tree = read_tree(path)
    repeat = _repeat(tree.pop(REPETITIONS, None), path) if path.suffix.lower() == ".xml" else None
    given = {
        key: Given(value, str(path), path.parent) for key, value in _leaves(tree, str(path), problems).items()
    }
    for option, texts in ((SETTING, settings), (SWEEP, swept)):
        for text in texts:
            given |= _set(*read_setting(text, option), option, problems)
    return _resolve(path, given, problems, repeat)


def _set(key: str, value: Any, why: str, problems: list[Problem]) -> dict[str, Given]:
    return {full: Given(leaf, why, Path()) for full, leaf in _leaves({key: value}, why, problems).items()}


def _repeat(value: Any, path: Path) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and int(value[:9]) > 0:
        return int(value[:9])
    raise ConfigError(f"{one_line(path)}: repetitions is {shown(value)}; write a whole number of at least 1")


# -- from a tree to full keys --------------------------------------------------------------------------------


def _leaves(tree: Mapping[Any, Any], source: str, problems: list[Problem], path: str = "") -> dict[str, Any]:
    """Every value under its full key. `optimizer = "adam"` is `optimizer.name`."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{path}.{name}" if path else str(name)
        if not isinstance(name, str):
            text = f"{key} has the key {shown(name)}, which is no text; put it in quotes"
            problems.append(problem(text, source=source))
            continue
        inside = _inside(key, value, source, problems)
        if twice := min(set(leaves) & set(inside), default=""):
            problems.append(problem(f"{twice} is given twice; leave one out", twice, source=source))
        leaves |= inside
    return leaves


def _inside(key: str, value: Any, source: str, problems: list[Problem]) -> dict[str, Any]:
    table = isinstance(value, dict)
    if key == fields.OPTIONS and (table or value is None):
        return {f"{key}.{name}": option for name, option in (value or {}).items()}
    if key not in fields.sections():
        return {key: value}
    if table or value is None:  # YAML has nothing where a section is empty
        return _leaves(value or {}, source, problems, key)
    if key in fields.SHORT and isinstance(value, str):
        return {f"{key}.{fields.SHORT[key]}": value}
    short = f'{key} = "…", or ' if key in fields.SHORT else ""
    text = f"{key} is {shown(value)}, where a table is wanted; write {short}[{key}] and keys below it"
    problems.append(problem(text, key, source=source))
    return {}


# -- from full keys to a configuration -----------------------------------------------------------------------


def _resolve(path: Path, given: dict[str, Given], problems: list[Problem], repeat: int | None) -> Resolved:
    problems = list(problems)

    def add(others: Sequence[Problem]) -> None:
        """Add the problems of keys that have none yet."""
        bad = {key for each in problems for key in each.keys}
        problems.extend(
            each for each in others if not bad & {*each.keys, *(key.partition(".")[0] for key in each.keys)}
        )

    network, _ = look_up(_plain(given))
    kind, why = _kind(given, network)
    given = {key: each for key, each in given.items() if not _let_go(key, given, kind, network, str(path))}
    add(look_up(_plain(given))[1])
    values, wrong = _values(given, kind)
    problems += wrong
    values.setdefault("name", path.stem.lstrip("."))
    config, wrong = _valid(values | ({"data.kind": kind} if kind else {}), kind)
    add(wrong)
    if config is not None:
        add(conflicts(config, network, given))
    if problems or config is None:
        raise refusal(path, [_sourced(each, given) for each in problems])
    sources = {"name": "the file's name", "data.kind": why} | {
        key: each.source for key, each in given.items()
    }
    return Resolved(path=path, config=config, sources=_all_sources(sources, kind), repeat=repeat)


def _plain(given: Mapping[str, Given]) -> dict[str, Any]:
    return {key: each.value for key, each in given.items()}


def _sourced(told: Problem, given: Mapping[str, Given]) -> Problem:
    source = next((given[key].source for key in told.keys if key in given), "")
    return replace(told, source=told.source or source)


def _kind(given: Mapping[str, Given], network: NamedNetwork) -> tuple[str, str]:
    """The kind of data and why; empty where it cannot be told."""
    if "data.kind" in given:
        kind = given["data.kind"].value
        return (kind if isinstance(kind, str) and kind in KINDS else ""), given["data.kind"].source
    return network.data, f"default of network {network.name}"


def _let_go(key: str, given: Mapping[str, Given], kind: str, network: NamedNetwork, file: str) -> bool:
    """Whether a setting makes the file's value of a key meaningless, so that the value is dropped."""
    chosen = given.get(out_of_place(key, _plain(given), kind, network) or "")
    return chosen is not None and chosen.source != file and given[key].source == file


def _values(given: Mapping[str, Given], kind: str) -> tuple[dict[str, Any], list[Problem]]:
    """The values in the types of the schema, and the keys that it lacks."""
    values: dict[str, Any] = {}
    problems = []
    for name, each in given.items():
        key = fields.find(name, kind)
        if name == fields.OPTIONS:  # no table: `look_up` has said so
            continue
        if name.startswith(f"{fields.OPTIONS}."):
            values[name] = each.value
        elif name.startswith("data.") and not kind and fields.kinds_with(name):
            if name == "data.kind":
                problems.append(wrong_value(fields.keys()[name, "zener"], each.value))
        elif key is None:
            problems.append(unknown_key(name, kind))
        else:
            value = fit(each.value, key.takes)
            if _enormous(value):
                problems.append(wrong_value(key, value, type_fits=True))
                continue
            values[name] = _placed(value, each.base) if isinstance(value, Path) else value
    return values, problems


def _enormous(value: Any) -> bool:
    """Whether a number has 2**53 or more, where JSON readers lose digits."""
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, int) and abs(item) >= 2**53 for item in items)


def _placed(path: Path, base: Path) -> Path:
    """An absolute path; `base` is the folder of the file, or the working directory for a setting."""
    if "\0" in str(path):
        return path
    return Path(os.path.abspath(base / os.path.expanduser(path)))


def _valid(values: dict[str, Any], kind: str) -> tuple[Config | None, list[Problem]]:
    """The configuration. Where values are wrong, the problems, and the configuration without these values."""
    if not kind:
        return None, []
    try:
        return Config.model_validate(_tree(values), strict=True), []
    except ValidationError as error:
        problems = from_schema(error, kind, values)
    bad = {key for each in problems for key in each.keys}
    rest = {key: value for key, value in values.items() if not {key, key.partition(".")[0]} & bad}
    try:
        return Config.model_validate(_tree(rest), strict=True), problems
    except ValidationError:
        return None, problems


def _tree(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *way, last = key.split(".", 2)
        table = tree
        for name in way:
            table = table.setdefault(name, {})
        table[last] = value
    return tree


def _all_sources(told: Mapping[str, str], kind: str) -> dict[str, str]:
    """The source of every key's value, in the order of the schema."""
    everything = [key for key in fields.names() if fields.find(key, kind) and key != fields.OPTIONS]
    options = [key for key in told if key.startswith(f"{fields.OPTIONS}.")]
    place = everything.index("network.name") + 1
    return {key: told.get(key, "default") for key in [*everything[:place], *options, *everything[place:]]}
