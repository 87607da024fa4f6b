"""The steps and layers of a run as curves over steps: what TensorBoard and MLflow draw."""

from __future__ import annotations

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


def step_curves(run: Run, *, most: int = MOST_POINTS) -> Iterator[Curve]:
    """Loss and accuracy (of the lowest rank), step time, samples a second and accounts, of every rank.

    What is unknown is left out; a loss that is NaN stays NaN.
    """
    begun = AttemptStarts(run)
    stages = run.tables.steps.stages
    ranks = run.tables.steps.ranks
    for stage, every in stages.items():
        for rank in ranks:
            here = np.flatnonzero(every["rank"] == rank)
            rows = every.at(here[np.argsort(every["step"][here], kind="stable")])
            if rows.rows:
                yield from _of_steps(begun, rows, stage, rank, first=rank == ranks[0], most=most)


def _of_steps(
    begun: AttemptStarts, rows: Columns, stage: Stage, rank: int, *, first: bool, most: int
) -> Iterator[Curve]:
    steps, wall = rows["step"], rows["wall_s"]
    times = begun.at(rank, rows["attempt"], rows["start_s"])

    def curve(tag: str, values: Real, known: NDArray[np.bool_], *, mean: bool = False) -> Iterator[Curve]:
        if known.any():
            at, shown = thinned(values[known], most, mean=mean)
            yield Curve(
                tag=tag,
                stage=stage,
                rank=rank,
                steps=steps[known][at],
                times_s=times[known][at],
                values=shown,
            )

    for name in _LOGGED if first else ():
        yield from curve(name, rows[name], rows.known(name), mean=True)
    yield from curve("step/ms", wall * 1e3, np.ones(len(wall), dtype=np.bool_))
    samples = rows["samples"].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        yield from curve("step/samples_per_s", samples / wall, ~np.isnan(samples) & (wall > 0))
    for account in ACCOUNTS:
        seconds = rows[account.column]
        yield from curve(f"account_ms/{account.value}", seconds * 1e3, ~np.isnan(seconds))


def layer_curves(run: Run, *, most: int = MOST_POINTS, in_all: int = MOST_LAYER_POINTS) -> Iterator[Curve]:
    """Milliseconds by layer and phase, of every stage and rank: `layer/<name>/<phase>`."""
    stages = run.tables.layers
    owners = sum(len(rows.owners) for rows in stages.values())
    ranks = len(
        {rank for every in run.tables.steps.stages.values() for rank in np.unique(every["rank"]).tolist()}
    )
    most = min(most, max(_FEWEST_POINTS, in_all // max(1, owners * ranks)))
    begun = AttemptStarts(run)
    for stage, rows in stages.items():
        every = run.tables.steps.stages[stage]
        for (layer, phase), cells in rows.cells(np.ones(every.rows, dtype=np.bool_)):
            for rank in np.unique(every["rank"][cells.step]).tolist():
                here = np.flatnonzero(every["rank"][cells.step] == rank)
                here = here[np.argsort(every["step"][cells.step[here]], kind="stable")]
                at, shown = thinned(cells.seconds[here] * 1e3, most)
                places = cells.step[here[at]]
                yield Curve(
                    tag=f"layer/{layer}/{phase}",
                    stage=stage,
                    rank=rank,
                    steps=every["step"][places],
                    times_s=begun.at(rank, every["attempt"][places], every["start_s"][places]),
                    values=shown,
                )


class AttemptStarts:
    """How much later than its own seconds say each rank's each attempt began, after the run's creation.

    How long a run lay still between two attempts is not recorded: one follows where the one before ended,
    whether its seconds go on from a checkpoint or begin at zero.
    """

    def __init__(self, run: Run) -> None:
        self._created_s = run.created.timestamp()
        self._starts: dict[tuple[int, int], float] = {}
        stored = replace(run.stored("steps"), every_attempt=True)
        columns = Columns(stored, ("attempt", "rank", "start_s", "wall_s"))
        ends = columns["start_s"] + columns["wall_s"]
        for rank in np.unique(columns["rank"]).tolist():
            ended = 0.0
            for attempt in np.unique(columns["attempt"][columns["rank"] == rank]).tolist():
                here = (columns["rank"] == rank) & (columns["attempt"] == attempt)
                later = max(0.0, ended - float(columns["start_s"][here].min()))
                self._starts[rank, attempt] = later
                ended = later + float(ends[here].max())

    def __call__(self, rank: int, attempt: int) -> float:
        return self._starts.get((rank, attempt), 0.0)

    def at(self, rank: int, attempts: Whole, start_s: Real) -> Real:
        """Seconds since 1970 of moments that are counted from the beginning of their attempt."""
        known, place = np.unique(attempts, return_inverse=True)
        offsets = np.array([self(rank, int(attempt)) for attempt in known])
        moments: Real = self._created_s + offsets[place] + start_s
        return moments


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
    points = [_means(block) if mean else _medians_and_outliers(block) for _, block in blocks]
    places = [start + at for (start, _), (at, _) in zip(blocks, points, strict=True)]
    return np.concatenate(places), np.concatenate([shown for _, shown in points])


def _means(block: Real) -> tuple[Whole, Real]:
    rows, width = block.shape
    return np.arange(rows) * width + width - 1, block.mean(axis=1)


def _medians_and_outliers(block: Real) -> tuple[Whole, Real]:
    rows, width = block.shape
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
