"""The register of the zoo: each network's file enters its name, its input and its objective."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from laptime.errors import UnknownNetwork
from laptime.training.objectives import Classification, Criterion, Objective

Make = TypeVar("Make", bound=Callable[..., nn.Module])
# An objective, given the loss that a configuration names; None leaves the choice to the objective.
Goal = Callable[[Criterion | None], Objective]


def classification(criterion: Criterion | None) -> Objective:
    """The goal of most networks."""
    return Classification() if criterion is None else Classification(criterion)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """What is known of a network before it is built."""

    name: str
    make: Callable[..., nn.Module]
    options: dict[str, Any]
    input: tuple[int, ...]  # one sample, without the batch
    classes: int  # 0 where there are none
    data: str  # the kind of data it is trained on unless a configuration says otherwise
    goal: Goal
    ids: int = 0  # inputs are whole numbers below this; 0: they are real numbers
    parameters: int = 0  # trainable ones, as published or counted by hand, with the default options


_entries: dict[str, ZooEntry] = {}


def network(
    name: str,
    *,
    input: tuple[int, ...],
    classes: int,
    data: str = "synthetic",
    goal: Goal = classification,
    ids: int = 0,
    parameters: int = 0,
    **options: Any,
) -> Callable[[Make], Make]:
    """Enter a class or function into the zoo under a name. `options` are handed to it by `build`."""

    def enter(make: Make) -> Make:
        _entries[name] = ZooEntry(
            name=name,
            make=make,
            options=options,
            input=input,
            classes=classes,
            data=data,
            goal=goal,
            ids=ids,
            parameters=parameters,
        )
        return make

    return enter


def entries() -> dict[str, ZooEntry]:
    """Every network, by name. Reads the files of this folder, the first time."""
    folder = import_module("laptime.training.networks")
    for module in pkgutil.iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_entries.items()))


def entry(name: str) -> ZooEntry:
    """The named network; an error names the nearest."""
    known = entries()
    if name not in known:
        raise UnknownNetwork(name, known=tuple(known))
    return known[name]
