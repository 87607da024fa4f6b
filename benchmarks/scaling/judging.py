"""How far predictions are from the published rows, beside what needs no fit and what the rows allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling import strong
from benchmarks.scaling.facts import FILES
from benchmarks.scaling.fitting import START, Fit
from benchmarks.scaling.rows import Row, rows
from laptime.estimate.data_parallel import scale

Errors = NDArray[np.float64]
ACCUMULATED = 32  # batches to an update from which on communication is below 1 %
ALIKE = 0.1  # by which steps of "the same configuration" may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows, and their errors when the constants come from other GPUs and frameworks."""

    rows: tuple[Row, ...]
    left: Counter[str]
    fit: Fit
    held: Errors
    strong: tuple[tuple[str, float], ...]

    @property
    def errors(self) -> list[tuple[str, float]]:
        """(what, error of the throughput) of every row, HKBU's among them."""
        labels = [one.label for one in self.rows]
        return [*zip(labels, self.held.tolist(), strict=True), *self.strong]


def judge(folder: Path) -> Judged:
    """Read the rows and predict each of them from others."""
    left: Counter[str] = Counter()
    found = tuple(row for name in FILES for row in rows(folder, name, left))
    fit = Fit(found)
    constants = fit.constants(np.ones(len(found), bool))
    held = fit.held_out(lambda one: one.group)
    return Judged(rows=found, left=left, fit=fit, held=held, strong=tuple(strong.errors(folder, constants)))


def baselines(found: Sequence[Row]) -> dict[str, Errors]:
    """What needs no fit: no communication, and all of it after the backward pass at nominal bandwidth."""
    after = [
        replace(one.habits(START), overlaps=False, spread=0.0, sync_s=0.0, board=0.0, host_s=0.0)
        for one in found
    ]
    rings = [
        scale(one.alone, one.device, one.gpus, habits, accumulate=one.accumulate).efficiency
        for one, habits in zip(found, after, strict=True)
    ]
    measured = np.array([one.slowdown for one in found])
    return {
        "linear speed-up": measured - 1,
        "all-reduce after backward": np.array(rings) * measured - 1,
    }


def from_two(one: Row) -> float:
    """a + b/n through one and two GPUs."""
    assert one.twice is not None
    predicted = 1 + 2 * (one.twice - 1) * (one.gpus - 1) / one.gpus
    return one.slowdown / predicted - 1


def network_fold(found: Sequence[Row]) -> Callable[[Row], int]:
    """Fifths of the networks, in alphabetical order one by one."""
    names = sorted({one.network for one in found})
    return lambda one: names.index(one.network) % 5


def parts(found: Sequence[Row]) -> dict[str, list[bool]]:
    """Which rows belong to what, for the table."""
    return {
        "TensorFlow 2017": [one.file == FILES[0] for one in found],
        "NVIDIA": [one.file == FILES[1] for one in found],
        "… PyTorch": ["/PyTorch/" in one.group for one in found],
        "… TensorFlow 1 and 2": [one.group.startswith("nvidia/TensorFlow") for one in found],
        "fp32 and TF32": [not one.mixed for one in found],
        "mixed precision": [one.mixed for one in found],
        "images decoded by the host": [bool(one.decoded) for one in found],
        "samples of any length": [one.ragged for one in found],
        f"{ACCUMULATED} and more batches to an update": [one.accumulate >= ACCUMULATED for one in found],
    }


def floors(found: Sequence[Row]) -> dict[str, Errors]:
    """By how much the rows disagree among themselves, which no model of these facts gets below.

    Rows with many batches to an update have next to no communication: what they lose scatters around its
    median. And some configurations were measured on two nodes with the same GPUs.
    """
    accumulated = np.array([one.slowdown for one in found if one.accumulate >= ACCUMULATED])
    alike = defaultdict(list)
    for one in found:
        key = one.network, one.group, one.gpus, one.mixed, one.accumulate, round(one.decoded, 3)
        alike[key].append(one)
    pairs = [
        one.slowdown / other.slowdown - 1
        for here in alike.values()
        for one, other in combinations(here, 2)
        if abs(np.log(one.alone.step_s / other.alone.step_s)) < ALIKE
    ]
    return {
        "no communication to speak of, around their median": accumulated / np.median(accumulated) - 1,
        "one configuration on two nodes": np.array(pairs),
    }
