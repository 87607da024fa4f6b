"""Numbers that a prediction rests on, each declared with its source.

A module declares one as `LAUNCH_US: Annotated[float, Source("…")] = 2.0`; fields of a dataclass, likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_type_hints

_UNITS = {"_US": "µs", "_S": "s", "_BYTES": "bytes", "_GBS": "GB/s", "_GIB": "GiB", "_MIB": "MiB"}
_UNITS |= {"_W": "W", "_MHZ": "MHz"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number comes from; its unit, where the end of its name does not tell it."""

    text: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a prediction rests on."""

    name: str
    value: float | str
    unit: str  # "" where it has none
    source: str


def of_module(module: ModuleType) -> Iterator[Constant]:
    """The constants that a module declares."""
    yield from _declared(module, vars(module), "", module.__name__)


def of_value(value: Any) -> Iterator[Constant]:
    """The fields of a dataclass's value that are declared as constants."""
    made = type(value)
    hints = get_type_hints(made, include_extras=True)
    given = {name: getattr(value, name) for name in hints}
    yield from _declared(made, given, f"{made.__name__}.", made.__module__)


def _declared(owner: Any, values: Mapping[str, Any], prefix: str, module: str) -> Iterator[Constant]:
    where = module.removeprefix("laptime.")
    for name, hint in get_type_hints(owner, include_extras=True).items():
        for source in getattr(hint, "__metadata__", ()):
            if isinstance(source, Source):
                for label, value in _numbers(prefix + name, values[name]):
                    unit = source.unit or unit_of(name)
                    yield Constant(label, value, unit, f"{where}: {source.text}")


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float | str]]:
    """A number or a word, or those of a dictionary, by the names of their places."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{name}[{key}]", part)
    else:
        yield name, str(value) if isinstance(value, bool) else value


def unit_of(name: str) -> str:
    """By how a name ends, since units live in names."""
    return next((unit for end, unit in _UNITS.items() if name.upper().endswith(end)), "")
