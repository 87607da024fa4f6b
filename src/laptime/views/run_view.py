"""A run as it is shown: one typed value that terminal, page, dashboard, notebook and `--json` take.

Seconds, bytes and shares everywhere. What is unknown is None, or NaN among statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from laptime.model import COMPUTE, Account, Stage, Statistics, summarize
from laptime.model.target import TargetTime
from laptime.runs import AccountSummaries, LayerSummaries, LayerSummary, Run
from laptime.runs.health import Losses, find_losses, lost_sentence, waiting_sentence, why
from laptime.runs.select import Columns, Samples
from laptime.views.format import plural
from laptime.views.ranks import RanksView, ranks_view
from laptime.views.sparkline import Course, course
from laptime.views.step_series import DeviceSeconds, Series, by_device, series

METRICS = ("loss", "top1", "topn")
NOUNS = {"train": "training", "validation": "validation"}
_FAR_APART = 1.2  # a mean and a median
_STATUS_NOTES = {
    "running": "the run is still being written: these are the steps up to its last flush",
    "interrupted": "the run was interrupted{why}: these are the steps that reached the disk",
    "failed": "the run failed{why}: these are the steps before that",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEpoch:
    """Logged values over the last epoch of the last attempt; None is one that is not finite."""

    epoch: int
    values: Mapping[str, float | None]  # of METRICS, those that were logged


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """Training or validation: its steps, where their time went, its layers and what it learned."""

    stage: Stage
    series: Series = field(compare=False)  # step by step
    noun: str  # `training`, `validation`, or nothing where it may be neither
    steps: int  # every one, warm-up too
    epochs: int
    updates: int  # of the parameters; 0 where the run does not tell
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

    run: Run
    name: str  # unlike the others', where several are shown
    layers: int  # of its network
    unit: str  # what time is charged to: layer, or operator where a trace names no layers
    parameters: int
    losses: Losses  # rows that never reached the disk, or wait for it
    warnings: tuple[str, ...]  # sentences on these, which every view puts first
    stages: Mapping[Stage, StageView]  # those that have steps
    ranks: RanksView | None  # of the main stage; None where it has one rank alone
    target: TargetTime | None  # of a training that had one
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
        return self.run.environment.get("device") or {}

    @property
    def source(self) -> str | None:
        """What the run was collected from, `kineto`, `tensorflow`, `log`, …; None where it was recorded."""
        return source(self.run.config)

    @property
    def network(self) -> str:
        """What the configuration calls the network; empty where it does not say."""
        config = self.run.config
        network = config.get("network")
        known = network.get("name") if isinstance(network, Mapping) else network or config.get("target")
        return str(known or "")

    def wall_s(self, stage: Stage) -> Samples:
        """Seconds of each step that counts."""
        part = self.stages.get(stage)
        return np.empty(0) if part is None else part.series.wall_s[~np.isnan(part.series.wall_s)]

    def result(self, stage: Stage, metric: str) -> float | None:
        """A metric over the last epoch; NaN where a value is not finite, None where none was logged."""
        part = self.stages.get(stage)
        values = part.results.values if part and part.results else {}
        value = values.get(metric)
        return math.nan if value is None and metric in values else value

    def layer_s(self, stage: Stage) -> dict[str, float]:
        """Mean seconds of each layer in a step, all phases together; none without layer times."""
        part = self.stages.get(stage)
        return {layer.layer: layer.total_s for layer in part.timed_layers} if part else {}

    def account_s(self, stage: Stage) -> dict[Account, float]:
        """Mean seconds of each account in a step; none of a run read from a log, which has only times."""
        part = self.stages.get(stage)
        accounts = part.series.accounts if part and part.accounted else {}
        return {account: max(0.0, float(np.nanmean(seconds))) for account, seconds in accounts.items()}


def run_view(run: Run, name: str = "") -> RunView:
    """All there is to say about a run; by default it is called by its path."""
    summary, network = run.summary, run.network
    lost, losses = _lost(run), find_losses(run)
    # A trace that names no layers has operators in their place.
    operators = bool(network) and all(layer.kind == "operator" for layer in network)
    stages = {stage: view for stage in Stage if (view := _stage(run, stage)) is not None}
    return RunView(
        run=run,
        name=name or str(run.path),
        layers=len(network),
        unit="operator" if operators else "layer",
        parameters=sum(layer.parameters for layer in network),
        losses=losses,
        warnings=tuple(_warnings(run, losses)),
        stages=stages,
        ranks=ranks_view(run, next(iter(stages))) if stages else None,
        target=TargetTime.of(summary),
        recorder=RecorderView(**{field.name: summary.get(field.name) for field in fields(RecorderView)}),
        kernels=summary.get("kernels") or {},
        lost=lost,
        notes=tuple(_notes(run, lost)),
    )


def _warnings(run: Run, losses: Losses) -> Iterator[str]:
    # The layer times of a step that is lost go with it: only where every step is there, they are told.
    if table := next((table for table, count in losses.lost.items() if count), None):
        yield lost_sentence(table, losses.lost[table], losses.taken[table], losses.reason) + "."
    if table := next((table for table, count in losses.waiting.items() if count), None):
        yield waiting_sentence(table, losses.waiting[table], losses.reason, losses.next_attempt) + "."
    if losses.failed_checkpoints:
        reason = why(losses.checkpoint_reason, over=run.status != "running")
        yield f"{plural(losses.failed_checkpoints, 'checkpoint')} could not be written: {reason}."


def _lost(run: Run) -> dict[str, str]:
    """Tables that have rows by the summary but none on disk, and what each held."""
    steps = run.summary.get("steps")
    counted = sum(steps.get(stage) or 0 for stage in Stage) if steps else 0
    told = {"steps": f"{counted} steps were"} if counted else {}
    if run.summary.get("named_share") is not None:  # which is of layer rows alone
        told["layers"] = "layer times were"
    return {table: what for table, what in told.items() if not run.stored(table).check()}


def _notes(run: Run, lost: Mapping[str, str]) -> Iterator[str]:
    recorded = list(run.summary.get("notes") or ())
    if run.status in _STATUS_NOTES:
        reason = next((note for note in recorded if note.startswith("the loop ended by ")), None)
        if reason is not None and run.status != "running":
            recorded.remove(reason)
        yield _STATUS_NOTES[run.status].format(why="" if reason is None else f" ({reason})")
    for table, what in lost.items():
        yield f"{what} recorded, but the run's `{table}` folder is gone"
    if count := run.tables.steps.repeated_steps:  # past the checkpoint that a resume went on from
        were = f"{plural(count, 'step')} {'was' if count == 1 else 'were'}"
        yield f"{were} taken again after a resume, which went on from an earlier checkpoint; the last counts"
    yield from recorded


def _stage(run: Run, stage: Stage) -> StageView | None:
    """One stage; None where it has no steps."""
    steps = run.selected(stage)
    timed = series(run, stage)
    if timed is None:
        return None
    accounts = run.accounts(stage)
    collected = source(run.config)
    # A trace without a backward pass may be of neither.
    untold = collected in ("kineto", "tensorflow") and not np.nansum(accounts[Account.BACKWARD].total_s)
    return StageView(
        stage=stage,
        series=timed,
        noun="" if stage is Stage.TRAIN and untold else NOUNS[stage.value],
        steps=int(np.count_nonzero(steps.of_first_rank)),
        epochs=len(np.unique(steps.every["epoch"])),
        updates=0 if collected or stage is not Stage.TRAIN else int(steps.every["optimizer_step"].max()),
        ranks=len(timed.devices),
        wall_s=summarize(timed.wall_s),
        samples_per_s=timed.samples_per_s,
        results=last_epoch(steps.every),
        course=course(steps, timed.wall_s),
        accounts=accounts,
        accounted=collected != "log",
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


def last_epoch(every: Columns) -> LastEpoch | None:
    """Logged values over the last epoch of the last attempt, each batch weighted by its samples.

    None where one of them is no finite number: a mean that passes over it would look like learning.
    """
    last = every.where(every["attempt"] == every["attempt"].max())
    last = last.where(last["epoch"] == last["epoch"].max())
    samples = np.nan_to_num(last["samples"].astype(np.float64), nan=1.0)
    logged: dict[str, float | None] = {}
    for name in METRICS:
        values, known = last[name], last.known(name)
        if (known & ~np.isfinite(values)).any():  # null is unknown; NaN and infinity are not
            logged[name] = None
        elif known.any() and samples[known].sum():
            logged[name] = float(np.average(values[known], weights=samples[known]))
    return LastEpoch(epoch=int(last["epoch"][0]), values=logged) if logged else None
