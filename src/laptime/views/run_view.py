"""A run as it is shown: one typed value that terminal, page, dashboard, notebook and `--json` take.

Seconds, bytes and shares everywhere. What is unknown is None, or NaN among statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from laptime.model import COMPUTE, Account, Stage, Statistics, summarize
from laptime.runs import AccountSummaries, LayerSummaries, LayerSummary, Run
from laptime.runs.select import Columns
from laptime.runs.validate import formed
from laptime.views.format import mebibytes, plural
from laptime.views.health import HealthView, health
from laptime.views.layers_by_device import DeviceSeconds, by_device
from laptime.views.sparkline import Course, course
from laptime.views.step_series import series

_FAR_APART = 1.2  # a mean and a median
METRICS = ("loss", "top1", "topn")
NOUNS = {"train": "training", "validation": "validation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEpoch:
    """Logged values over the last epoch of the last attempt; None is one that is not finite."""

    epoch: int
    values: Mapping[str, float | None]  # of METRICS, those that were logged


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """Training or validation: its steps, where their time went, its layers and what it learned."""

    stage: Stage
    noun: str  # `training`, `validation`, or nothing where it may be neither
    steps: int  # every one, warm-up too
    ranks: int
    wall_s: Statistics  # of a step that counts, however many ranks took it together: its median is *the* step
    samples_per_s: float | None
    results: LastEpoch | None
    course: Course
    accounts: AccountSummaries
    accounted: bool  # a log has only times
    layers: LayerSummaries
    layers_by_device: tuple[DeviceSeconds, ...]

    @property
    def explained_share(self) -> float:
        """Of the wall time."""
        return 1.0 - self.accounts[Account.UNEXPLAINED].share

    @property
    def compute_s(self) -> float:
        """Forward, loss, backward and update in the mean step."""
        return sum(self.accounts[account].seconds.mean for account in COMPUTE)

    @property
    def layers_first(self) -> bool:
        """Whether no step but the first, which warms up, had layer marks."""
        return self.accounts.skipped > self.layers.skipped and bool(self.layers.steps)

    @property
    def timed_layers(self) -> list[LayerSummary]:
        """The layers that took time."""
        return [layer for layer in self.layers if layer.total_s]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderView:
    """What recording cost, and how that is known, as the run says it."""

    overhead: Mapping[str, Any] | None
    instrument_share: float | None
    instrumented_steps: int | None
    budget: Mapping[str, Any] | None
    host_clock_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """All there is to say about a run."""

    id: str
    path: Path
    status: str
    created: datetime
    layers: int  # of its network
    unit: str  # what time is charged to: layer, or operator where a trace names no layers
    parameters: int
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    health: HealthView
    stages: Mapping[Stage, StageView]  # those that have steps
    recorder: RecorderView
    kernels: Mapping[str, Any]  # what a kernel trace said, as the run has it
    lost: Mapping[str, str]  # tables whose rows are gone, and what was in each
    notes: tuple[str, ...]

    @property
    def train(self) -> StageView | None:
        return self.stages.get(Stage.TRAIN)

    @property
    def validation(self) -> StageView | None:
        return self.stages.get(Stage.VALIDATION)

    @property
    def main(self) -> StageView | None:
        """The main stage: training where it has steps, else validation."""
        return self.train or self.validation

    @property
    def device(self) -> Mapping[str, Any]:
        """What the environment says of the device."""
        return self.environment.get("device") or {}

    @property
    def source(self) -> str | None:
        """What the run was collected from, `kineto`, `tensorflow`, `log`, …; None where it was recorded."""
        return source(self.config)


def run_view(run: Run) -> RunView:
    """All there is to say about a run."""
    lost = _lost(run)
    gone = [f"{what} recorded, but the run's `{table}` folder is gone" for table, what in lost.items()]
    told = run.summary.get("notes") or []
    return RunView(
        id=run.id,
        path=run.path,
        status=run.status,
        created=run.created,
        layers=len(run.network),
        unit=_unit(run),
        parameters=sum(layer.parameters for layer in run.network),
        config=run.config,
        environment=run.environment,
        health=health(run),
        stages={stage: view for stage in Stage if (view := _stage(run, stage)) is not None},
        recorder=RecorderView(
            overhead=run.summary.get("overhead"),
            instrument_share=run.summary.get("instrument_share"),
            instrumented_steps=run.summary.get("instrumented_steps"),
            budget=run.summary.get("budget"),
            host_clock_ratio=run.summary.get("host_clock_ratio"),
        ),
        kernels=run.summary.get("kernels") or {},
        lost=lost,
        notes=(*_status_notes(run), *gone, *_repeated(run), *_exchanged(run), *told),
    )


def _status_notes(run: Run) -> list[str]:
    if run.status == "running":
        return ["the run is still being written: these are the steps up to its last flush"]
    if run.status == "interrupted":
        return ["the run was interrupted: these are the steps that reached the disk"]
    return ["the run failed: these are the steps before that"] if run.status == "failed" else []


def _unit(run: Run) -> str:
    """What time is charged to: a trace that names no layers has operators in their place."""
    return "operator" if run.network and all(layer.kind == "operator" for layer in run.network) else "layer"


def _lost(run: Run) -> dict[str, str]:
    """Tables that have rows by the summary but none on disk, and what each held."""
    steps = run.summary.get("steps")
    counted = sum(steps.get(stage) or 0 for stage in Stage) if steps else 0
    told = {"steps": f"{counted} steps were"} if counted else {}
    if run.summary.get("named_share") is not None:  # which is of layer rows alone
        told["layers"] = "layer times were"
    return {table: what for table, what in told.items() if not run.stored(table).check()}


def _repeated(run: Run) -> list[str]:
    """Steps past the checkpoint that a resume went on from: they were taken again."""
    count = run.tables.steps.repeated_steps
    if not count:
        return []
    were = f"{plural(count, 'step')} {'was' if count == 1 else 'were'}"
    return [f"{were} taken again after a resume, which went on from an earlier checkpoint; the last counts"]


def _exchanged(run: Run) -> list[str]:
    """Gradient exchange per rank: its size, and its exposed and overlapped time."""
    communication = run.summary.get("communication")
    if not isinstance(communication, Mapping) or not communication:
        return []
    each = [
        rank_totals
        for rank_totals in communication.values()
        if isinstance(rank_totals, Mapping) and rank_totals.get("seconds") is not None
    ]
    if not each:
        return []
    keys = ("bytes", "exposed_s", "overlapped_s")
    if not all(formed(rank_totals.get(key), float) is not None for rank_totals in each for key in keys):
        return []
    size, exposed, overlapped = (sum(rank_totals[key] for rank_totals in each) / len(each) for key in keys)
    times = f"{exposed:.3g} s exposed, {overlapped:.3g} s overlapped with the backward pass"
    return [f"each rank exchanged {mebibytes(size)} MiB of gradients: {times}"]


def _stage(run: Run, stage: Stage) -> StageView | None:
    """One stage; None where it has no steps."""
    steps = run.selected(stage)
    timed = series(run, stage, layers=len(steps.devices) > 1)
    if timed is None:
        return None
    accounts = run.accounts(stage)
    return StageView(
        stage=stage,
        noun=_noun(run, stage, accounts),
        steps=int(np.count_nonzero(steps.of_first_rank)),
        ranks=len(timed.devices),
        wall_s=summarize(timed.wall_s),
        samples_per_s=timed.samples_per_s,
        results=last_epoch(steps.every),
        course=course(steps, timed.wall_s),
        accounts=accounts,
        accounted=source(run.config) != "log",
        layers=run.layers(stage),
        layers_by_device=tuple(by_device([timed])) if len(timed.devices) > 1 else (),
    )


def unlike_mean(wall: Statistics) -> bool:
    """Whether the mean step, which samples a second come from, is far from the median one."""
    return bool(wall.median) and not 1 / _FAR_APART <= wall.mean / wall.median <= _FAR_APART


def source(config: Mapping[str, Any]) -> str | None:
    """What a run was collected from, `kineto`, `tensorflow`, `log` or `csv`; None where it was recorded."""
    collected = config.get("collected")
    return collected.get("source") if isinstance(collected, Mapping) else None


def _noun(run: Run, stage: Stage, accounts: AccountSummaries) -> str:
    """`training` or `validation`; empty for a trace without a backward pass, which may be of neither."""
    forward_only = not np.nansum(accounts[Account.BACKWARD].total_s)
    if stage is Stage.TRAIN and forward_only and source(run.config) in ("kineto", "tensorflow"):
        return ""
    return NOUNS[stage.value]


def last_epoch(every: Columns) -> LastEpoch | None:
    """Logged values over the last epoch of the last attempt, each batch weighted by its samples.

    None where one of them is no finite number: a mean that passes over it would look like learning.
    """
    last = _latest(_latest(every, "attempt"), "epoch")
    samples = np.nan_to_num(last["samples"].astype(np.float64), nan=1.0)
    logged: dict[str, float | None] = {}
    for name in METRICS:
        values, known = last[name], last.known(name)
        if (known & ~np.isfinite(values)).any():  # null is unknown; NaN and infinity are not
            logged[name] = None
        elif known.any() and samples[known].sum():
            logged[name] = float(np.average(values[known], weights=samples[known]))
    return LastEpoch(epoch=int(last["epoch"][0]), values=logged) if logged else None


def _latest(rows: Columns, column: str) -> Columns:
    return rows.where(rows[column] == rows[column].max())
