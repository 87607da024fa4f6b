"""The register of the zoo: each network's file enters its name, its input and its objective."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from laptime.errors import UnknownNetwork
from laptime.training import networks
from laptime.training.objectives import Classification, Criterion, Objective

Make = TypeVar("Make", bound=Callable[..., nn.Module])
# An objective, given the loss that a configuration names; None leaves the choice to the objective.
Goal = Callable[[Criterion | None], Objective]


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """What is known of a network before it is built; of a user's own, only how to make it.

    As a decorator, an entry puts the class or function below it into the zoo.
    """

    name: str
    _: KW_ONLY
    make: Callable[..., nn.Module] = nn.Identity
    options: dict[str, Any] = field(default_factory=dict)  # handed to it by `build`
    input: tuple[int, ...] = ()  # one sample, without the batch; empty: unknown
    classes: int = 0  # 0 where there are none
    data: str = "synthetic"  # what it is trained on unless a configuration says otherwise; empty: unknown
    goal: Goal = Classification
    ids: int = 0  # inputs are whole numbers below this; 0: they are real numbers
    parameters: int = 0  # trainable ones, as published or counted by hand, with the default options

    def __call__(self, make: Make) -> Make:
        """Enter a class or function under the name."""
        _entries[self.name] = replace(self, make=make)
        return make

    @property
    def defaults(self) -> dict[str, Any]:
        """Every option that it takes by name, and its default."""
        parameters = inspect.signature(self.make).parameters.values()
        named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        return {each.name: self.options.get(each.name, each.default) for each in named}

    def takes(self, option: str) -> bool:
        """Whether it can be made with an option."""
        parameters = inspect.signature(self.make).parameters.values()
        return option in self.defaults or any(each.kind is each.VAR_KEYWORD for each in parameters)


_entries: dict[str, ZooEntry] = {}
network = ZooEntry


def entries() -> dict[str, ZooEntry]:
    """Every network, by name. Reads the files of this folder, the first time."""
    for module in pkgutil.iter_modules(networks.__path__):
        import_module(f"{networks.__name__}.{module.name}")
    return dict(sorted(_entries.items()))


def entry(name: str) -> ZooEntry:
    """The named network; an error names the nearest."""
    known = entries()
    if name not in known:
        raise UnknownNetwork(name, known=tuple(known))
    return known[name]


def build(name: str, **options: Any) -> nn.Module:
    """The named network with fresh weights, in training mode.

    `options` go to the network's class on top of its entry's own; those that tell classes apart take
    `num_classes`.
    """
    known = entry(name)
    classes = {"num_classes": known.classes} if known.classes else {}
    return known.make(**classes | known.options | options)
