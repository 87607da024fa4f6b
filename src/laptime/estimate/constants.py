"""Constants as the code has them: a number, its unit by its name, and the comment that stands with it.

Units live in names and sources in comments, so neither has to be written down a second time to be shown.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

_UNITS = {"_US": "µs", "_S": "s", "_BYTES": "bytes", "_GBS": "GB/s", "_GIB": "GiB", "_MIB": "MiB"} | {
    "_W": "W",
    "_MHZ": "MHz",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number that a prediction rests on."""

    name: str
    value: float | str
    unit: str  # "" where it has none
    source: str


def of_module(module: ModuleType, *, without: Collection[str] = ()) -> Iterator[Constant]:
    """The numbers in capitals at the top of a module, each with the comment above it or beside it."""
    text = _text(module)
    short = module.__name__.removeprefix("laptime.")
    for names, comment in _assigned(ast.parse(text).body, text.splitlines()):
        for name in names:
            if name.isupper() and not name.startswith("_") and name not in without:
                source = f"{short}: {comment}" if comment else short
                for label, value in _numbers(name, getattr(module, name, None)):
                    yield Constant(name=label, value=value, unit=unit_of(name), source=source)


def of_class(value: Any, module: ModuleType) -> Iterator[Constant]:
    """The fields of a dataclass's value, each with the comment beside it."""
    text, short = _text(module), module.__name__.removeprefix("laptime.")
    own = type(value).__name__
    classes = {one.name: one.body for one in ast.parse(text).body if isinstance(one, ast.ClassDef)}
    body = classes.get(own, [])
    comments = {name: said for names, said in _assigned(body, text.splitlines()) for name in names}
    for one in fields(value):
        given = getattr(value, one.name)
        comment = comments.get(one.name)
        source = f"{short}: {comment}" if comment else short
        if isinstance(given, Mapping):
            for label, number in _numbers(f"{own}.{one.name}", given):
                yield Constant(name=label, value=number, unit=unit_of(one.name), source=source)
        if _is_number(given) or isinstance(given, str | bool):
            yield Constant(
                name=f"{own}.{one.name}",
                value=given if _is_number(given) else str(given),
                unit=unit_of(one.name),
                source=source,
            )


def _assigned(body: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Names that a body assigns to, with what is said of them; lines that follow one another share it."""
    last, shared = -1, ""
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        above = _above(lines, node.lineno - 1)
        if above or node.lineno != last + 1:
            shared = above
        last = node.end_lineno or node.lineno
        beside = lines[last - 1].partition("  # ")[2].strip()
        yield names, ". ".join(filter(None, (beside, above))) or shared


def _above(lines: Sequence[str], place: int) -> str:
    found: list[str] = []
    while place > 0 and lines[place - 1].lstrip().startswith("#"):
        place -= 1
        found.insert(0, lines[place].strip().lstrip("# "))
    return " ".join(found)


def _text(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):  # compiled files alone were installed: no names, no comments
        return ""


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """A number, or those of a dictionary, by the names of their places."""
    if _is_number(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(f"{name}[{key}]", one)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unit_of(name: str) -> str:
    """By how a name ends, since units live in names."""
    return next((unit for end, unit in _UNITS.items() if name.upper().endswith(end)), "")
