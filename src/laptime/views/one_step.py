"""One step looked at closely: when each layer ran, the kernels inside it, and the memory it held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laptime.model import ACCOUNTS, Account, How, KernelTime, LayerTime, Phase, Stage
from laptime.runs import Run, schema
from laptime.runs.select import SelectedSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """A step of one rank, as it was stored; kernels only where it was traced."""

    step: int
    device: str
    start_s: float  # on the clock of its layers and kernels
    wall_s: float
    accounts: Mapping[Account, float]  # those that are known
    layers: tuple[LayerTime, ...]
    kernels: tuple[KernelTime, ...]


def typical_step(run: Run) -> OneStep | None:
    """The traced step nearest to the median of traced steps, else a step with layer times, else None."""
    for stage in Stage:
        steps = run.selected(stage)
        every = steps.every
        traced = ~np.isnan(every["idle_s"])
        marked = every["instrumented"] & steps.counted
        marked = marked if marked.any() else every["instrumented"]
        for mask in (traced, marked):
            if mask.any():
                mask = mask & (every["rank"] == every["rank"][mask].min())
                walls = np.where(mask, every["wall_s"], np.nan)
                place = int(np.nanargmin(np.abs(walls - np.nanmedian(walls))))
                return _read(run, steps, place)
    return None


def _read(run: Run, steps: SelectedSteps, place: int) -> OneStep | None:
    row = steps.every.row(place)
    key = {name: row[name] for name in ("stage", "attempt", "step", "rank")}
    layers = [
        LayerTime(
            **key | {"stage": steps.stage},
            layer=layer,
            phase=Phase(phase),
            **values | {"how": How(values["how"])},
        )
        for (layer, phase), values in run.tables.layers[steps.stage].of_step(place)
        if phase in tuple(Phase) and values["how"] in tuple(How)
    ]
    if not layers:
        return None
    kernels: list[KernelTime] = []
    for group in run.stored("kernels").row_groups(steps=range(row["step"], row["step"] + 1)):
        at = np.flatnonzero(group.column("step").to_numpy() == row["step"])
        traced = schema.kernels.values(group.take(at))
        kernels += [kernel for kernel in traced if all(getattr(kernel, name) == key[name] for name in key)]
    return OneStep(
        step=row["step"],
        device=row["device"],
        start_s=row["start_s"],
        wall_s=row["wall_s"],
        accounts={account: row[account.column] for account in ACCOUNTS if row[account.column] is not None},
        layers=tuple(sorted(layers, key=lambda row: row.start_s)),
        kernels=tuple(kernels),
    )
