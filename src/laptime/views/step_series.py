"""What a run is compared by: its quantities step by step, in the order the steps were taken.

The ranks of a run take a step together, so a step of several ranks is their mean, and its samples are their
sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laptime.model import ACCOUNTS, Account, Phase, Stage
from laptime.model.comparison import rate
from laptime.runs import Run
from laptime.runs.select import LayerPhase, Samples, asynchronous, step_keys


@dataclass(frozen=True, kw_only=True)
class Series:
    """One stage of one run. Layer times are read when they are asked for."""

    run: Run
    stage: Stage
    wall_s: Samples
    samples: Samples  # of all ranks; NaN where a step does not say
    batch: float  # samples of one rank in a typical step; NaN where none says
    accounts: Mapping[Account, Samples]
    devices: Mapping[int, str]  # by rank
    total_s: float  # every step, warm-up too: what the training took
    paces: float | None  # samples a second of ranks that do not wait for each other, added up

    @property
    def steps(self) -> int:
        return int(self.wall_s.size)

    @cached_property
    def layers(self) -> dict[LayerPhase, Samples]:
        """One number per rank and step: a layer called twice is one number."""
        return {key: cells.seconds for key, cells in self.run.selected_layers(self.stage).cells()}

    @cached_property
    def layers_by_rank(self) -> dict[int, dict[LayerPhase, Samples]]:
        """The same of each rank."""
        selected = self.run.selected_layers(self.stage)
        ranks = selected.steps.every["rank"]
        times: dict[int, dict[LayerPhase, Samples]] = {rank: {} for rank in self.devices}
        for key, cells in selected.cells():
            for rank, of_rank in times.items():
                seconds = cells.seconds[ranks[cells.step] == rank]
                if seconds.size:
                    of_rank[key] = seconds
        return times

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks over the wall time of their steps; None where no step says its samples."""
        per_second = rate(self.samples, self.wall_s) if self.paces is None else self.paces
        return None if np.isnan(per_second) else per_second

    @property
    def layer_steps(self) -> int:
        """Steps that have layer times."""
        return max(map(len, self.layers.values()), default=0) // max(1, len(self.devices))

    def layer_s(self, layer: str, phase: Phase | None = None) -> Samples | None:
        """Seconds of a layer by step, in one phase or in all together; None where it has none."""
        if phase is not None:
            return self.layers.get((layer, phase))
        parts = [values for (name, _), values in self.layers.items() if name == layer]
        # A phase may be missing from some steps (an update of every fourth): its median is added instead.
        longest = max(map(len, parts), default=0)
        whole = [part if len(part) == longest else np.full(longest, np.median(part)) for part in parts]
        return np.asarray(sum(whole)) if parts else None


def series(run: Run, stage: Stage) -> Series | None:
    """The stage's quantities; None where it has no steps."""
    steps = run.selected(stage)
    if not steps.every.rows:
        return None
    unique, place = np.unique(step_keys(steps), return_inverse=True)

    def by_step(values: Samples, *, mean: bool = True) -> Samples:
        """The mean or the sum of each step's ranks, over those that are known."""
        known = ~np.isnan(values)
        counts = np.bincount(place[known], minlength=len(unique))
        sums = np.bincount(place[known], values[known], minlength=len(unique))
        return np.where(counts > 0, sums / np.maximum(counts, 1) if mean else sums, np.nan)

    samples = steps["samples"].astype(np.float64)
    known_samples = samples[~np.isnan(samples)]
    accounts = {account: steps[account.column] for account in ACCOUNTS}
    return Series(
        run=run,
        stage=stage,
        wall_s=by_step(steps["wall_s"]),
        samples=by_step(samples, mean=False),
        batch=float(np.median(known_samples)) if known_samples.size else np.nan,
        accounts={
            account: by_step(seconds) for account, seconds in accounts.items() if not np.isnan(seconds).all()
        },
        devices=steps.devices,
        total_s=float(steps.every["wall_s"][steps.of_first_rank].sum()),
        paces=_paces(steps["rank"], samples, steps["wall_s"]) if asynchronous(steps) else None,
    )


def _paces(ranks: Samples, samples: Samples, wall_s: Samples) -> float:
    return sum(rate(samples[ranks == rank], wall_s[ranks == rank]) for rank in np.unique(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeconds:
    """Median seconds of a layer in a phase on each device; None where it never ran there."""

    layer: str
    phase: str
    seconds: Mapping[str, float | None]


def by_device(side: Sequence[Series]) -> list[DeviceSeconds]:
    """Each layer and phase on each device, over the runs of one side."""
    keys = dict.fromkeys(key for read in side for key in read.layers)
    devices = {rank: device for read in side for rank, device in read.devices.items()}
    rows = []
    for layer, phase in keys:
        seconds = {}
        for rank, device in sorted(devices.items()):
            times = [
                read.layers_by_rank.get(rank, {}) if len(read.devices) > 1 else read.layers for read in side
            ]
            medians = [float(np.median(each[layer, phase])) for each in times if (layer, phase) in each]
            seconds[f"{device} rank {rank}"] = float(np.median(medians)) if medians else None
        rows.append(DeviceSeconds(layer=layer, phase=phase, seconds=seconds))
    return rows
