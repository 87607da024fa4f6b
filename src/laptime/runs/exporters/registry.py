"""The register of exporters. Each enters itself, in a file of this folder.

An exporter writes a run as files that another program reads. MLflow, which is a server with runs of its own,
is not among them (`mlflow.py`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
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
    _import_all()
    return MappingProxyType(_EXPORTERS)


@cache
def _import_all() -> None:
    package = import_module("laptime.runs.exporters")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"laptime.runs.exporters.{module.name}")
