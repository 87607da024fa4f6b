"""The schema, key by key: what a key takes and means, how values are written, and what is said of wrong ones.

Everything here is read off `Config`. Text is what the command line and XML have, and what `--explain` prints.
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from laptime.errors import ConfigError
from laptime.files.text import one_line
from laptime.training.config.schema import Config
from laptime.training.config_section import ConfigSection, OneOf
from laptime.training.data.kinds import KINDS

SHORT = {
    "network": "name",
    "data": "kind",
    "optimizer": "name",
    "schedule": "name",
    "loss": "name",
    "parallel": "strategy",
}
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
_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")  # pydantic's words
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_BOOLEANS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the schema. It takes a value of a type, within limits or of a choice; several; or none."""

    name: str
    info: FieldInfo
    type: Any
    several: bool
    optional: bool
    choices: Collection[str]
    limits: dict[str, float]  # by gt, ge, lt, le

    @classmethod
    def of(cls, name: str, info: FieldInfo) -> Key:
        """What the annotation of a field allows."""
        annotation, marks, origins = info.annotation, list(info.metadata), set()
        while (origin := get_origin(annotation)) not in (None, dict, Literal):
            annotation, *others = get_args(annotation)
            marks += others if origin is Annotated else []
            origins.add(origin)
        marks = [mark for given in marks for mark in getattr(given, "metadata", [given])]
        choices: Collection[str] = get_args(annotation) if origin is Literal else ()
        for mark in marks:
            if isinstance(mark, OneOf):
                choices = mark.register.keys()
        sides = itertools.product(marks, ("gt", "ge", "lt", "le"))
        limits = {side: getattr(mark, side) for mark, side in sides if hasattr(mark, side)}
        if annotation is int:  # above 0 is at least 1
            whole = (("gt", "ge", 1), ("lt", "le", -1))
            limits |= {closed: limits.pop(open) + more for open, closed, more in whole if open in limits}
        return cls(
            name=name,
            info=info,
            type={dict: dict, Literal: str}.get(origin, annotation),
            several=tuple in origins,
            optional=bool(origins & {Union, UnionType}),
            choices=KINDS.keys() if name == "data.kind" else choices,
            limits=limits,
        )

    @property
    def default(self) -> Any:
        """The value where nobody gives one; None where somebody must."""
        return None if self.info.is_required() else self.info.get_default(call_default_factory=True)

    @property
    def meaning(self) -> str:
        """The text below the field in the schema."""
        return " ".join((self.info.description or "").split())

    @property
    def noun(self) -> str:
        """The bare word for what it takes."""
        return "list" if self.several else _NOUNS[self.type]

    @property
    def words(self) -> str:
        """What to write, for an error and for the reference: "a whole number of at least 1"."""

        def limit(name: str, words: str) -> str:
            return f" {words} {self.limits[name]:.12g}" if name in self.limits else ""

        low, high = limit("ge", "from") or limit("gt", "above"), limit("le", "to") or limit("lt", "to below")
        within = f"{low}{high}" if high else limit("ge", "of at least") or low
        each = _NOUNS[bool] if self.type is bool else f"a {_NOUNS[self.type]}{within}"
        if self.choices:
            each = f"one of {', '.join(self.choices)}"
        return f"a list, each {each}" if self.several else each

    def fit(self, value: Any) -> Any:
        """The value in the key's type. What does not fit is left as it is, for `problem_of` to tell."""
        if self.optional and (
            value is None or (isinstance(value, str) and value.lower() in ("none", "null"))
        ):
            return None
        if not self.several:
            return _fit(value, self.type)
        items = _split(value, self.type) if isinstance(value, str) else value
        return tuple(_fit(item, self.type) for item in items) if isinstance(items, list | tuple) else value

    def problem_of(self, value: Any) -> Problem | None:
        """What is wrong with a value in the key's type."""
        # From 2**53 on, JSON readers lose digits.
        items = value if isinstance(value, tuple) else (value,)
        if any(isinstance(item, int) and abs(item) >= 2**53 for item in items):
            return wrong_value(self, value, type_fits=True)
        annotated: Any = Annotated
        field = TypeAdapter(annotated[self.info.annotation, self.info], config=ConfigSection.model_config)
        try:
            field.validate_python(value, strict=True)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            if detail["type"] == "value_error":  # raised by a validator of this field
                return Problem(f"{self.name} = {shown(value)} {detail['ctx']['error']}", self.name)
            type_fits = detail["type"] in _RANGES and not detail["loc"]
            return wrong_value(self, value, type_fits=type_fits)
        return None


def sections() -> list[str]:
    """The tables of a configuration."""
    return [name for name in Config.model_fields if name != "name"]


def model(section: str, kind: str) -> type[BaseModel]:
    """The schema of a section; `data` has one for each kind, and without a kind only an empty one."""
    if section == "data":
        return KINDS.get(kind, ConfigSection)
    return cast(type[BaseModel], Config.model_fields[section].annotation)


def _inner(info: FieldInfo) -> type[BaseModel] | None:
    """The schema of a field that is itself a table with keys, such as `train.until`."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, ConfigSection) else None


@cache
def tables() -> list[str]:
    """The sections, and the tables inside of them whose keys the schema knows."""
    inside = [
        f"{section}.{name}"
        for section in sections()
        for name, info in model(section, "").model_fields.items()
        if _inner(info)
    ]
    return [*sections(), *inside]


@cache
def keys(kind: str) -> dict[str, Key]:
    """Every key of a configuration with this kind of data, by name, in the order of the schema."""
    known = {"name": Key.of("name", Config.model_fields["name"])}

    def add(table: str, fields: Mapping[str, FieldInfo]) -> None:
        for name, info in fields.items():
            if inner := _inner(info):
                add(f"{table}.{name}", inner.model_fields)
            else:
                known[f"{table}.{name}"] = Key.of(f"{table}.{name}", info)

    for section in sections():
        add(section, model(section, kind).model_fields)
    return known


def names() -> list[str]:
    """Every key's name, once."""
    return list(dict.fromkeys(name for kind in KINDS for name in keys(kind)))


def kinds_with(name: str) -> list[str]:
    """The kinds of data that have a key."""
    return [kind for kind in KINDS if name in keys(kind)]


def takes_several(name: str) -> bool:
    """Whether any kind of data takes a list under this key."""
    return any(keys(kind)[name].several for kind in kinds_with(name))


# -- values as text ------------------------------------------------------------------------------------------


def literal(text: str) -> Any:
    """Text as TOML reads it, `true` and `64` and `[1, 2]`; else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


def _fit(value: Any, kind: Any) -> Any:
    """Text that reads as a number becomes one: XML and settings have only text, YAML takes 1e-3 for it."""
    if not isinstance(value, str):
        if kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
        # A folder called 2019, a depth of 2: TOML and YAML make numbers of them.
        return str(value) if kind is str and type(value) is int and abs(value) < 10**18 else value
    if kind is bool:
        return _BOOLEANS.get(value.strip().lower(), value)
    if kind is Path:
        return Path(value)
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            number = literal(value)  # 1e3 is a whole number, too
            return int(number) if isinstance(number, float) and number.is_integer() else value
    return value


def _split(text: str, kind: Any) -> list[str]:
    """`3x224x224`, `a, b`, `a b` and `["a", "b"]` are lists.

    Where there is a comma nothing else parts: not the blank in `cats and dogs, plain`, nor the x in `1,x`.
    """
    text = text.strip()
    if text.startswith("["):
        items = literal(text)
        return list(map(str, items)) if isinstance(items, list) else [text]
    if "," in text:
        return [part.strip() for part in text.split(",") if part.strip()]
    return (text.replace("x", " ") if kind is int else text).split()


def written(value: Any) -> str:
    """A value as a configuration file has it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {written(inner)}' for key, inner in value.items())}}}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- what is wrong, in lines that say what to change -------------------------------------------------------


class Problem:
    """One thing to change, and the keys it is about."""

    def __init__(self, text: str, *keys: str) -> None:
        self.text, self.keys = text, keys


def refusal(path: Path, problems: Sequence[Problem], sources: Mapping[str, str]) -> ConfigError:
    """One problem in one line; several below a line that says how many, one line each."""
    lines = [
        (next((sources[key] for key in problem.keys if key in sources), str(path)), problem.text)
        for problem in problems
    ]
    if len(lines) == 1:
        return ConfigError(one_line(": ".join(lines[0])))
    told = [text if source == str(path) else f"{source}: {text}" for source, text in lines]
    return ConfigError("\n  ".join(map(one_line, [f"{path}: {len(problems)} things to change", *told])))


def shown(value: Any, longest: int = 60) -> str:
    """A value as a message can hold it: short, and on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, dict):
        return "a table"
    try:
        text = str(list(value)) if isinstance(value, tuple) else repr(value)
    except (ValueError, RecursionError):  # Python prints no number of more than 4300 digits
        return "a value too long to print"
    text = one_line(repr(str(value)) if isinstance(value, Path) else text)
    return text if len(text) <= longest else f"{text[:longest]}…"


def plain(key: str) -> str:
    """A key as a message can hold it."""
    return one_line(key)[:80] if key.strip() else shown(key)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def hint(near: str | None, otherwise: str) -> str:
    """What to try: the nearest known word, or else."""
    return f"did you mean {near}?" if near else otherwise


def unknown_key(name: str, kind: str) -> Problem:
    """A key that the schema lacks, with the nearest key, its right section, or a list of keys."""
    section, _, last = name.partition(".")
    elsewhere = [other for other in kinds_with(name) if other != kind]
    if elsewhere:
        have = f"{', '.join(elsewhere)} data {'has' if len(elsewhere) == 1 else 'have'} it"
        return Problem(f"{name} is no key of {kind} data; {have}: leave it out or change data.kind", name)
    here = list(keys(kind))
    same = next((known for known in here if known.rpartition(".")[2] == name.rpartition(".")[2]), None)
    candidates, there = [*here, *sections()], f"there are name, {', '.join(sections())}"
    if section in sections() and last:
        candidates = [known for known in here if known.startswith(f"{section}.")]
        there = f"{section} has {', '.join(known.partition('.')[2] for known in candidates)}"
    return Problem(f"{plain(name)} is unknown; {hint(same or nearest(name, candidates), there)}", name)


def wrong_value(key: Key, value: Any, *, type_fits: bool = False) -> Problem:
    """A value that the field does not take: what it is, and what to write."""
    if key.choices and isinstance(value, str):
        reason = f"is none of {', '.join(key.choices)}; "
        reason += hint(nearest(value.lower(), key.choices), "write one of these")
    elif type_fits:
        reason = f"is out of range; write {key.words}"
    elif key.type is bool:
        reason = "is neither true nor false; write one of them"
    elif key.several and isinstance(value, tuple | list):
        reason = f"does not fit; write {key.words}"
    elif key.default not in (None, "", ()):
        reason = f"is no {key.noun}; write one such as {shown(key.default)}"
    else:
        reason = f"is no {key.noun}; write {key.words}"
    return Problem(f"{key.name} is {shown(value)}, which {reason}", key.name)


def missing(key: Key, kind: str) -> Problem:
    """A key without a default that nobody gave."""
    if key.name == "network.name":
        return Problem('network is missing; write network = "alexnet", or another name', key.name)
    meaning = key.meaning[:1].lower() + key.meaning[1:].rstrip(".")
    return Problem(f"{key.name} is missing; {kind} data needs it: {meaning}", key.name)


def no_table(section: str, value: Any) -> Problem:
    """A value where a section belongs."""
    short = f'{section} = "…", or ' if section in SHORT else ""
    advice = f"write {short}[{section}] and keys below it"
    return Problem(f"{section} is {shown(value)}, where a table is wanted; {advice}", section)
