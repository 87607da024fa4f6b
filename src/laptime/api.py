"""The public sentence: record a loop, load a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.measure.places import default_out
from laptime.store import Run, load

if TYPE_CHECKING:
    from laptime.measure.arguments import Networks, Optimizers
    from laptime.measure.clocks import Clock
    from laptime.measure.division import Granularity
    from laptime.measure.recorder import Recorder

__all__ = ["Run", "default_out", "load", "record"]


def record(
    network: Networks,
    optimizer: Optimizers = None,
    *,
    out: str | Path | None = None,
    every_step: bool = False,
    budget: float = 0.02,
    layers: Granularity = "layer",
    kernels: Iterable[int] = (),
    config: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Recorder:
    """Record a training loop: `with laptime.record(model, optimizer) as recording: …`.

    network     a module, or {name: module} when a step uses several
    optimizer   an optimizer or a list; without it, updates are host time
    out         the run directory; a new one under `runs/` if not given
    every_step  layer times on every step; otherwise on a random share that keeps within `budget`
    budget      the share of step time that layer marks may cost
    layers      "layer", "module", a depth, or {layer name: module path or paths}
    kernels     step numbers to trace with torch.profiler
    """
    from laptime.measure.recorder import Recorder

    return Recorder(
        network,
        optimizer,
        out=out if out is not None else default_out(),
        every_step=every_step,
        budget=budget,
        layers=layers,
        kernels=kernels,
        config=config,
        clock=clock,
    )
