"""JSON into frozen dataclasses, checked against their types: what does not fit raises ValueError."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from laptime.files.parse import WHOLE
from laptime.files.text import one_line

LARGEST = 1e100  # no time, count or price; sums and products of these stay finite

T = TypeVar("T")
Read = Callable[[Any], Any]


def build(kind: type[T], document: Any) -> T:
    """The dataclass `kind` from an object; keys that it does not have are passed over.

    An int is a count: whole, not negative, below 2^63. A float is any finite number.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{kind.__name__} is {_shown(document)}, not an object")
    given: dict[str, Any] = {}
    for name, read, needed in _fields(cast(Any, kind)):
        if name in document:
            try:
                given[name] = read(document[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif needed:
            raise ValueError(f"{name} is missing")
    return kind(**given)


@cache
def _fields(kind: type) -> list[tuple[str, Read, bool]]:
    hints = get_type_hints(kind)
    return [
        (
            field.name,
            _reader(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(kind)
        if field.init
    ]


def _reader(hint: Any) -> Read:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin in (Union, UnionType):
        return _either(inner)
    if origin is Literal:
        return lambda value: _word(value, inner)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        read = _tuple(tuple(get_type_hints(hint).values()))
        return lambda value: hint(*read(value))
    if origin is tuple:
        return _tuple(inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, values = map(_reader, inner)
        return lambda value: {keys(key): values(item) for key, item in mapping(value).items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: build(hint, value)
    raise TypeError(f"no reader for {hint}")


def _tuple(inner: tuple[Any, ...]) -> Read:
    readers = [_reader(hint) for hint in inner if hint is not Ellipsis]

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or (Ellipsis not in inner and len(value) != len(readers)):
            raise ValueError(f"{_shown(value)} is no list of the right length")
        each = readers * len(value) if Ellipsis in inner else readers
        return tuple(reader(item) for reader, item in zip(each, value, strict=True))

    return read


def _either(kinds: tuple[Any, ...]) -> Read:
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]

    def read(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        for reader in readers[:-1]:
            with suppress(ValueError):
                return reader(value)
        return readers[-1](value)

    return read


def _word(value: Any, known: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{_shown(value)} is none of {', '.join(map(str, known))}")
    return value


def mapping(value: Any) -> Mapping[Any, Any]:
    """An object."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{_shown(value)} is no object")
    return value


def sequence(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is no list")
    return value


def count(value: Any) -> int:
    """A whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < WHOLE:
        raise ValueError(f"{_shown(value)} is no count")
    return value


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise ValueError(f"{_shown(value)} is no number")
    if math.isnan(value):
        raise ValueError("it is not a number")
    return value


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def _shown(value: Any) -> str:
    shown = one_line(repr(value) if isinstance(value, str | float | bool) else type(value).__name__)
    return shown if len(shown) <= 60 else shown[:59] + "…"


_SIMPLE: dict[Any, Read] = {
    int: count,
    float: number,
    str: text,
    bool: _truth,
    Any: lambda value: value,
}
