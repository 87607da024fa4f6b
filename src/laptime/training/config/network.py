"""What the zoo knows of the network that a configuration names: its data, its options, what it takes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from laptime.errors import UnknownNetwork
from laptime.training.config import fields
from laptime.training.config.problems import Problem, missing, nearest, plain, shown, wrong_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is known before it is built; little, for one of the user's own."""

    name: str = ""
    data: str = ""  # the kind of data it is trained on by default
    input: tuple[int, ...] | None = None
    classes: int | None = None
    ids: int = 0
    options: dict[str, Any] = field(default_factory=dict)  # every option it takes, and its default
    takes_any: bool = True  # options beyond these, as one of the user's own may

    @property
    def of_the_zoo(self) -> bool:
        """Whether anything is known."""
        return self.classes is not None

    def takes(self, key: str) -> bool:
        """Whether a key is no option, or one that the network has."""
        option = key.removeprefix(f"{fields.OPTIONS}.")
        return self.takes_any or option == key or option in self.options


def look_up(values: Mapping[str, Any]) -> tuple[Network, list[Problem]]:
    """The network that the values name, and what is wrong with its name and options."""
    known, name = fields.known()["network.name", ""], values.get("network.name")
    if not isinstance(name, str):
        return Network(), [wrong_value(known, name) if "network.name" in values else missing(known)]
    found, problems = _own(name, values) if ":" in name else _of_the_zoo(name, values)
    return found, problems + _odd_options(values)


def _of_the_zoo(name: str, values: Mapping[str, Any]) -> tuple[Network, list[Problem]]:
    from laptime.training.networks.registry import entry

    try:
        found = entry(name)
    except UnknownNetwork as error:
        text = str(error) if name.isprintable() and len(name) < 80 else f"no network is called {shown(name)}"
        return Network(name=name), [Problem(text=text, keys=("network.name", "data.kind"))]
    taken = inspect.signature(found.make).parameters.values()
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken)
    options = {
        one.name: found.options.get(one.name, one.default)
        for one in taken
        if one.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }
    network = Network(
        name=name,
        data=found.data,
        input=found.input,
        classes=found.classes,
        ids=found.ids,
        options=options,
        takes_any=free,
    )
    return network, _wrong_options(network, values)


def _own(name: str, values: Mapping[str, Any]) -> tuple[Network, list[Problem]]:
    module, _, made = name.partition(":")
    problems = []
    if not module.strip() or not made.strip():
        text = f"network.name is {shown(name)}; write module:callable, such as mypackage.models:build"
        problems.append(Problem(text=text, keys=("network.name",)))
    if "data.kind" not in values:
        text = (
            f"data.kind is missing; a network of your own has no default: write {' or '.join(fields.kinds())}"
        )
        problems.append(Problem(text=text, keys=("data.kind",)))
    return Network(name=name), problems


def _wrong_options(network: Network, values: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for key in values:
        if network.takes(key):
            continue
        option = key.removeprefix(f"{fields.OPTIONS}.")
        near = nearest(option, network.options)
        has = ", ".join(network.options) or "none"
        hint = f"did you mean {near}?" if near else f"{network.name} takes {has}"
        problems.append(Problem(text=f"{plain(key)} is unknown; {hint}", keys=(key,)))
    return problems


def _odd_options(values: Mapping[str, Any]) -> list[Problem]:
    """What a run's record cannot hold, such as a date, is no option."""
    odd = [key for key in values if key.startswith(f"{fields.OPTIONS}.") and not _simple(values[key])]
    problems = [
        Problem(
            text=f"{plain(key)} is {shown(values[key])}; write a number, text, true, false or a list",
            keys=(key,),
        )
        for key in odd
    ]
    if fields.OPTIONS in values:
        said = f"{fields.OPTIONS} is {shown(values[fields.OPTIONS])}, which is no table"
        problems.append(Problem(text=f"{said}; write {{ batch_norm = true }}", keys=(fields.OPTIONS,)))
    return problems


def _simple(value: Any) -> bool:
    if isinstance(value, list):
        return all(_simple(one) for one in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _simple(one) for key, one in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63)
