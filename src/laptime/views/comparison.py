"""Two groups of runs, compared: what `laptime compare` shows and what its `--json` holds.

Everything is a strict-JSON dictionary. A is the baseline; a ratio is B / A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from laptime.files.write import plain
from laptime.model import ACCOUNTS, Phase, Stage
from laptime.model.comparison import Comparison, Unit, Verdict, compare_rates, compare_runs
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.runs import Run
from laptime.views.comparison_notes import notes, profiling
from laptime.views.layers_by_device import by_device
from laptime.views.run_view import METRICS, NOUNS, content
from laptime.views.step_series import Samples, Series, series

_SAME_BATCH = 0.005  # batches that differ by less are the same: a last one may be smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One group: its runs, what they say of themselves, and their series by stage."""

    runs: Sequence[Run]
    found: Sequence[dict[str, Any]]
    stages: dict[Stage, list[Series]]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Side:
        """A side from its runs."""
        stages: dict[Stage, list[Series]] = {}
        for stage in Stage:
            stages[stage] = [one for one in (series(run, stage) for run in runs) if one is not None]
        return cls(runs=runs, found=[content(run) for run in runs], stages=stages)


def compare(a: Sequence[Run], b: Sequence[Run], *, by_rank: bool = False) -> dict[str, Any]:
    """B against the baseline A: step, throughput, accounts, layers, results, notes."""
    sides = (Side.of(a), Side.of(b))
    stages = {stage.value: _stage(sides, stage, by_rank) for stage in Stage}
    document: dict[str, Any] = {name: _about(side) for name, side in zip("ab", sides, strict=True)}
    document |= stages
    document["profiling"] = profiling(a, b, _walls(sides))
    document["results"] = {stage.value: _results(sides, stage) for stage in Stage}
    document["notes"] = notes(document, sides[0].found, sides[1].found)
    return dict(plain(document))


def _about(side: Side) -> dict[str, Any]:
    return {
        "runs": [{key: one["run"][key] for key in ("id", "path", "status")} for one in side.found],
        "steps": {stage.value: [one.steps for one in found] for stage, found in side.stages.items()},
        "batch": _batch(side.stages[Stage.TRAIN] or side.stages[Stage.VALIDATION]),
    }


def _batch(found: Sequence[Series]) -> float | None:
    known = [one.batch for one in found if not math.isnan(one.batch)]
    return float(np.median(known)) if known else None


def _walls(sides: Sequence[Side]) -> list[list[Samples]]:
    return [[one.wall_s for one in side.stages[Stage.TRAIN]] for side in sides]


# -- one stage -------------------------------------------------------------------------------------

Pick = Callable[[Series], Samples | None]


class _Pair:
    """Both sides of a stage, and how a quantity of theirs is compared."""

    def __init__(self, a: Sequence[Series], b: Sequence[Series]) -> None:
        self.sides = (a, b)
        batches = [_batch(a), _batch(b)]
        self.per_sample = None not in batches and abs(batches[0] / batches[1] - 1) > _SAME_BATCH  # type: ignore[operator]

    def rates(self) -> dict[str, Any] | None:
        """Samples a second, as `Series.samples_per_s` has them; None where no side knows its samples."""
        groups = [[(one.samples, one.wall_s) for one in side] for side in self.sides]
        found = compare_rates(*groups)
        return None if math.isnan(found.a) and math.isnan(found.b) else _row(found)

    def compared(self, pick: Pick, *, share: bool = False) -> dict[str, Any] | None:
        """One quantity on both sides; divided by the batch where `share` says that it grows with it."""
        groups: list[list[Samples]] = []
        for side in self.sides:
            picked = [(one, pick(one)) for one in side]
            scale = share and self.per_sample
            groups.append([got / one.batch if scale else got for one, got in picked if got is not None])
        if not any(groups):
            return None
        return _row(compare_runs(*groups))


def _row(found: Comparison) -> dict[str, Any]:
    return {**asdict(found), "difference": found.b - found.a}


def _stage(sides: Sequence[Side], stage: Stage, by_rank: bool) -> dict[str, Any] | None:
    """None where neither side has steps of this stage."""
    pair = _Pair(*(side.stages[stage] for side in sides))
    if not any(pair.sides):
        return None
    layers, only = _layers(pair, sides)
    every = [one for side in sides for one in side.found]
    nouns = {one[stage.value]["noun"] for one in every if one[stage.value]}
    units = {one["run"]["unit"] for one in every}
    return {
        "noun": nouns.pop() if len(nouns) == 1 else NOUNS[stage.value],
        "unit": units.pop() if len(units) == 1 else "layer",
        "per_sample": pair.per_sample,
        "step_s": pair.compared(lambda one: one.wall_s),
        "sample_s": pair.compared(lambda one: one.wall_s / one.samples) if pair.per_sample else None,
        "samples_per_s": pair.rates(),
        "total_s": [[one.total_s for one in side] for side in pair.sides],
        "accounts": _accounts(pair),
        "layers": layers,
        "only": only,
        "ranks": _ranks(pair) if by_rank else None,
    }


def _accounts(pair: _Pair) -> list[dict[str, Any]]:
    rows = []
    for account in ACCOUNTS:
        compared = pair.compared(lambda one, account=account: one.accounts.get(account), share=True)  # type: ignore[misc]
        if compared is not None and (compared["a"] or compared["b"]):
            rows.append({"account": account, **compared})
    return rows


def _layers(pair: _Pair, sides: Sequence[Side]) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Layers of both sides, in network order, with each phase and their sum; and those of one side only."""
    names = [_names(series_of, side.runs) for series_of, side in zip(pair.sides, sides, strict=True)]
    both = [name for name in names[0] if name in set(names[1])]
    rows = []
    for name in both:
        phases = {phase.value: pair.compared(_phase_of(name, phase), share=True) for phase in Phase}
        rows.append({"layer": name, **phases, "total": pair.compared(_total_of(name), share=True)})
    only = {
        side: [name for name in mine if name not in set(other) and name not in (LOSS_LAYER, OTHER_LAYER)]
        for side, mine, other in (("a", names[0], names[1]), ("b", names[1], names[0]))
    }
    return rows, only


def _names(found: Iterable[Series], runs: Sequence[Run]) -> list[str]:
    measured = dict.fromkeys(layer for one in found for layer, _ in one.layers)
    order = dict.fromkeys(layer.name for run in runs for layer in run.network)
    known = [name for name in order if name in measured]
    return known + sorted((name for name in measured if name not in order), key=lambda n: n.startswith("("))


def _phase_of(layer: str, phase: Phase) -> Pick:
    return lambda one: one.layers.get((layer, phase.value))


def _total_of(layer: str) -> Pick:
    def total(one: Series) -> Samples | None:
        parts = [values for (name, _), values in one.layers.items() if name == layer]
        if not parts:
            return None
        # A phase may be missing from some steps (an update of every fourth): its median is added instead.
        longest = max(map(len, parts))
        return np.asarray(
            sum(part if len(part) == longest else np.full(longest, np.median(part)) for part in parts)
        )

    return total


def _ranks(pair: _Pair) -> dict[str, Any]:
    """Median layer time of each rank, per layer and phase: the thesis' layer time per GPU."""
    return {name: by_device(side) for name, side in zip("ab", pair.sides, strict=True)}


# -- what was learned ------------------------------------------------------------------------------


def _results(sides: Sequence[Side], stage: Stage) -> list[dict[str, Any]]:
    """Loss and accuracy over the last epoch, run by run, with the difference of the means."""
    rows = []
    for metric in METRICS:
        values = [[_result(one, stage, metric) for one in side.found] for side in sides]
        a, b = ([value for value in side if value is not None] for side in values)
        if a or b:
            rows.append({"metric": metric, "a": a, "b": b, **_difference(a, b)})
    return rows


def _result(found: dict[str, Any], stage: Stage, metric: str) -> float | None:
    value = ((found[stage.value] or {}).get("results") or {}).get(metric)
    return None if value is None else float(value)


def _difference(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """B − A of the means. Whether it can be told from noise is known only with several runs on both sides."""
    if not a or not b:
        return {"difference": None, "told_from_noise": None}
    difference = float(np.mean(b) - np.mean(a))
    told = None
    if min(len(a), len(b)) > 1:
        # A ratio of exponentials is a difference: the interval of the one is the interval of the other.
        logs = [[np.exp([value]) for value in side] for side in (a, b)]
        told = compare_runs(*logs).verdict in (Verdict.FASTER, Verdict.SLOWER)
    return {"difference": difference, "told_from_noise": told}


def unit(document: dict[str, Any]) -> Unit:
    """What the intervals are over."""
    return Unit.RUNS if max(len(document[side]["runs"]) for side in "ab") > 1 else Unit.STEPS
