"""laptime tells where every millisecond of a training step goes, layer by layer."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LightningCallback",
    "Run",
    "TrainerCallback",
    "__version__",
    "largest_batch",
    "load",
    "predict",
    "record",
    "workload",
]

if TYPE_CHECKING:
    from laptime.api import Run, largest_batch, load, predict, record, workload
    from laptime.measure.trainers.lightning import LightningCallback
    from laptime.measure.trainers.transformers import TrainerCallback

_HOMES = {
    "Run": "laptime.api",
    "largest_batch": "laptime.api",
    "load": "laptime.api",
    "LightningCallback": "laptime.measure.trainers.lightning",
    "TrainerCallback": "laptime.measure.trainers.transformers",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `import laptime` and `laptime --help` must not wait for torch.
    if name in _HOMES:
        import_module("laptime.api")  # which also lets a run draw itself
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'laptime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Laptime(ModuleType):
    """`record`, `predict` and `workload` are functions, although folders bear the same names.

    Importing `laptime.record.…` makes Python set that folder as an attribute of this module; the properties
    keep the functions in their place.
    """

    @property
    def record(self) -> Any:
        return import_module("laptime.api").record

    @record.setter
    def record(self, _: ModuleType) -> None:
        pass

    @property
    def predict(self) -> Any:
        return import_module("laptime.api").predict

    @predict.setter
    def predict(self, _: ModuleType) -> None:
        pass

    @property
    def workload(self) -> Any:
        return import_module("laptime.api").workload

    @workload.setter
    def workload(self, _: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Laptime
