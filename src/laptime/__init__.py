"""laptime tells where every millisecond of a training step goes, layer by layer."""

from __future__ import annotations

from importlib import import_module
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
    "simulate",
    "workload",
]

if TYPE_CHECKING:
    from laptime.api import Run, largest_batch, load, predict, record, simulate, workload
    from laptime.bridges.lightning import LightningCallback
    from laptime.bridges.transformers import TrainerCallback


def __getattr__(name: str) -> Any:
    # Imported on first use: `import laptime` and `laptime --help` must not wait for torch.
    if name in __all__:
        from laptime.bridges import TRAINERS

        api = import_module("laptime.api")  # which also lets a run draw itself
        bridges = {trainer.callback: trainer.bridge for trainer in TRAINERS}
        return getattr(import_module(bridges[name]) if name in bridges else api, name)
    raise AttributeError(f"module 'laptime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
