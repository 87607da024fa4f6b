"""What is wrong with a configuration, in lines that say what to change."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from laptime.errors import ConfigError
from laptime.files.text import one_line
from laptime.training.config import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to change, the keys it is about, and who set the first of them."""

    text: str
    keys: tuple[str, ...] = ()
    source: str = ""


def refusal(path: Path, problems: Sequence[Problem]) -> ConfigError:
    """One problem in one line; several below a line that says how many, one line each."""
    if len(problems) == 1:
        return ConfigError(one_line(f"{problems[0].source or path}: {problems[0].text}"))
    lines = [one.text if one.source in ("", str(path)) else f"{one.source}: {one.text}" for one in problems]
    first = one_line(f"{path}: {len(problems)} things to change")
    return ConfigError("\n  ".join([first, *map(one_line, lines)]))


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
    if isinstance(value, Path):
        text = repr(str(value))
    text = one_line(text)
    return text if len(text) <= longest else f"{text[:longest]}…"


def plain(key: str) -> str:
    """A key as a message can hold it."""
    return one_line(key)[:80] if key.strip() else shown(key)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else None


def unknown_key(key: str, kind: str) -> Problem:
    """A key that the schema lacks: the nearest, or where it belongs, or what there is."""
    section, _, last = key.partition(".")
    elsewhere = [one for one in fields.kinds_with(key) if one != kind]
    if elsewhere:
        have = f"{', '.join(elsewhere)} data {'has' if len(elsewhere) == 1 else 'have'} it"
        text = f"{key} is no key of {kind} data; {have}: leave it out or change data.kind"
        return Problem(text=text, keys=(key,))
    names = [name for name in fields.names() if fields.find(name, kind)]
    same = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    near = next(iter(same), None) or nearest(key, [*names, *fields.sections()])
    there = f"there are name, {', '.join(fields.sections())}"
    if section in fields.sections() and last:
        inside = [name for name in names if name.startswith(f"{section}.")]
        near = next(iter(same), None) or nearest(key, inside)
        there = f"{section} has {', '.join(name.partition('.')[2] for name in inside)}"
    hint = f"did you mean {near}?" if near else there
    return Problem(text=f"{plain(key)} is unknown; {hint}", keys=(key,))


def wrong_value(known: fields.Known, value: Any, *, type_fits: bool = False) -> Problem:
    """A value that the field does not take: what it is, and what to write."""
    wanted = known.takes
    said = f"{known.key} is {shown(value)}"
    if wanted.choices and isinstance(value, str):
        near = nearest(value.lower(), wanted.choices)
        hint = f"did you mean {near}?" if near else "write one of these"
        return Problem(
            text=f"{said}, which is none of {', '.join(wanted.choices)}; {hint}", keys=(known.key,)
        )
    if type_fits:
        return Problem(text=f"{said}, which is out of range; write {wanted.words}", keys=(known.key,))
    if wanted.type is bool:
        return Problem(text=f"{said}, which is neither true nor false; write one of them", keys=(known.key,))
    if wanted.several and isinstance(value, tuple | list):
        return Problem(text=f"{said}, which does not fit; write {wanted.words}", keys=(known.key,))
    example = known.info.default if not known.required else None
    hint = f"write one such as {shown(example)}" if example not in (None, "", ()) else f"write {wanted.words}"
    return Problem(text=f"{said}, which is no {wanted.noun}; {hint}", keys=(known.key,))


def missing(known: fields.Known) -> Problem:
    """A key without a default that nobody gave."""
    if known.key == "network.name":
        text = 'network is missing; write network = "alexnet", or another name'
    else:
        meaning = known.meaning[:1].lower() + known.meaning[1:].rstrip(".")
        text = f"{known.key} is missing; {known.kind} data needs it: {meaning}"
    return Problem(text=text, keys=(known.key,))


_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def from_schema(error: ValidationError, kind: str, values: Mapping[str, Any]) -> list[Problem]:
    """Pydantic's findings in our words, one for each key."""
    found: dict[str, Problem] = {}
    for one in error.errors(include_url=False):
        problem = _from_detail(one, kind, values)
        found.setdefault(problem.keys[0], problem)
    return list(found.values())


def _from_detail(detail: ErrorDetails, kind: str, values: Mapping[str, Any]) -> Problem:
    loc = [str(part) for part in detail["loc"] if part not in fields.kinds()]
    key = ".".join(loc[:2])
    known = fields.find(key, kind)
    if known is None or detail["type"] == "value_error":  # a section's own word about itself
        said = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return Problem(text=f"{loc[0]}.{said}" if loc else said, keys=(loc[0] if loc else "",))
    if detail["type"] == "missing" and len(loc) <= 2:
        return missing(known)
    value = values.get(key, detail["input"])
    return wrong_value(known, value, type_fits=detail["type"] in _RANGES and len(loc) == 2)
