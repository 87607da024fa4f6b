"""Arguments and options that several verbs share, and the compact notations they are written in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one.")
]
EveryLayer = Annotated[bool, typer.Option("--all", help="Every layer, however many there are.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="The run directory; by default a new one under runs/.")
]
Layers = Annotated[
    str,
    typer.Option(
        "--layers",
        metavar="DIVISION",
        help="What a layer is: 'layer', 'module', a depth such as 2, or 'name=path+path,name=path'.",
    ),
]

Granularity = str | int | dict[str, str | Sequence[str]]


def granularity(text: str) -> Granularity:
    """`--layers` as `laptime.record` takes it."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if "=" not in text:
        return text
    mapping: dict[str, str | Sequence[str]] = {}
    for part in text.split(","):
        name, _, paths = part.partition("=")
        if not name or not paths:
            wrong("--layers", f"{part!r} is not name=path or name=path+path")
        mapping[name.strip()] = [path.strip() for path in paths.split("+")]
    return mapping


def step_numbers(text: str) -> list[int]:
    """`40,50-52` as step numbers."""
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            wrong("--kernels", f"{part!r} is not a step number such as 40, nor a range such as 40-42")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first > 1000 or last < first:
            wrong("--kernels", f"{part!r} is not a short range of steps; tracing is for a few of them")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def wrong(option: str, reason: str) -> NoReturn:
    """Wrong usage: status 2, with the usage of the verb."""
    raise typer.BadParameter(reason, param_hint=f"'{option}'")
