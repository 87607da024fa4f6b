"""Runs written as files that other programs read. Each exporter enters itself, in a file of this folder.

MLflow, which is a server with runs of its own, is not among them (`mlflow.py`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from laptime.runs.run import Run

Exporter = Callable[[Run, Path | None], Sequence[Path]]  # writes to a place, by default inside the run

_EXPORTERS: dict[str, Exporter] = {}


def exporter(name: str) -> Callable[[Exporter], Exporter]:
    """Enter a function as the exporter that `laptime export --to NAME` calls."""

    def enter(function: Exporter) -> Exporter:
        _EXPORTERS[name] = function
        return function

    return enter


def unregister(name: str) -> None:
    """Take an exporter out again."""
    _EXPORTERS.pop(name, None)


def exporters() -> Mapping[str, Exporter]:
    """Every exporter by its name."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return MappingProxyType(_EXPORTERS)
