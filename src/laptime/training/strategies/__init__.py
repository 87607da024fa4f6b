"""How the ranks of a training share its work: one file per strategy, which carries the strategy's name.

`STRATEGIES` knows the names without importing torch; a strategy's file is imported when it is asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from laptime.training.strategies.contract import Strategy

_CONTRACT = "contract"  # the file that is no strategy


class _Strategies(Mapping[str, "type[Strategy]"]):
    """Classes by name: the files of this folder, and what is entered at run time."""

    def __init__(self) -> None:
        self.entered: dict[str, type[Strategy]] = {}

    def __getitem__(self, name: str) -> type[Strategy]:
        if name not in self.entered and name in self:
            import_module(f"{__name__}.{name}")
        return self.entered[name]

    def names(self) -> list[str]:
        """All names, in order."""
        files = {module.name for module in pkgutil.iter_modules(__path__)} - {_CONTRACT}
        return sorted(files | self.entered.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())


STRATEGIES = _Strategies()
Made = TypeVar("Made", bound="type[Strategy]")


def strategy(name: str) -> Callable[[Made], Made]:
    """Enter a class under a name."""

    def enter(made: Made) -> Made:
        STRATEGIES.entered[name] = made
        return made

    return enter
