"""One step looked at closely: when each layer ran, the kernels inside it, and the memory it held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from laptime.model import Stage
from laptime.runs import Run
from laptime.runs.select import Columns

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """Rows as they were stored, of one rank; kernels only where the step was traced."""

    step: Row
    layers: list[Row]
    kernels: list[Row]

    @property
    def start_s(self) -> float:
        """On the clock of its rows."""
        return float(self.step["start_s"])


def typical_step(run: Run) -> OneStep | None:
    """The traced step nearest to their median; else one with layer times; None where there is neither."""
    columns = Columns(
        run.stored("steps"), ("stage", "attempt", "rank", "step", "wall_s", "idle_s", "instrumented")
    )
    for stage in Stage:
        here = columns.equals("stage", stage)
        traced = here & ~np.isnan(columns["idle_s"])
        marked = here & columns["instrumented"]
        for mask in (traced, marked):
            if mask.any():
                mask = mask & (columns["rank"] == columns["rank"][mask].min())
                walls = np.where(mask, columns["wall_s"], np.nan)
                place = int(np.nanargmin(np.abs(walls - np.nanmedian(walls))))
                key = {name: int(columns[name][place]) for name in ("attempt", "rank", "step")}
                return _read(run, stage, key)
    return None


def _read(run: Run, stage: Stage, key: dict[str, int]) -> OneStep | None:
    number = key["step"]

    def rows(table: str) -> list[Row]:
        found: list[Row] = []
        for group in run.stored(table).row_groups(steps=range(number, number + 1)):
            at = np.flatnonzero(group.column("step").to_numpy() == number)
            found += group.take(at).to_pylist()
        return [row for row in found if row["stage"] == stage and all(row[name] == key[name] for name in key)]

    steps, layers = rows("steps"), rows("layers")
    if not steps or not layers:
        return None
    return OneStep(step=steps[0], layers=layers, kernels=rows("kernels"))
