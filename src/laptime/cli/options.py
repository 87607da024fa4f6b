"""Arguments and options that several verbs share, and the compact notations they are written in.

A sample is `[DTYPE:]SHAPE[@IDS]`:

3x224x224        float32 from a normal distribution
int64:128        128 token ids, below the size of the network's first embedding
int64:128@5000   … below 5000
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer import Argument, Option

from laptime.training.target import Sample

Runs = Annotated[list[Path], Argument(metavar="RUN...", help="Run directories.")]
Device = Annotated[
    str | None, Option("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one.")
]
EveryLayer = Annotated[bool, Option("--all", help="Every layer, however many there are.")]
Inference = Annotated[bool, Option("--inference", help="Forward passes only.")]
Json = Annotated[bool, Option("--json", help="Print one JSON document instead of tables.")]
Out = Annotated[Path | None, Option("--out", help="The run directory; by default a new one under runs/.")]
_LAYERS_HELP = "What a layer is: 'layer', 'module', a depth such as 2, or 'name=path+path,name=path'."
Layers = Annotated[str, Option("--layers", metavar="DIVISION", help=_LAYERS_HELP)]

Granularity = str | int | dict[str, str | Sequence[str]]

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
_SAMPLE = re.compile(r"(?:(?P<dtype>[a-z0-9]+):)?(?P<shape>\d+(?:x\d+)*)(?:@(?P<ids>\d+))?")
_LARGEST = 2**31  # elements of one sample; more is a typing error


def samples(inputs: Sequence[str] | None) -> list[Sample]:
    """What each `--input` says."""
    return [_sample(text) for text in inputs or ()]


def _sample(text: str) -> Sample:
    match = _SAMPLE.fullmatch(text.strip().lower())
    if match is None:
        wrong("--input", f"{text!r} is not a shape such as 3x224x224, or int64:128 for token ids")
    shape = tuple(int(size) for size in match["shape"].split("x"))
    ids = int(match["ids"]) if match["ids"] else None
    dtype = match["dtype"] or ("float32" if ids is None else "int64")
    if dtype not in DTYPES:
        wrong("--input", f"{dtype!r} is not one of {', '.join(DTYPES)}")
    if 0 in shape or prod(shape) > _LARGEST:
        wrong("--input", f"{text!r} has no elements, or too many")
    if ids is not None and (ids < 1 or not dtype.startswith("int")):
        wrong("--input", f"{text!r}: @ gives the number of token ids, for int64 or int32")
    return Sample(shape=shape, dtype=dtype, ids=ids)


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
    """`--kernels`: `40,50-52` as step numbers."""
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
