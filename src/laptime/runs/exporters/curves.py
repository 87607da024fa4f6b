"""The steps and layers of a run as curves over steps: what TensorBoard and MLflow draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, Stage
from laptime.runs.run import Run
from laptime.runs.select import Columns

MOST_POINTS = 10_000  # of one curve; TensorBoard's own reader keeps no more
MOST_LAYER_POINTS = 500_000  # of all layers' curves together: some three seconds of writing
_FEWEST_POINTS = 100  # of one layer's curve, however many layers there are

_LOGGED = ("loss", "top1", "topn")

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One curve: a value by step, with the time of day. A tag holds a layer's name as it is."""

    tag: str
    stage: Stage
    rank: int
    steps: Whole
    times_s: Real  # since 1970
    values: Real


def grouped_curves(run: Run, *, most: int, in_all: int = MOST_LAYER_POINTS) -> dict[str, list[Curve]]:
    """Every curve, in the groups `train` and `validation` of the lowest rank, `train rank 1` of another."""
    curves = [*step_curves(run, most=most), *layer_curves(run, most=most, in_all=in_all)]
    lowest = min((curve.rank for curve in curves), default=0)
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        group = curve.stage.value + (f" rank {curve.rank}" if curve.rank != lowest else "")
        groups.setdefault(group, []).append(curve)
    return groups


def step_curves(run: Run, *, most: int = MOST_POINTS) -> Iterator[Curve]:
    """Loss and accuracy (of the lowest rank), step time, samples a second and accounts, of every rank.

    What is unknown is left out; a loss that is NaN stays NaN.
    """
    draw = _Drawing(run)
    ranks = run.tables.steps.ranks
    for stage, every in run.tables.steps.stages.items():
        for rank in ranks:
            rows = np.flatnonzero(every["rank"] == rank)
            for name in _LOGGED if rank == ranks[0] else ():
                known = rows[every.known(name)[rows]]
                yield from draw(name, stage, rank, known, every[name][known], most, mean=True)
            wall, samples = every["wall_s"][rows], every["samples"][rows].astype(np.float64)
            rate = np.divide(samples, wall, out=np.full_like(samples, np.nan), where=wall > 0)
            curves = {"step/ms": wall * 1e3, "step/samples_per_s": rate}
            curves |= {f"account_ms/{each.value}": every[each.column][rows] * 1e3 for each in ACCOUNTS}
            for tag, values in curves.items():
                known = ~np.isnan(values)
                yield from draw(tag, stage, rank, rows[known], values[known], most)


def layer_curves(run: Run, *, most: int = MOST_POINTS, in_all: int = MOST_LAYER_POINTS) -> Iterator[Curve]:
    """Milliseconds by layer and phase, of every stage and rank: `layer/<name>/<phase>`."""
    draw = _Drawing(run)
    curves = sum(len(rows.owners) for rows in run.tables.layers.values()) * len(run.tables.steps.ranks)
    most = min(most, max(_FEWEST_POINTS, in_all // max(1, curves)))
    for stage, rows in run.tables.layers.items():
        every = run.tables.steps.stages[stage]
        for (layer, phase), cells in rows.cells(np.ones(every.rows, dtype=np.bool_)):
            ranks = every["rank"][cells.step]
            for rank in np.unique(ranks).tolist():
                values = cells.seconds[ranks == rank] * 1e3
                yield from draw(
                    f"layer/{layer}/{phase}", stage, rank, cells.step[ranks == rank], values, most
                )


def attempt_starts(run: Run) -> dict[tuple[int, int], float]:
    """By rank and attempt, how much later it began than its own seconds say, after the run's creation.

    How long a run lay still between two attempts is not recorded: one follows where the one before ended,
    whether its seconds go on from a checkpoint or begin at zero.
    """
    starts: dict[tuple[int, int], float] = defaultdict(float)
    stored = replace(run.stored("steps"), every_attempt=True)
    columns = Columns.read(stored, ("attempt", "rank", "start_s", "wall_s"))
    ends = columns["start_s"] + columns["wall_s"]
    for rank in np.unique(columns["rank"]).tolist():
        ended = 0.0
        for attempt in np.unique(columns["attempt"][columns["rank"] == rank]).tolist():
            here = (columns["rank"] == rank) & (columns["attempt"] == attempt)
            starts[rank, attempt] = max(0.0, ended - float(columns["start_s"][here].min()))
            ended = starts[rank, attempt] + float(ends[here].max())
    return starts


class _Drawing:
    """Makes curves of one run."""

    def __init__(self, run: Run) -> None:
        self._created_s = run.created.timestamp()
        self._stages = run.tables.steps.stages
        self._starts = attempt_starts(run)

    def __call__(
        self, tag: str, stage: Stage, rank: int, rows: Whole, values: Real, most: int, *, mean: bool = False
    ) -> Iterator[Curve]:
        """A curve of values at these rows of the stage's steps; none without values."""
        if not rows.size:
            return
        every = self._stages[stage]
        order = np.argsort(every["step"][rows], kind="stable")
        at, shown = thinned(values[order], most, mean=mean)
        rows = rows[order][at]
        attempts, place = np.unique(every["attempt"][rows], return_inverse=True)
        offsets = np.array([self._starts[rank, int(attempt)] for attempt in attempts])
        times_s = self._created_s + offsets[place] + every["start_s"][rows]
        yield Curve(tag=tag, stage=stage, rank=rank, steps=every["step"][rows], times_s=times_s, values=shown)


def ended_s(run: Run) -> float:
    """When the run was last heard of, since 1970; without a heartbeat, when its last step ended."""
    try:
        return datetime.fromisoformat(run.heartbeat["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return run.created.timestamp() + run.tables.steps.end_s


def thinned(values: Real, most: int, *, mean: bool = False) -> tuple[Whole, Real]:
    """At most `most` points of a curve: their places, in order, and what to show there.

    A curve that is too long is cut into bins of equal length. Of each stay its median and the value farthest
    from it, in its place, so that no slow step is smoothed away (if there is room for one point only, the
    median); or, with `mean`, its mean at its last place. A NaN among values that are averaged makes a NaN.
    """
    if len(values) <= most:
        return np.arange(len(values)), values
    if most == 1 and not mean:
        return np.zeros(1, dtype=np.int64), np.median(values, keepdims=True)
    width = -(-len(values) // (most if mean else most // 2))
    whole = len(values) // width * width
    blocks = [(0, values[:whole].reshape(-1, width))]
    if whole < len(values):
        blocks.append((whole, values[whole:].reshape(1, -1)))
    points = [_points(block, mean=mean) for _, block in blocks]
    places = [start + at for (start, _), (at, _) in zip(blocks, points, strict=True)]
    return np.concatenate(places), np.concatenate([shown for _, shown in points])


def _points(block: Real, *, mean: bool) -> tuple[Whole, Real]:
    """Of each row of a block: its mean, or its median and the value farthest from it."""
    rows, width = block.shape
    if mean:
        return np.arange(rows) * width + width - 1, block.mean(axis=1)
    if width <= 2:  # two values are shown as they are: their median would lie between them
        return np.arange(rows * width), block.ravel()
    first = np.arange(rows) * width
    median = np.median(block, axis=1)
    away = np.abs(block - median[:, None]).argmax(axis=1)
    # The median stands on the bin's first place, or on its second where the outlier has the first.
    places = np.stack([first + (away == 0), first + away], axis=1)
    shown = np.stack([median, block[np.arange(rows), away]], axis=1)
    turned = np.argsort(places, axis=1)
    return np.take_along_axis(places, turned, 1).ravel(), np.take_along_axis(shown, turned, 1).ravel()
