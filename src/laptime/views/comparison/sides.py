"""B against the baseline A, each a group of runs: what `laptime compare` and pages of two sides show."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Generic, TypeVar

import numpy as np

from laptime.files.write import plain
from laptime.model import ACCOUNTS, Account, Phase, Stage
from laptime.model.comparison import RUN_TO_RUN, Comparison, Verdict, compare_rates, compare_runs
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.model.prediction import PredictedTime
from laptime.runs import Run
from laptime.runs.select import Samples
from laptime.views.comparison.collectives import CollectiveComparison, compare_collectives
from laptime.views.comparison.targets import TargetComparison, compare_targets
from laptime.views.format import listed, name, percent, plural
from laptime.views.run_view import METRICS, NOUNS, RunView, run_view
from laptime.views.step_series import DeviceSeconds, Series, by_device

REPETITION = re.compile(r"rep-\d+")  # as `laptime train --repeat` names its folders
# A run's own folder, where others numbered it or swept the seed.
_NUMBERED = re.compile(r"(?:[\w.]*seed=)?\d+")
SAME_BATCH = 0.005  # batches that differ by less are the same: a last one may be smaller
FEW_SHARED = 0.2  # of all layers; with fewer in both, the networks are not the same
_MACHINE: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "devices": lambda e: (e.get("device") or {}).get("name"),
    "torch versions": lambda e: e.get("torch"),
    "threads": lambda e: e.get("threads"),
    "environment variables": lambda e: (
        ", ".join(f"{k}={v}" for k, v in sorted((e.get("variables") or {}).items())) or "none"
    ),
}


def common_noun(runs: Sequence[RunView], stage: Stage) -> str:
    """What a step of the stage is called."""
    nouns = {run.stages[stage].noun for run in runs if stage in run.stages}
    return nouns.pop() if len(nouns) == 1 else NOUNS[stage.value]


def common_unit(runs: Sequence[RunView]) -> str:
    """What time is charged to: layer or operator."""
    units = {run.unit for run in runs}
    return units.pop() if len(units) == 1 else "layer"


def repetition_key(run: Run, alone: str) -> str:
    """Equal for repetitions of one configuration; a run in a folder of its own is known by `alone`."""
    path = PurePath(run.path.resolve())
    parts: list[str] = [part for part in path.parts if not REPETITION.fullmatch(part)]
    if len(parts) == len(path.parts):
        parts = parts[:-1] if _NUMBERED.fullmatch(path.name) else [alone]
    return json.dumps([parts, _configuration(run)])


def _configuration(run: Run) -> str:
    """A run's configuration without its seed."""
    train = run.config.get("train")
    rest = {key: value for key, value in run.config.items() if key not in ("train", "seed")}
    if isinstance(train, Mapping):
        rest["train"] = {key: value for key, value in train.items() if key != "seed"}
    return json.dumps(rest, sort_keys=True, default=str)


T = TypeVar("T", Comparison, PredictedTime)
Quantity = Callable[[Series], Samples | None]  # by step; None where a run does not have it


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison(Generic[T]):
    """A layer on two sides: each phase that has a time, and all of them together."""

    layer: str
    phases: Mapping[Phase, T]
    total: T

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        document: dict[str, Any] = {"layer": self.layer}
        for phase in Phase:
            document[phase] = self.phases[phase].document() if phase in self.phases else None
        return document | {"total": self.total.document()}


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
    total_s: list[list[float]]  # of each side
    accounts: Mapping[Account, Comparison]
    layers: tuple[LayerComparison[Comparison], ...]
    layer_steps: tuple[int, ...]  # of each run, steps that have layer times
    only: list[list[str]]  # layers of A alone, and of B alone
    by_device: list[list[DeviceSeconds]] | None

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "noun": self.noun,
            "unit": self.unit,
            "per_sample": self.per_sample,
            "step_s": self.step.document(),
            "sample_s": self.sample and self.sample.document(),
            "samples_per_s": self.rate and self.rate.document(),
            "total_s": self.total_s,
            "accounts": [{"account": account, **row.document()} for account, row in self.accounts.items()],
            "layers": [row.document() for row in self.layers],
            "only": dict(zip("ab", self.only, strict=True)),
            "ranks": self.by_device and dict(zip("ab", self.by_device, strict=True)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultComparison:
    """Loss or accuracy over the last epoch, a number for each run that has it."""

    metric: str
    a: list[float]
    b: list[float]
    difference: float | None  # B - A of the means; None where a side has none
    told_from_noise: bool | None  # None where a side has but one run


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingCost:
    """What profiling adds to a step, where one side was profiled: in `times` A is without and B with."""

    profiled: str  # the side, a or b
    times: Comparison

    @property
    def slowdown(self) -> float:
        """0.2 where a step takes a fifth longer; NaN where that is not known."""
        return self.times.ratio - 1.0

    @property
    def interval_text(self) -> str:
        """`+18.2 % to +21.9 %`."""
        return " to ".join(f"{(end - 1) * 100:+.1f} %" for end in (self.times.low, self.times.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView:
    """B against A."""

    sides: tuple[Sequence[RunView], Sequence[RunView]]
    stages: Mapping[Stage, StageComparison]
    profiling: ProfilingCost | None
    results: Mapping[Stage, list[ResultComparison]]
    target: TargetComparison | None  # the time to it, where all runs have the same
    collectives: tuple[CollectiveComparison, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def batches(self) -> list[float | None]:
        """Samples of one rank in a typical step of each side."""
        both = [[_series(side, stage) for stage in Stage] for side in self.sides]
        return [_batch(next(filter(None, stages), [])) for stages in both]

    @property
    def networks_differ(self) -> str:
        """A line that says so, where the names of the networks differ or their layers do; else empty."""
        names = [sorted({run.network for run in side} - {""}) for side in self.sides]
        if names[0] != names[1] and all(names):
            return f"the networks differ: A is {', '.join(names[0])}, B {', '.join(names[1])}"
        part = next(iter(self.stages.values()), None)
        if part is None or not all(part.only):
            return ""
        shared = len([row for row in part.layers if row.layer not in (LOSS_LAYER, OTHER_LAYER)])
        every = shared + sum(map(len, part.only))
        few = shared < FEW_SHARED * every
        return f"the networks differ: {shared} of {plural(every, part.unit)} are in both" if few else ""

    def document(self) -> dict[str, Any]:
        """As `--json` has it: strict JSON."""
        document: dict[str, Any] = {
            name: {
                "runs": [{"id": run.run.id, "path": run.run.path, "status": run.run.status} for run in side],
                "steps": {stage: [read.steps for read in _series(side, stage)] for stage in Stage},
                "batch": batch,
            }
            for name, side, batch in zip("ab", self.sides, self.batches, strict=True)
        }
        for stage in Stage:
            document[stage] = self.stages[stage].document() if stage in self.stages else None
        document["profiling"] = self.profiling and {
            "with": self.profiling.profiled,
            "without": "b" if self.profiling.profiled == "a" else "a",
            "slowdown": self.profiling.slowdown,
            **self.profiling.times.document(),
        }
        document["target"] = self.target and self.target.document()
        document |= {"results": self.results, "collectives": self.collectives, "notes": self.notes}
        return dict(plain(document))


def compare(a: Sequence[Run], b: Sequence[Run], *, by_rank: bool = False) -> ComparisonView:
    """B against the baseline A: step, throughput, accounts, layers, results and notes."""
    return compare_sides([run_view(run) for run in a], [run_view(run) for run in b], by_rank=by_rank)


def compare_sides(a: Sequence[RunView], b: Sequence[RunView], *, by_rank: bool = False) -> ComparisonView:
    """The same, of runs that were read."""
    # Where both sides are repetitions of one configuration, any difference is noise.
    keys = {repetition_key(run.run, str(place)) for place, run in enumerate([*a, *b])}
    same_code = len(keys) == 1
    parts = [_compare_stage(stage, (a, b), same_code=same_code, by_rank=by_rank) for stage in Stage]
    view = ComparisonView(
        sides=(a, b),
        stages={part.stage: part for part in parts if part is not None},
        profiling=_profiling(a, b),
        results={stage: list(_results(stage, (a, b))) for stage in Stage},
        target=compare_targets([("A", a), ("B", b)]),
        collectives=compare_collectives(a, b),
    )
    return replace(view, notes=tuple(_notes(view, same_code)))


def _series(side: Sequence[RunView], stage: Stage) -> list[Series]:
    return [run.stages[stage].series for run in side if stage in run.stages]


def _batch(runs: Sequence[Series]) -> float | None:
    known = [run.batch for run in runs if not math.isnan(run.batch)]
    return float(np.median(known)) if known else None


def _compare_stage(
    stage: Stage, views: Sequence[Sequence[RunView]], *, same_code: bool, by_rank: bool
) -> StageComparison | None:
    """Every quantity of a stage; None where neither side has steps."""
    sides = [_series(side, stage) for side in views]
    if not any(sides):
        return None
    batches = [batch for side in sides if (batch := _batch(side)) is not None]
    per_sample = len(batches) == 2 and abs(batches[0] / batches[1] - 1) > SAME_BATCH

    def judged(comparison: Comparison) -> Comparison:
        """Runs of identical code differ by noise only, so their verdict is never faster or slower."""
        claims = comparison.verdict in (Verdict.FASTER, Verdict.SLOWER)
        return replace(comparison, verdict=Verdict.CANNOT_TELL) if claims and same_code else comparison

    def times(quantity: Quantity, *, share: bool = True) -> Comparison:
        """A quantity of both sides; divided by the batch where it is part of a step and batches differ."""
        groups = [
            [
                values / (run.batch if share and per_sample else 1)
                for run in side
                if (values := quantity(run)) is not None
            ]
            for side in sides
        ]
        return judged(compare_runs(*groups))

    def account_times(account: Account) -> Comparison:
        return times(lambda run: run.accounts.get(account))

    def layer_times(layer: str, phase: Phase | None = None) -> Comparison:
        return times(lambda run: run.layer_s(layer, phase))

    timed = {key for side in sides for run in side for key in run.layers}
    accounts = {account: account_times(account) for account in ACCOUNTS}
    names = [_layer_names(*both) for both in zip(sides, views, strict=True)]
    shared = set(names[0]) & set(names[1])
    not_listed = shared | {LOSS_LAYER, OTHER_LAYER}
    rates = compare_rates(*([(run.samples, run.wall_s) for run in side] for side in sides))
    return StageComparison(
        stage=stage,
        noun=common_noun([*views[0], *views[1]], stage),
        unit=common_unit([*views[0], *views[1]]),
        per_sample=per_sample,
        step=times(lambda run: run.wall_s, share=False),
        sample=times(lambda run: run.wall_s / run.samples, share=False) if per_sample else None,
        rate=None if math.isnan(rates.a) and math.isnan(rates.b) else judged(rates),
        total_s=[[run.total_s for run in side] for side in sides],
        accounts={account: row for account, row in accounts.items() if row.largest},
        layers=tuple(
            LayerComparison(
                layer=layer,
                phases={phase: layer_times(layer, phase) for phase in Phase if (layer, phase) in timed},
                total=layer_times(layer),
            )
            for layer in names[0]
            if layer in shared
        ),
        layer_steps=tuple(run.layer_steps for side in sides for run in side),
        only=[[layer for layer in side if layer not in not_listed] for side in names],
        by_device=list(map(by_device, sides)) if by_rank else None,
    )


def _layer_names(side: Sequence[Series], runs: Sequence[RunView]) -> list[str]:
    """Layers that have times, in network order, then those that are no module."""
    measured = dict.fromkeys(layer for run in side for layer, _ in run.layers)
    order = dict.fromkeys(layer.name for run in runs for layer in run.run.network)
    others = [layer for layer in measured if layer not in order]
    return [layer for layer in order if layer in measured] + sorted(others, key=lambda n: n.startswith("("))


def _results(stage: Stage, sides: Sequence[Sequence[RunView]]) -> Iterator[ResultComparison]:
    for metric in METRICS:
        values = [[run.result(stage, metric) for run in side] for side in sides]
        a, b = ([v for v in side if v is not None and not math.isnan(v)] for side in values)
        told = None
        if min(len(a), len(b)) > 1:
            # The ratio exp(B) / exp(A) is exp(B - A): an interval without 1 is a difference without 0.
            row = compare_runs(*([np.exp([value]) for value in side] for side in (a, b)))
            told = row.low > 1.0 or row.high < 1.0
        difference = float(np.mean(b) - np.mean(a)) if a and b else None
        if a or b:
            yield ResultComparison(metric=metric, a=a, b=b, difference=difference, told_from_noise=told)


def _profiling(a: Sequence[RunView], b: Sequence[RunView]) -> ProfilingCost | None:
    """Where one side was profiled and the other was not."""
    records = [[run.run.config.get("record") for run in side] for side in (a, b)]
    said = [{each.get("profile") if isinstance(each, Mapping) else None for each in side} for side in records]
    if sorted(said, key=str) != [{False}, {True}]:
        return None
    with_it, without = (a, b) if said[0] == {True} else (b, a)
    walls = [[run.wall_s for run in _series(side, Stage.TRAIN)] for side in (without, with_it)]
    return ProfilingCost(profiled="a" if with_it is a else "b", times=compare_runs(*walls))


# -- notes -----------------------------------------------------------------------------------------


def _notes(view: ComparisonView, same_code: bool) -> Iterator[str]:
    """What must be known beside a comparison: how its intervals were made, and in what the sides differ."""
    sides = dict(zip("AB", view.sides, strict=True))
    if view.networks_differ:
        yield view.networks_differ
    a, b = ({run.run.id for run in side} for side in sides.values())  # a copy of a run is the same run
    if a == b:
        yield f"both sides are the same {'run' if len(a) == 1 else 'runs'}: they cannot differ"
    elif a & b:
        yield f"{plural(len(a & b), 'run')} of A {'is' if len(a & b) == 1 else 'are'} in B too"
    elif same_code:
        yield "A and B repeat one configuration: what sets them apart is run-to-run noise"
    counts = [len(side) for side in view.sides]
    if max(counts) == 1:
        yield (
            "one run each: the intervals are over steps and do not show run-to-run noise, so a difference "
            f"under {percent(RUN_TO_RUN, 0)}, or under half the spread of the steps, is not told; "
            "`laptime train --repeat` gives several runs"
        )
    elif min(counts) == 1:
        yield "one run against several: the intervals are over runs, by the spread of the several"
    else:
        yield f"{counts[0]} runs against {counts[1]}: the intervals are over runs"
    part = next(iter(view.stages.values()), None)
    if part is not None:
        yield from _stage_notes(part, view)
    for letter, side in sides.items():
        if len({_configuration(run.run) for run in side}) > 1:
            yield f"the runs of {letter} differ in their configuration, which widens the intervals"
    for what, read in _MACHINE.items():
        values = [sorted({str(read(run.run.environment)) for run in side}) for side in sides.values()]
        if values[0] != values[1]:
            yield f"the {what} differ: A {name(', '.join(values[0]))}, B {name(', '.join(values[1]))}"
    for letter, side in sides.items():
        states = [run.run.status for run in side if run.run.status != "finished"]
        if states:
            how = ", ".join(sorted(set(states)))
            yield f"{plural(len(states), 'run')} of {letter} did not finish ({how})"


def _stage_notes(part: StageComparison, view: ComparisonView) -> Iterator[str]:
    if part.per_sample:
        a, b = (f"{batch:g}" for batch in view.batches if batch is not None)
        yield (
            f"A has {a} samples in a step (on each device), B {b}: accounts and layers are "
            "compared per sample"
        )
    lost = [all("layers" in run.lost for run in side) for side in view.sides]
    for letter, gone in zip("AB", lost, strict=True):
        if gone:
            yield f"{letter} lost its `layers` folder, so layers cannot be compared"
    for side, other in ((0, 1), (1, 0)):
        only = part.only[side]
        if only and not part.layers and not part.only[other]:
            if not lost[other]:
                yield f"{'AB'[other]} was recorded without layers, so layers cannot be compared"
        elif only:
            yield f"only in {'AB'[side]}: {listed(only)}"
