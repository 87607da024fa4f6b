"""What a run is compared by: its quantities step by step, in the order the steps were taken.

The ranks of a run take a step together, so a step of several ranks is their mean, and its samples are their
sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, Account, Stage
from laptime.model.comparison import rate
from laptime.runs import Run
from laptime.runs.select import LayerPhase, Samples, SelectedLayers, SelectedSteps


@dataclass(slots=True, kw_only=True)
class Series:
    """One stage of one run."""

    wall_s: Samples
    samples: Samples  # of all ranks; NaN where a step does not say
    batch: float  # samples of one rank in a typical step; NaN where none says
    accounts: dict[Account, Samples] = field(default_factory=dict)
    layers: dict[LayerPhase, Samples] = field(default_factory=dict)  # rank and step together
    ranks: dict[int, dict[LayerPhase, Samples]] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    total_s: float = 0.0  # every step, warm-up too: what the training took
    instrumented: float = 0.0  # the share of steps with layer marks

    @property
    def steps(self) -> int:
        return int(self.wall_s.size)

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks over the wall time of their steps; None where no step says its samples."""
        per_second = rate(self.samples, self.wall_s)
        return None if np.isnan(per_second) else per_second


def series(run: Run, stage: Stage, *, layers: bool = True) -> Series | None:
    """The stage's quantities; None where it has no steps."""
    steps = run.selected(stage)
    every = steps.every
    if not every.rows:
        return None
    place, count = _steps(steps)
    samples = steps["samples"].astype(np.float64)
    accounts = {account: steps[account.column] for account in ACCOUNTS}
    quantities = Series(
        wall_s=_means(steps["wall_s"], place, count),
        samples=_sums(samples, place, count),
        batch=_batch(samples),
        total_s=float(every["wall_s"][steps.of_first_rank].sum()),
        instrumented=float(every["instrumented"].mean()),
        devices=steps.devices,
        accounts={
            account: _means(seconds, place, count)
            for account, seconds in accounts.items()
            if not np.isnan(seconds).all()
        },
    )
    if layers:
        _add_layers(run.selected_layers(stage), quantities)
    return quantities


def _steps(steps: SelectedSteps) -> tuple[NDArray[np.intp], int]:
    """The place of each row's (attempt, step) among all of them, in order."""
    keys = steps["attempt"].astype(np.int64) << 40 | steps["step"].astype(np.int64)
    unique, place = np.unique(keys, return_inverse=True)
    return place, len(unique)


def _means(values: Samples, place: NDArray[np.intp], steps: int) -> Samples:
    known = ~np.isnan(values)
    sums = np.bincount(place[known], values[known], minlength=steps)
    counts = np.bincount(place[known], minlength=steps)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _sums(values: Samples, place: NDArray[np.intp], steps: int) -> Samples:
    known = ~np.isnan(values)
    counts = np.bincount(place[known], minlength=steps)
    return np.where(counts > 0, np.bincount(place[known], values[known], minlength=steps), np.nan)


def _batch(samples: Samples) -> float:
    known = samples[~np.isnan(samples)]
    return float(np.median(known)) if known.size else np.nan


def _add_layers(layers: SelectedLayers, found: Series) -> None:
    """Seconds by layer and phase, one number per rank and step: a layer called twice is one number."""
    ranks = layers.steps.every["rank"]
    for key, cells in layers.cells():
        found.layers[key] = cells.seconds
        for rank in found.devices if len(found.devices) > 1 else ():
            of_rank = cells.seconds[ranks[cells.step] == rank]
            if of_rank.size:
                found.ranks.setdefault(rank, {})[key] = of_rank
