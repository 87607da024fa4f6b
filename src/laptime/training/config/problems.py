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
from laptime.training.data.kinds import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to change, the keys it is about, and who set the first of them."""

    text: str
    keys: tuple[str, ...] = ()
    source: str = ""


def problem(text: str, *keys: str, source: str = "") -> Problem:
    """A problem of these keys."""
    return Problem(text=text, keys=keys, source=source)


def refusal(path: Path, problems: Sequence[Problem]) -> ConfigError:
    """One problem in one line; several below a line that says how many, one line each."""
    if len(problems) == 1:
        return ConfigError(one_line(f"{problems[0].source or path}: {problems[0].text}"))
    lines = [
        each.text if each.source in ("", str(path)) else f"{each.source}: {each.text}" for each in problems
    ]
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
    elsewhere = [other for other in fields.kinds_with(name) if other != kind]
    if elsewhere:
        have = f"{', '.join(elsewhere)} data {'has' if len(elsewhere) == 1 else 'have'} it"
        return problem(f"{name} is no key of {kind} data; {have}: leave it out or change data.kind", name)
    names = [known for known in fields.names() if fields.find(known, kind)]
    same = next((known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]), None)
    candidates, there = [*names, *fields.sections()], f"there are name, {', '.join(fields.sections())}"
    if section in fields.sections() and last:
        candidates = [known for known in names if known.startswith(f"{section}.")]
        there = f"{section} has {', '.join(known.partition('.')[2] for known in candidates)}"
    return problem(f"{plain(name)} is unknown; {hint(same or nearest(name, candidates), there)}", name)


def wrong_value(key: fields.Key, value: Any, *, type_fits: bool = False) -> Problem:
    """A value that the field does not take: what it is, and what to write."""
    takes = key.takes
    if takes.choices and isinstance(value, str):
        reason = f"is none of {', '.join(takes.choices)}; "
        reason += hint(nearest(value.lower(), takes.choices), "write one of these")
    elif type_fits:
        reason = f"is out of range; write {takes.words}"
    elif takes.type is bool:
        reason = "is neither true nor false; write one of them"
    elif takes.several and isinstance(value, tuple | list):
        reason = f"does not fit; write {takes.words}"
    elif key.default not in (None, "", ()):
        reason = f"is no {takes.noun}; write one such as {shown(key.default)}"
    else:
        reason = f"is no {takes.noun}; write {takes.words}"
    return problem(f"{key.name} is {shown(value)}, which {reason}", key.name)


def missing(key: fields.Key) -> Problem:
    """A key without a default that nobody gave."""
    if key.name == "network.name":
        return problem('network is missing; write network = "alexnet", or another name', key.name)
    meaning = key.meaning[:1].lower() + key.meaning[1:].rstrip(".")
    return problem(f"{key.name} is missing; {key.kind} data needs it: {meaning}", key.name)


_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def from_schema(error: ValidationError, kind: str, values: Mapping[str, Any]) -> list[Problem]:
    """Pydantic's findings in our words, one for each key."""
    problems: dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        told = _from_detail(detail, kind, values)
        problems.setdefault(told.keys[0], told)
    return list(problems.values())


def _from_detail(detail: ErrorDetails, kind: str, values: Mapping[str, Any]) -> Problem:
    loc = [str(part) for part in detail["loc"] if part not in KINDS]
    name = ".".join(loc[:2])
    key = fields.find(name, kind)
    if key is None or detail["type"] == "value_error":  # raised by a section's own validator
        said = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return problem(f"{loc[0]}.{said}" if loc else said, loc[0] if loc else "")
    if detail["type"] == "missing" and len(loc) <= 2:
        return missing(key)
    in_range = detail["type"] in _RANGES and len(loc) == 2
    return wrong_value(key, values.get(name, detail["input"]), type_fits=in_range)
