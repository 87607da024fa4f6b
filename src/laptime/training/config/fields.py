"""The schema, key by key: what `train.batch` takes and means. Everything here is read off `Config`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from laptime.training.config.schema import Config
from laptime.training.config_section import OneOf
from laptime.training.data.kinds import KINDS

SHORT = {"network": "name", "data": "kind", "optimizer": "name", "schedule": "name", "loss": "name"}
"""Sections that a single word stands for: `optimizer = "adam"` is `optimizer.name`."""

OPTIONS = "network.options"
"""The one table whose keys are the network's own."""

_NOUNS = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    dict: "table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """What a field takes: a value of a type within limits or of a choice; several of them; or none."""

    type: Any
    several: bool = False
    optional: bool = False
    choices: Collection[str] = ()
    limits: Mapping[str, float] = field(default_factory=dict)  # gt, ge, lt, le

    @property
    def words(self) -> str:
        """What to write, for an error and for the reference: "a whole number of at least 1"."""
        each = _NOUNS[bool] if self.type is bool else f"a {_NOUNS[self.type]}{self._range}"
        if self.choices:
            each = f"one of {', '.join(self.choices)}"
        return f"a list, each {each}" if self.several else each

    @property
    def noun(self) -> str:
        """The bare word for it."""
        return "list" if self.several else _NOUNS[self.type]

    @property
    def _range(self) -> str:
        def limit(name: str, words: str) -> str:
            return f" {words} {self.limits[name]:.12g}" if name in self.limits else ""

        low, high = limit("ge", "from") or limit("gt", "above"), limit("le", "to") or limit("lt", "to below")
        return f"{low}{high}" if high else limit("ge", "of at least") or low


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the schema. The keys of `data` differ by its kind; elsewhere `kind` is empty."""

    name: str
    kind: str
    info: FieldInfo
    takes: Takes

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.info.is_required()

    @property
    def default(self) -> Any:
        """The value where nobody gives one; None where somebody must."""
        return None if self.required else self.info.get_default(call_default_factory=True)

    @property
    def meaning(self) -> str:
        """The text below the field in the schema."""
        return " ".join((self.info.description or "").split())


def takes(annotation: Any, metadata: Iterable[Any] = ()) -> Takes:
    """What a type annotation allows."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return takes(inside[0], [*metadata, *inside[1:]])
    if origin in (Union, UnionType):
        return replace(takes(next(arm for arm in inside if arm is not NoneType), metadata), optional=True)
    if origin is tuple:
        return replace(takes(inside[0]), several=True)
    if origin is Literal:
        return Takes(type=str, choices=inside)
    marks = [mark for given in metadata for mark in getattr(given, "metadata", [given])]
    register = next((mark.register.keys() for mark in marks if isinstance(mark, OneOf)), ())
    limits = {
        name: getattr(mark, name)
        for mark in marks
        for name in ("gt", "ge", "lt", "le")
        if hasattr(mark, name)
    }
    if annotation is int:  # above 0 is at least 1
        whole = (("gt", "ge", 1), ("lt", "le", -1))
        limits |= {closed: limits.pop(open) + more for open, closed, more in whole if open in limits}
    return Takes(type=dict if origin is dict else annotation, choices=register, limits=limits)


def sections() -> dict[str, tuple[type[BaseModel], ...]]:
    """The tables of a configuration; `data` has one model for each kind."""
    tables: dict[str, Any] = {name: info.annotation for name, info in Config.model_fields.items()}
    del tables["name"]
    return {name: tuple(KINDS.values()) if name == "data" else (model,) for name, model in tables.items()}


@cache
def keys() -> dict[tuple[str, str], Key]:
    """Every key of the schema, by (name, kind of data), in the order of the schema."""
    listed = [_key("name", "", Config.model_fields["name"])]
    for section, models in sections().items():
        for model in models:
            kind = model.model_fields["kind"].default if section == "data" else ""
            listed += [_key(f"{section}.{name}", kind, info) for name, info in model.model_fields.items()]
    return {(key.name, key.kind): key for key in listed}


def _key(name: str, kind: str, info: FieldInfo) -> Key:
    allowed = takes(info.annotation, info.metadata)
    if name == "data.kind":
        allowed = Takes(type=str, choices=KINDS.keys())
    return Key(name=name, kind=kind, info=info, takes=allowed)


def find(name: str, kind: str) -> Key | None:
    """The key as the given kind of data has it; None if it is unknown."""
    return keys().get((name, kind if name.startswith("data.") else ""))


def kinds_with(name: str) -> list[str]:
    """The kinds of data that have a key."""
    return [kind for key, kind in keys() if key == name and kind]


def names() -> list[str]:
    """Every key's name, once."""
    return list(dict.fromkeys(name for name, _ in keys()))


def takes_several(name: str) -> bool:
    """Whether any section takes a list under this key."""
    return any(key.takes.several for key in keys().values() if key.name == name)
