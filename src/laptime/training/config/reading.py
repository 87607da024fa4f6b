"""A configuration file and settings, made into one valid `Config` that knows where each value came from.

Every value is kept under its full key (`train.batch`) with its source until the end, so a setting goes over
the file's value key by key, and a problem is told with the name of what said it. Torch is imported only to
look a network up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from laptime.errors import ConfigError
from laptime.files.text import one_line
from laptime.training.config import fields
from laptime.training.config.conflicts import conflicts, out_of_place
from laptime.training.config.formats import read_tree
from laptime.training.config.network import Network, look_up
from laptime.training.config.overrides import full_key, read_setting
from laptime.training.config.problems import Problem, from_schema, refusal, shown, unknown_key, wrong_value
from laptime.training.config.schema import Config
from laptime.training.config.xml import REPETITIONS

SETTING, SWEEP = "--set", "--sweep"


@dataclass(frozen=True, slots=True)
class Given:
    """A value that someone gave: what said it, and the folder that its paths start from."""

    value: Any
    source: str
    base: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A valid configuration, and why each of its values is what it is."""

    path: Path
    config: Config
    sources: dict[str, str]
    given: dict[str, Given]
    repeat: int | None = None  # what a file in the thesis' form asks for; `--repeat` goes before it


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


def with_settings(resolved: Resolved, values: Mapping[str, Any], why: str = SETTING) -> Resolved:
    """The same configuration with other values, validated again."""
    problems: list[Problem] = []
    given = dict(resolved.given)
    for key, value in values.items():
        given |= _set(full_key(key), value, why, problems)
    return _resolve(resolved.path, given, problems, resolved.repeat)


def _set(key: str, value: Any, why: str, problems: list[Problem]) -> dict[str, Given]:
    return {one: Given(leaf, why, Path()) for one, leaf in _leaves({key: value}, why, problems).items()}


def _repeat(value: Any, path: Path) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and int(value[:9]) > 0:
        return int(value[:9])
    raise ConfigError(f"{one_line(path)}: repetitions is {shown(value)}; write a whole number of at least 1")


# -- from a tree to full keys --------------------------------------------------------------------------------


def _leaves(tree: Mapping[Any, Any], source: str, problems: list[Problem], path: str = "") -> dict[str, Any]:
    """Every value under its full key. `optimizer = "adam"` is `optimizer.name`."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{path}.{name}" if path else str(name)
        if not isinstance(name, str):
            text = f"{key} has the key {shown(name)}, which is no text; put it in quotes"
            problems.append(Problem(text=text, source=source))
            continue
        inside = _inside(key, value, source, problems)
        twice = sorted(set(found) & set(inside))
        if twice:
            text = f"{twice[0]} is given twice; leave one out"
            problems.append(Problem(text=text, keys=(twice[0],), source=source))
        found |= inside
    return found


def _inside(key: str, value: Any, source: str, problems: list[Problem]) -> dict[str, Any]:
    table = isinstance(value, dict)
    if key == fields.OPTIONS and (table or value is None):
        return {f"{key}.{name}": one for name, one in (value or {}).items()}
    if key not in fields.sections():
        return {key: value}
    if table or value is None:  # YAML has nothing where a section is empty
        return _leaves(value or {}, source, problems, key)
    if key in fields.SHORT and isinstance(value, str):
        return {f"{key}.{fields.SHORT[key]}": value}
    short = f'{key} = "…", or ' if key in fields.SHORT else ""
    text = f"{key} is {shown(value)}, where a table is wanted; write {short}[{key}] and keys below it"
    problems.append(Problem(text=text, keys=(key,), source=source))
    return {}


# -- from full keys to a configuration -----------------------------------------------------------------------


def _resolve(path: Path, given: dict[str, Given], problems: list[Problem], repeat: int | None) -> Resolved:
    told = list(problems)
    network, _ = look_up({key: one.value for key, one in given.items()})
    kind, why = _kind(given, network)
    given = {key: one for key, one in given.items() if not _let_go(key, given, kind, network, str(path))}
    _, found = look_up({key: one.value for key, one in given.items()})
    told += _others(found, told)
    values, found = _values(given, kind)
    told += found
    values.setdefault("name", path.stem.lstrip("."))
    config, found = _valid(values | ({"data.kind": kind} if kind else {}), kind)
    told += _others(found, told)
    if config is not None:
        told += _others(conflicts(config, network, set(given)), told)
    if told or config is None:
        raise refusal(path, [_sourced(one, given) for one in told])
    sources = {"name": "the file's name", "data.kind": why} | {key: one.source for key, one in given.items()}
    return Resolved(path=path, config=config, sources=_all_sources(sources, kind), given=given, repeat=repeat)


def _others(found: Sequence[Problem], told: Sequence[Problem]) -> list[Problem]:
    """Problems of keys that nothing was said about yet."""
    bad = {key for one in told for key in one.keys}
    return [one for one in found if not bad & {*one.keys, *(key.partition(".")[0] for key in one.keys)}]


def _sourced(problem: Problem, given: Mapping[str, Given]) -> Problem:
    source = next((given[key].source for key in problem.keys if key in given), "")
    return Problem(text=problem.text, keys=problem.keys, source=problem.source or source)


def _kind(given: Mapping[str, Given], network: Network) -> tuple[str, str]:
    """The kind of data and why; empty where it cannot be told."""
    if "data.kind" in given:
        kind = given["data.kind"].value
        return (kind if isinstance(kind, str) and kind in fields.kinds() else ""), given["data.kind"].source
    return network.data, f"default of network {network.name}"


def _let_go(key: str, given: Mapping[str, Given], kind: str, network: Network, file: str) -> bool:
    """A choice made by a setting lets go of what the file says for the other choice."""
    chooser = out_of_place(key, {one: each.value for one, each in given.items()}, kind, network)
    chosen = given.get(chooser or "")
    return chosen is not None and chosen.source != file and given[key].source == file


def _values(given: Mapping[str, Given], kind: str) -> tuple[dict[str, Any], list[Problem]]:
    """The values in the types of the schema, and the keys that it lacks."""
    values: dict[str, Any] = {}
    problems = []
    for key, one in given.items():
        known = fields.find(key, kind)
        if key == fields.OPTIONS:  # no table, as was told with the network
            continue
        if key.startswith(f"{fields.OPTIONS}."):
            values[key] = one.value
        elif key.startswith("data.") and not kind and fields.kinds_with(key):
            if key == "data.kind":
                problems.append(wrong_value(fields.known()[key, "zener"], one.value))
        elif known is None:
            problems.append(unknown_key(key, kind))
        else:
            value = fields.fit(one.value, known.takes)
            if fields.enormous(value):
                problems.append(wrong_value(known, value, type_fits=True))
                continue
            values[key] = _placed(value, one.base) if isinstance(value, Path) else value
    return values, problems


def _placed(path: Path, base: Path) -> Path:
    """Relative to the file that names it, or to where the command was given."""
    if "\0" in str(path):
        return path
    return Path(os.path.abspath(base / os.path.expanduser(path)))


def _valid(values: dict[str, Any], kind: str) -> tuple[Config | None, list[Problem]]:
    """The configuration; with problems, what it is without the values that have them."""
    if not kind:
        return None, []
    try:
        return Config.model_validate(_tree(values), strict=True), []
    except ValidationError as error:
        problems = from_schema(error, kind, values)
    bad = {key for one in problems for key in one.keys}
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
    """Why for every key there is, in the order of the schema."""
    everything = [key for key in fields.names() if fields.find(key, kind) and key != fields.OPTIONS]
    options = [key for key in told if key.startswith(f"{fields.OPTIONS}.")]
    place = everything.index("network.name") + 1
    return {key: told.get(key, "default") for key in [*everything[:place], *options, *everything[place:]]}
