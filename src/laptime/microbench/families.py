"""The register of families that a sweep draws operations from. Each enters itself, in its own file."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import torch

from laptime.microbench.case import Case
from laptime.microbench.random_sizes import Supply

Make = Callable[[Supply, torch.dtype], list[Case]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFamily:
    """Operations of one kind, and of its backward pass where that has one."""

    name: str
    make: Make  # a random member, each way; raises TooLarge where the draw was unlucky
    share: int  # of the draws of a round: more where shapes matter more
    low: bool  # also in bfloat16


_families: list[SweepFamily] = []


def family(*, share: int = 1, low: bool = True) -> Callable[[Make], Make]:
    """Enter a function under its name."""

    def enter(make: Make) -> Make:
        _families.append(SweepFamily(name=make.__name__, make=make, share=share, low=low))
        return make

    return enter


@cache
def all_families() -> tuple[SweepFamily, ...]:
    """Every family. Reads the files of this folder."""
    folder = import_module("laptime.microbench")
    for module in pkgutil.iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return tuple(_families)
