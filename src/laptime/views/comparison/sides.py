"""B against the baseline A, each a group of runs: what `laptime compare` and pages of two sides show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from laptime.files.write import plain
from laptime.model import ACCOUNTS, Account, Phase, Stage
from laptime.model.comparison import Comparison, Verdict, compare_rates, compare_runs
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.model.prediction import PredictedTime
from laptime.runs import Run
from laptime.runs.select import Samples
from laptime.views.comparison.groups import are_repetitions
from laptime.views.comparison.notes import notes
from laptime.views.layers_by_device import DeviceSeconds, by_device
from laptime.views.run_view import METRICS, NOUNS, RunView, run_view
from laptime.views.step_series import Series, series

_SAME_BATCH = 0.005  # batches that differ by less are the same: a last one may be smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run, what is shown of it, and the steps that count, of each stage that has any."""

    name: str  # unlike the others'
    recorded: Run
    view: RunView
    series: Mapping[Stage, Series]

    @classmethod
    def of(cls, run: Run, name: str = "") -> ComparedRun:
        """Read what is compared."""
        stages = {stage: series(run, stage) for stage in Stage}
        known = {stage: read for stage, read in stages.items() if read is not None}
        return cls(name=name or str(run.path), recorded=run, view=run_view(run), series=known)

    def wall_s(self, stage: Stage) -> Samples:
        """Seconds of each step that counts."""
        read = self.series.get(stage)
        return np.empty(0) if read is None else read.wall_s[~np.isnan(read.wall_s)]

    def result(self, stage: Stage, metric: str) -> float | None:
        """A metric over the last epoch; NaN where a value is not finite, None where none was logged."""
        part = self.view.stages.get(stage)
        values = part.results.values if part and part.results else {}
        value = values.get(metric)
        return math.nan if value is None and metric in values else value

    def layer_s(self, stage: Stage) -> dict[str, float]:
        """Mean seconds of each layer in a step, all phases together; none without layer times."""
        part = self.view.stages.get(stage)
        return {layer.layer: layer.total_s for layer in part.timed_layers} if part else {}

    def account_s(self, stage: Stage) -> dict[Account, float]:
        """Mean seconds of each account in a step; none of a run read from a log, which has only times."""
        accounts = self.series[stage].accounts if stage in self.series and self.view.source != "log" else {}
        return {account: max(0.0, float(np.nanmean(seconds))) for account, seconds in accounts.items()}


def common_noun(runs: Sequence[ComparedRun], stage: Stage) -> str:
    """What a step of the stage is called."""
    nouns = {run.view.stages[stage].noun for run in runs if stage in run.view.stages}
    return nouns.pop() if len(nouns) == 1 else NOUNS[stage.value]


def common_unit(runs: Sequence[ComparedRun]) -> str:
    """What time is charged to: layer or operator."""
    units = {run.view.unit for run in runs}
    return units.pop() if len(units) == 1 else "layer"


T = TypeVar("T", Comparison, PredictedTime)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison(Generic[T]):
    """A layer on two sides: each phase that has a time, and all of them together."""

    layer: str
    phases: Mapping[Phase, T]
    total: T


def largest_layers(layers: Sequence[LayerComparison[T]], most: int | None) -> list[LayerComparison[T]]:
    """The `most` layers that take longest, in their order; all where `most` is None or a row less."""
    if most is None or len(layers) <= most + 1:
        return list(layers)
    places = sorted(range(len(layers)), key=lambda place: -layers[place].total.largest)[:most]
    return [layers[place] for place in sorted(places)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageComparison:
    """Training or validation steps of both sides."""

    stage: Stage
    noun: str
    unit: str  # layer or operator
    per_sample: bool  # accounts and layers are divided by the batch, since the sides' batches differ
    step: Comparison
    sample: Comparison | None
    rate: Comparison | None  # samples a second
    total_s: tuple[list[float], list[float]]
    accounts: Mapping[Account, Comparison]
    layers: tuple[LayerComparison[Comparison], ...]
    only: tuple[list[str], list[str]]  # layers of A alone, and of B alone
    by_device: tuple[list[DeviceSeconds], list[DeviceSeconds]] | None

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        layers = [
            {"layer": row.layer, **{phase.value: _document(row.phases.get(phase)) for phase in Phase}}
            | {"total": _document(row.total)}
            for row in self.layers
        ]
        return {
            "noun": self.noun,
            "unit": self.unit,
            "per_sample": self.per_sample,
            "step_s": _document(self.step),
            "sample_s": _document(self.sample),
            "samples_per_s": _document(self.rate),
            "total_s": self.total_s,
            "accounts": [{"account": name} | _row(row) for name, row in self.accounts.items()],
            "layers": layers,
            "only": dict(zip("ab", self.only, strict=True)),
            "ranks": self.by_device and dict(zip("ab", self.by_device, strict=True)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultComparison:
    """Loss or accuracy over the last epoch, a number for each run that has it."""

    stage: Stage
    metric: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    told_from_noise: bool | None  # None where a side has but one run

    @property
    def difference(self) -> float | None:
        """B - A of the means; None where a side has none."""
        return float(np.mean(self.b) - np.mean(self.a)) if self.a and self.b else None

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        told = {"difference": self.difference, "told_from_noise": self.told_from_noise}
        return {"metric": self.metric, "a": self.a, "b": self.b, **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingCost:
    """What profiling adds to a step, where one side was profiled: in `times` A is without and B with."""

    profiled: str  # the side, a or b
    times: Comparison

    @property
    def slowdown(self) -> float:
        """0.2 where a step takes a fifth longer; NaN where that is not known."""
        return self.times.ratio - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView:
    """B against A."""

    a: tuple[ComparedRun, ...]
    b: tuple[ComparedRun, ...]
    stages: Mapping[Stage, StageComparison]
    profiling: ProfilingCost | None
    results: tuple[ResultComparison, ...]
    notes: tuple[str, ...]

    @property
    def batches(self) -> tuple[float | None, float | None]:
        """Samples of one rank in a typical step of each side."""
        stages = [Stage.TRAIN, Stage.VALIDATION]
        reads = [
            next(filter(None, (_series(side, stage) for stage in stages)), []) for side in (self.a, self.b)
        ]
        return _batch(reads[0]), _batch(reads[1])

    def document(self) -> dict[str, Any]:
        """As `--json` has it: strict JSON."""
        document: dict[str, Any] = {
            name: {
                "runs": [
                    {"id": run.recorded.id, "path": str(run.recorded.path), "status": run.recorded.status}
                    for run in side
                ],
                "steps": {stage.value: [read.steps for read in _series(side, stage)] for stage in Stage},
                "batch": batch,
            }
            for name, side, batch in zip("ab", (self.a, self.b), self.batches, strict=True)
        }
        for stage in Stage:
            document[stage.value] = self.stages[stage].document() if stage in self.stages else None
        document["profiling"] = self.profiling and {
            "with": self.profiling.profiled,
            "without": "b" if self.profiling.profiled == "a" else "a",
            "slowdown": self.profiling.slowdown,
            **_row(self.profiling.times),
        }
        document["results"] = {
            stage.value: [row.document() for row in self.results if row.stage is stage] for stage in Stage
        }
        return dict(plain(document | {"notes": list(self.notes)}))


def _row(comparison: Comparison) -> dict[str, Any]:
    row = asdict(comparison) | {"difference": comparison.difference}
    return row | {"unit": row.pop("over")}


def _document(comparison: Comparison | None) -> dict[str, Any] | None:
    return None if comparison is None else _row(comparison)


def compare(a: Sequence[Run], b: Sequence[Run], *, by_rank: bool = False) -> ComparisonView:
    """B against the baseline A: step, throughput, accounts, layers, results and notes."""
    return compare_sides(
        [ComparedRun.of(run) for run in a], [ComparedRun.of(run) for run in b], by_rank=by_rank
    )


def compare_sides(
    a: Sequence[ComparedRun], b: Sequence[ComparedRun], *, by_rank: bool = False
) -> ComparisonView:
    """The same, of runs that were read."""
    same_code = are_repetitions([run.recorded for run in a], [run.recorded for run in b])
    pairs = {stage: _Pair(stage, a, b, same_code) for stage in Stage}
    view = ComparisonView(
        a=tuple(a),
        b=tuple(b),
        stages={stage: pair.compare(by_rank) for stage, pair in pairs.items() if any(pair.sides)},
        profiling=_profiling(a, b),
        results=tuple(_results(a, b)),
        notes=(),
    )
    return replace(view, notes=tuple(notes(view, same_code=same_code)))


def _series(side: Sequence[ComparedRun], stage: Stage) -> list[Series]:
    return [run.series[stage] for run in side if stage in run.series]


def _batch(runs: Sequence[Series]) -> float | None:
    known = [run.batch for run in runs if not math.isnan(run.batch)]
    return float(np.median(known)) if known else None


class _Pair:
    """Both sides of a stage, and how a quantity of theirs is compared."""

    def __init__(
        self, stage: Stage, a: Sequence[ComparedRun], b: Sequence[ComparedRun], same_code: bool
    ) -> None:
        self.stage, self.runs, self._same_code = stage, (a, b), same_code
        self.sides = (_series(a, stage), _series(b, stage))
        batches = [_batch(side) for side in self.sides]
        self.per_sample = None not in batches and abs(batches[0] / batches[1] - 1) > _SAME_BATCH  # type: ignore[operator]

    def compare(self, by_rank: bool) -> StageComparison:
        """Every quantity."""
        every = [run for side in self.runs for run in side]
        names = [self._layer_names(*both) for both in zip(self.sides, self.runs, strict=True)]
        step = self._times(lambda run: run.wall_s)
        assert step is not None  # a side has steps
        rates = compare_rates(*([(run.samples, run.wall_s) for run in side] for side in self.sides))
        sample = self._times(lambda run: run.wall_s / run.samples) if self.per_sample else None
        return StageComparison(
            stage=self.stage,
            noun=common_noun(every, self.stage),
            unit=common_unit(every),
            per_sample=self.per_sample,
            step=step,
            sample=sample,
            rate=None if math.isnan(rates.a) and math.isnan(rates.b) else self._judged(rates),
            total_s=([run.total_s for run in self.sides[0]], [run.total_s for run in self.sides[1]]),
            accounts=self._accounts(),
            layers=tuple(self._layer(name) for name in names[0] if name in set(names[1])),
            only=(_without(names[0], names[1]), _without(names[1], names[0])),
            by_device=(by_device(self.sides[0]), by_device(self.sides[1])) if by_rank else None,
        )

    def _judged(self, comparison: Comparison) -> Comparison:
        """Runs of identical code differ by noise only, so their verdict is never faster or slower."""
        claims = comparison.verdict in (Verdict.FASTER, Verdict.SLOWER)
        return replace(comparison, verdict=Verdict.CANNOT_TELL) if claims and self._same_code else comparison

    def _times(self, pick: Callable[[Series], Samples | None], *, share: bool = False) -> Comparison | None:
        """One quantity of both sides; divided by the batch where it grows with that and batches differ."""
        groups: list[list[Samples]] = []
        for side in self.sides:
            picked = [(run, pick(run)) for run in side]
            divided = share and self.per_sample
            groups.append([got / run.batch if divided else got for run, got in picked if got is not None])
        return self._judged(compare_runs(*groups)) if any(groups) else None

    def _accounts(self) -> dict[Account, Comparison]:
        compared = {}
        for account in ACCOUNTS:
            row = self._times(lambda run, account=account: run.accounts.get(account), share=True)  # type: ignore[misc]
            if row is not None and row.largest:
                compared[account] = row
        return compared

    def _layer(self, name: str) -> LayerComparison[Comparison]:
        phases = {
            phase: self._times(lambda run, key=(name, phase.value): run.layers.get(key), share=True)  # type: ignore[misc]
            for phase in Phase
        }
        total = self._times(lambda run: _layer_total(run, name), share=True)
        assert total is not None  # both sides have the layer
        return LayerComparison(
            layer=name,
            phases={phase: row for phase, row in phases.items() if row is not None},
            total=total,
        )

    def _layer_names(self, side: Sequence[Series], runs: Sequence[ComparedRun]) -> list[str]:
        """Layers that have times, in network order, then those that are no module."""
        measured = dict.fromkeys(layer for run in side for layer, _ in run.layers)
        order = dict.fromkeys(layer.name for run in runs for layer in run.recorded.network)
        known = [name for name in order if name in measured]
        return known + sorted(
            (name for name in measured if name not in order), key=lambda n: n.startswith("(")
        )


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in {*others, LOSS_LAYER, OTHER_LAYER}]


def _layer_total(run: Series, layer: str) -> Samples | None:
    parts = [values for (name, _), values in run.layers.items() if name == layer]
    if not parts:
        return None
    # A phase may be missing from some steps (an update of every fourth): its median is added instead.
    longest = max(map(len, parts))
    whole = [part if len(part) == longest else np.full(longest, np.median(part)) for part in parts]
    return np.asarray(sum(whole))


def _results(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> Iterator[ResultComparison]:
    for stage in Stage:
        for metric in METRICS:
            values = [
                tuple(
                    value
                    for run in side
                    if (value := run.result(stage, metric)) is not None and not math.isnan(value)
                )
                for side in (a, b)
            ]
            if any(values):
                told = _told_from_noise(*values) if min(map(len, values)) > 1 else None
                yield ResultComparison(
                    stage=stage, metric=metric, a=values[0], b=values[1], told_from_noise=told
                )


def _told_from_noise(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the interval of B - A excludes 0. The ratio exp(B) / exp(A) is exp(B - A): 1 stands for 0."""
    row = compare_runs([np.exp([value]) for value in a], [np.exp([value]) for value in b])
    return row.low > 1.0 or row.high < 1.0


def _profiling(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> ProfilingCost | None:
    """Where one side was profiled and the other was not."""
    profiled = [_profiled(side) for side in (a, b)]
    if None in profiled or profiled[0] == profiled[1]:
        return None
    with_it, without = (a, b) if profiled[0] else (b, a)
    walls = [[run.wall_s for run in _series(side, Stage.TRAIN)] for side in (without, with_it)]
    return ProfilingCost(profiled="a" if profiled[0] else "b", times=compare_runs(*walls))


def _profiled(runs: Sequence[ComparedRun]) -> bool | None:
    """Whether every run was profiled, or none; None where they differ or do not say."""
    records = [run.recorded.config.get("record") for run in runs]
    said = {record.get("profile") if isinstance(record, Mapping) else None for record in records}
    value = said.pop() if len(said) == 1 else None
    return value if isinstance(value, bool) else None
