"""The schema, seen key by key: what `train.batch` takes, in words, and how text becomes it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from laptime.training.config.schema import Config, DataConfig

SHORT = {"network": "name", "data": "kind", "optimizer": "name", "schedule": "name", "loss": "name"}
"""Sections that a single word stands for: `optimizer = "adam"` is `optimizer.name`."""

OPTIONS = "network.options"
"""The one table whose keys are not ours."""

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """What a field takes: one thing of a type, within a range or a choice; several of them; or nothing."""

    type: Any
    several: bool = False
    optional: bool = False
    choices: tuple[str, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)  # gt, ge, lt, le

    @property
    def one(self) -> str:
        """One such thing: "a whole number of at least 1"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is dict:
            return "a table"
        return f"a {_WORDS[self.type]}{self._range}" if self.type is not bool else _WORDS[bool]

    @property
    def words(self) -> str:
        """What to write, for an error and for the reference."""
        return f"a list, each {self.one}" if self.several else self.one

    @property
    def noun(self) -> str:
        """The bare word for it."""
        return "list" if self.several else "table" if self.type is dict else _WORDS[self.type]

    @property
    def _range(self) -> str:
        low, high = self.limits.get("ge"), self.limits.get("le")
        if self.type is int:
            low = low if low is not None else _plus(self.limits.get("gt"), 1)
            high = high if high is not None else _plus(self.limits.get("lt"), -1)
        above, below = (None if self.type is int else self.limits.get(name) for name in ("gt", "lt"))
        if low is not None or above is not None:
            start = f"from {low:.12g}" if low is not None else f"above {above:.12g}"
            if high is not None:
                return f" {start} to {high:.12g}"
            if below is not None:
                return f" {start} to below {below:.12g}"
            return f" of at least {low:.12g}" if low is not None else f" {start}"
        return ""


def _plus(number: float | None, more: int) -> float | None:
    return None if number is None else number + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A key of the schema. The keys of `data` differ by its kind; elsewhere `kind` is empty."""

    key: str
    kind: str
    info: FieldInfo
    takes: Takes

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.info.default is PydanticUndefined

    @property
    def meaning(self) -> str:
        """The field's own words."""
        return " ".join((self.info.description or "").split())


def takes(annotation: Any, metadata: Iterable[Any] = ()) -> Takes:
    """What a type annotation allows."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return takes(inside[0], [*metadata, *inside[1:]])
    if origin in (Union, UnionType):
        found = takes(next(one for one in inside if one is not NoneType), metadata)
        return _but(found, optional=True)
    if origin is tuple:
        return _but(takes(inside[0]), several=True)
    if origin is Literal:
        return Takes(type=str, choices=inside)
    return Takes(type=dict if origin is dict else annotation, limits=dict(_limits(metadata)))


def _but(found: Takes, *, several: bool = False, optional: bool = False) -> Takes:
    return Takes(
        type=found.type,
        several=several or found.several,
        optional=optional or found.optional,
        choices=found.choices,
        limits=found.limits,
    )


def _limits(metadata: Iterable[Any]) -> Iterator[tuple[str, float]]:
    for one in metadata:
        for each in one.metadata if isinstance(one, FieldInfo) else (one,):
            for name in ("gt", "ge", "lt", "le"):
                if hasattr(each, name):
                    yield name, getattr(each, name)


def sections() -> dict[str, tuple[type[BaseModel], ...]]:
    """The tables of a configuration; `data` has one model for each kind."""
    kinds = get_args(get_args(DataConfig)[0])
    return {
        name: kinds if name == "data" else (info.annotation,)
        for name, info in Config.model_fields.items()
        if name != "name"
    }


def kinds() -> dict[str, type[BaseModel]]:
    """The kinds of data, and the section of each."""
    return {model.model_fields["kind"].default: model for model in sections()["data"]}


@cache
def known() -> dict[tuple[str, str], Known]:
    """Every key of the schema, by (key, kind of data), in the order of the schema."""
    found = [_known("name", "", Config.model_fields["name"])]
    for section, models in sections().items():
        for model in models:
            kind = model.model_fields["kind"].default if section == "data" else ""
            found += [_known(f"{section}.{name}", kind, info) for name, info in model.model_fields.items()]
    return {(one.key, one.kind): one for one in found}


def _known(key: str, kind: str, info: FieldInfo) -> Known:
    allowed = takes(info.annotation, info.metadata)
    if key == "data.kind":
        allowed = Takes(type=str, choices=tuple(kinds()))
    return Known(key=key, kind=kind, info=info, takes=allowed)


def find(key: str, kind: str) -> Known | None:
    """The key as the given kind of data has it; None if it is unknown."""
    return known().get((key, kind if key.startswith("data.") else ""))


def kinds_with(key: str) -> list[str]:
    """The kinds of data that have a key."""
    return [kind for name, kind in known() if name == key and kind]


def names() -> list[str]:
    """Every key, once."""
    return list(dict.fromkeys(key for key, _ in known()))


def takes_several(key: str) -> bool:
    """Whether any section takes a list under this key."""
    return any(one.takes.several for one in known().values() if one.key == key)


def fit(value: Any, wanted: Takes) -> Any:
    """The value as the field's type has it. What does not fit is left as it is, for the schema to refuse.

    Text that reads as a number is one: XML and the command line have nothing but text, and YAML takes `1e-3`
    for text.
    """
    if wanted.optional and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
        return None
    if wanted.type is dict:
        return value
    if wanted.several:
        items = _split(value, wanted.type) if isinstance(value, str) else value
        single = Takes(type=wanted.type, choices=wanted.choices)
        return tuple(fit(item, single) for item in items) if isinstance(items, list | tuple) else value
    if isinstance(value, str):
        return _from_text(value, wanted.type)
    if wanted.type is int and isinstance(value, float) and value.is_integer():
        return int(value)
    # A folder called 2019, a depth of 2: TOML and YAML make numbers of them.
    if wanted.type is str and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    return value


def enormous(value: Any) -> bool:
    """A number that no count, size or seed can be, and that JSON readers lose digits of."""
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(one, int) and abs(one) >= 2**53 for one in items)


def _from_text(text: str, kind: Any) -> Any:
    if kind is bool and text.strip().lower() in (*_TRUE, *_FALSE):
        return text.strip().lower() in _TRUE
    if kind is Path:
        return Path(text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            number = literal(text)  # 1e3 is a whole number, too
            return int(number) if isinstance(number, float) and number.is_integer() else text
    return text


def _split(text: str, kind: Any) -> list[str]:
    """`3x224x224`, `a, b`, `a b` and `["a", "b"]` are lists."""
    text = text.strip()
    if text.startswith("["):
        found = literal(text)
        return (
            [one if isinstance(one, str) else str(one) for one in found]
            if isinstance(found, list)
            else [text]
        )
    return (text.replace("x", " ") if kind is int else text).replace(",", " ").split()


def literal(text: str) -> Any:
    """Text as TOML reads it, `true` and `64` and `[1, 2]`; else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text
