"""What a run is compared by: its quantities step by step, in the order the steps were taken.

Warm-up, kernel-traced and disturbed steps are left out where there are others. The ranks of a run take a step
together, so a step of several ranks is their mean, and its samples are their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, Account, Stage
from laptime.model.comparison import rate
from laptime.runs import Run
from laptime.runs.select import Columns, Mask, first_steps, warm

Samples = NDArray[np.float64]
LayerPhase = tuple[str, str]


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
        found = rate(self.samples, self.wall_s)
        return None if np.isnan(found) else found


def series(run: Run, stage: Stage, *, layers: bool = True) -> Series | None:
    """The stage's quantities; None where it has no steps."""
    names = ("stage", "attempt", "rank", "step", "device", "start_s", "wall_s", "samples", "instrumented")
    columns = Columns(run.stored("steps"), (*names, *(account.column for account in ACCOUNTS)))
    columns.only(columns.equals("stage", stage))
    if not columns.rows:
        return None
    lowest = columns["rank"] == columns["rank"].min()
    total = float(columns["wall_s"][lowest].sum())
    instrumented = float(columns["instrumented"].mean())
    devices = {
        int(rank): columns.words["device"][int(columns["device"][columns["rank"] == rank][0])]
        for rank in np.unique(columns["rank"])
    }
    first = first_steps(columns)
    past = warm(columns, first, 1)
    if past.any():
        columns.only(past)
    columns.only(_timed(run, columns))
    place, steps = _steps(columns)
    found = Series(
        wall_s=_means(columns["wall_s"], place, steps),
        samples=_sums(columns["samples"].astype(np.float64), place, steps),
        batch=_batch(columns["samples"].astype(np.float64)),
        total_s=total,
        instrumented=instrumented,
        devices=devices,
    )
    for account in ACCOUNTS:
        if not np.isnan(columns[account.column]).all():
            found.accounts[account] = _means(columns[account.column], place, steps)
    if layers:
        _add_layers(run, stage, first, found)
    return found


def _timed(run: Run, columns: Columns) -> Mask:
    """Steps whose time no trace spoiled; all of them where every one was traced."""
    plain = np.isnan(columns["idle_s"])
    calm = plain & ~np.isin(columns["step"], run.disturbed)
    return calm if calm.any() else plain if plain.any() else np.ones_like(plain)


def _steps(columns: Columns) -> tuple[NDArray[np.intp], int]:
    """The place of each row's (attempt, step) among all of them, in order."""
    keys = columns["attempt"].astype(np.int64) << 40 | columns["step"].astype(np.int64)
    found, place = np.unique(keys, return_inverse=True)
    return place, len(found)


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


def _add_layers(run: Run, stage: Stage, first: dict[int, int], found: Series) -> None:
    """Seconds by layer and phase, one number per rank and step: a layer called twice is one number."""
    names = ("stage", "attempt", "step", "rank", "layer", "phase", "seconds", "idle_s")
    columns = Columns(run.stored("layers"), names)
    columns.only(columns.equals("stage", stage))
    if not columns.rows:
        return
    past = warm(columns, first, 1)
    if past.any():
        columns.only(past)
    plain = np.isnan(columns["idle_s"])
    if plain.any():
        columns.only(plain)
    layers, phases = columns.words["layer"], columns.words["phase"]
    owner = columns["layer"].astype(np.int64) * len(phases) + columns["phase"]
    for one in np.unique(owner):
        here = owner == one
        key = (layers[int(one) // len(phases)], phases[int(one) % len(phases)])
        found.layers[key] = _cells(columns, here)
        for rank in found.devices:
            of_rank = here & (columns["rank"] == rank)
            if of_rank.any() and len(found.devices) > 1:
                found.ranks.setdefault(rank, {})[key] = _cells(columns, of_rank)


def _cells(columns: Columns, here: Mask) -> Samples:
    step = columns["attempt"][here].astype(np.int64) << 40 | columns["step"][here].astype(np.int64)
    keys = step << 16 | columns["rank"][here].astype(np.int64)
    _, place = np.unique(keys, return_inverse=True)
    return np.bincount(place, columns["seconds"][here]).astype(np.float64)
