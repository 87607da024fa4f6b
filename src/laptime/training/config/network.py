"""What the zoo knows of the network that a configuration names, and whether it takes the given options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from laptime.errors import UnknownNetwork
from laptime.training.config import fields
from laptime.training.config.problems import (
    Problem,
    hint,
    missing,
    nearest,
    plain,
    problem,
    shown,
    wrong_value,
)
from laptime.training.data.kinds import KINDS

if TYPE_CHECKING:
    from laptime.training.networks.registry import ZooEntry

_PREFIX = f"{fields.OPTIONS}."


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNetwork:
    """What is known of it before it is built."""

    name: str = ""
    entry: ZooEntry | None = None  # None: the user's own, of which nothing is known
    options: dict[str, Any] = field(default_factory=dict)  # every option it takes, and its default
    takes_any: bool = True  # options beyond these

    @property
    def data(self) -> str:
        """The kind of data that it is trained on by default."""
        return self.entry.data if self.entry is not None else ""

    @property
    def input(self) -> tuple[int, ...] | None:
        """The shape of one sample, where it is known."""
        return self.entry.input if self.entry is not None else None

    def takes(self, key: str) -> bool:
        """Whether a key is no option, or one that the network has."""
        option = key.removeprefix(_PREFIX)
        return self.takes_any or option == key or option in self.options


def look_up(values: Mapping[str, Any]) -> tuple[NamedNetwork, list[Problem]]:
    """The network that the values name, and what is wrong with its name and options."""
    key, name = fields.keys()["network.name", ""], values.get("network.name")
    if not isinstance(name, str):
        return NamedNetwork(), [wrong_value(key, name) if "network.name" in values else missing(key)]
    network, problems = _own(name, values) if ":" in name else _from_the_zoo(name, values)
    return network, problems + _odd_options(values)


def _from_the_zoo(name: str, values: Mapping[str, Any]) -> tuple[NamedNetwork, list[Problem]]:
    from laptime.training.networks.registry import entry

    try:
        known = entry(name)
    except UnknownNetwork as error:
        text = str(error) if name.isprintable() and len(name) < 80 else f"no network is called {shown(name)}"
        return NamedNetwork(name=name), [problem(text, "network.name", "data.kind")]
    parameters = inspect.signature(known.make).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    network = NamedNetwork(
        name=name,
        entry=known,
        options={each.name: known.options.get(each.name, each.default) for each in named},
        takes_any=any(each.kind is each.VAR_KEYWORD for each in parameters),
    )
    return network, _wrong_options(network, values)


def _own(name: str, values: Mapping[str, Any]) -> tuple[NamedNetwork, list[Problem]]:
    module, _, made = name.partition(":")
    problems = []
    if not module.strip() or not made.strip():
        text = f"network.name is {shown(name)}; write module:callable, such as mypackage.models:build"
        problems.append(problem(text, "network.name"))
    if "data.kind" not in values:
        text = f"data.kind is missing; a network of your own has no default: write {' or '.join(KINDS)}"
        problems.append(problem(text, "data.kind"))
    return NamedNetwork(name=name), problems


def _wrong_options(network: NamedNetwork, values: Mapping[str, Any]) -> list[Problem]:
    there = f"{network.name} takes {', '.join(network.options) or 'none'}"
    return [
        problem(
            f"{plain(key)} is unknown; {hint(nearest(key.removeprefix(_PREFIX), network.options), there)}",
            key,
        )
        for key in values
        if not network.takes(key)
    ]


def _odd_options(values: Mapping[str, Any]) -> list[Problem]:
    """What a run's record cannot hold, such as a date, is no option."""
    problems = [
        problem(f"{plain(key)} is {shown(value)}; write a number, text, true, false or a list", key)
        for key, value in values.items()
        if key.startswith(_PREFIX) and not _simple(value)
    ]
    if fields.OPTIONS in values:
        said = f"{fields.OPTIONS} is {shown(values[fields.OPTIONS])}, which is no table"
        problems.append(problem(f"{said}; write {{ batch_norm = true }}", fields.OPTIONS))
    return problems


def _simple(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_simple, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _simple(inner) for key, inner in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63)
