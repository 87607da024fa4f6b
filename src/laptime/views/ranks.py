"""The ranks of a run: their pace, whom the others wait for, how old their updates are, what they exchange.

In a synchronous step the ranks leave a collective together. The rank that waited least came last, and what
another one waited longer than that, it waited for this rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, BUBBLE_COLUMNS, Account, Stage
from laptime.model.comparison import rate
from laptime.model.exchanges import Bucket, Collective, RankExchanges
from laptime.runs import Run
from laptime.runs.exchanges import read_exchanges
from laptime.runs.select import Samples, SelectedSteps, step_keys

_CLEARLY = 1.5  # times its share of the steps, from which a rank is called a straggler
_WORTH = 0.01  # of a step: what the others lose to a straggler at least
_NOBODY_WAITED_S = 1e-6  # less than this, by all ranks together, is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How many updates others made between reading parameters and updating them."""

    mean: float
    p90: float
    largest: float
    counts: Mapping[int, int]  # updates by staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubbles:
    """Mean seconds a step that a stage of a pipeline waits for other stages, by cause."""

    fill_s: float
    drain_s: float
    imbalance_s: float
    share: float  # of its time


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPace:
    """One rank over the steps that count."""

    rank: int
    device: str
    steps: int
    step_s: float  # mean
    communication_share: float  # of its time
    samples_per_s: float | None
    staleness: Staleness | None  # None where it waits for the others
    bubbles: Bubbles | None  # None where it is no stage of a pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that the others wait for in clearly more than its share of the steps."""

    rank: int
    steps: int  # in which it came last
    waited_s: float  # a step, by each of the others in the mean
    waited_share: float  # of the mean step
    account: Account  # in which it is longer than the others by most,
    longer_s: float  # and by how much
    shorter_s: float  # a step, if it kept up with the next slowest
    shorter_share: float  # of the mean step


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Who waits for whom. Lists are in the order of the ranks."""

    steps: int  # that all ranks took and some rank waited in
    last_in: tuple[int, ...]  # steps in which a rank came last
    lost_s: tuple[float, ...]  # by the others to a rank, over these steps
    for_whom_s: tuple[
        tuple[float, ...], ...
    ]  # a line for each rank: seconds a step that it waits for another
    straggler: Straggler | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraffic:
    """What one rank exchanges in a step."""

    rank: int
    bytes: float
    wire_bytes: float | None  # None where the run does not say
    exposed_s: float
    overlapped_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """One kind of collective in a step, the mean over the ranks that call it."""

    kind: str
    ranks: int  # that call it
    calls: float
    bytes: float  # of the tensors given
    wire_bytes: float | None  # that cross a rank's link in one direction
    seconds: float | None  # that it is under way, waiting for late ranks included
    exposed_s: float  # of these, the training waits
    overlapped_s: float | None = field(init=False)  # and computes meanwhile
    bandwidth: float | None = field(init=False)  # bytes a second on the wire while it is under way

    def __post_init__(self) -> None:
        seconds, size = self.seconds, self.bytes if self.wire_bytes is None else self.wire_bytes
        overlapped = None if seconds is None else max(0.0, seconds - self.exposed_s)
        object.__setattr__(self, "overlapped_s", overlapped)
        object.__setattr__(self, "bandwidth", size / seconds if seconds else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTraffic:
    """A bucket of gradients in a step, the mean over the ranks that have it."""

    bucket: int
    layers: tuple[str, ...]  # whose gradients it carries
    bytes: float
    seconds: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    """What is to be said of several ranks."""

    stage: Stage
    paces: tuple[RankPace, ...]  # by rank
    waiting: Waiting | None  # None where ranks do not wait for each other, or never did
    traffic: tuple[RankTraffic, ...]
    collectives: tuple[CollectiveTraffic, ...]  # the most bytes first
    buckets: tuple[BucketTraffic, ...]

    @property
    def slow(self) -> RankPace | None:
        """Of ranks that do not wait for each other, one that is clearly slower than the others."""
        if not self.stale:
            return None
        timed = [pace for pace in self.paces if pace.steps]
        slowest = max(timed, key=lambda pace: pace.step_s, default=None)
        if slowest is None or len(timed) < 2 or slowest.step_s <= _CLEARLY * self.usual_s(slowest):
            return None
        return slowest

    def usual_s(self, but: RankPace) -> float:
        """The median step of the other ranks."""
        return float(np.median([pace.step_s for pace in self.paces if pace is not but and pace.steps]))

    @property
    def bubbles(self) -> bool:
        """Whether the ranks are stages of a pipeline."""
        return any(pace.bubbles for pace in self.paces)

    @property
    def stale(self) -> bool:
        """Whether updates are made of parameters that others may have changed since."""
        return any(pace.staleness for pace in self.paces)


def ranks_view(run: Run, stage: Stage) -> RanksView | None:
    """The ranks of a stage; None where there is one alone."""
    steps = run.selected(stage)
    devices = steps.devices
    if len(devices) < 2:
        return None
    paces = tuple(_pace(steps, rank, device) for rank, device in devices.items())
    synchronous = not any(pace.staleness for pace in paces)
    exchanged = read_exchanges(run) if stage is Stage.TRAIN else {}
    return RanksView(
        stage=stage,
        paces=paces,
        waiting=_waiting(steps, list(devices)) if synchronous else None,
        traffic=tuple(_traffic(rank, each) for rank, each in exchanged.items()),
        collectives=_collectives(exchanged.values()),
        buckets=_buckets(exchanged.values()),
    )


def _pace(steps: SelectedSteps, rank: int, device: str) -> RankPace:
    mine = steps["rank"] == rank
    wall, staleness = steps["wall_s"][mine], steps["staleness"][mine]
    samples_per_s = rate(steps["samples"][mine].astype(np.float64), wall)
    return RankPace(
        rank=rank,
        device=device,
        steps=len(wall),
        step_s=float(wall.mean()) if len(wall) else float("nan"),
        communication_share=float(steps[Account.COMMUNICATION.column][mine].sum() / (wall.sum() or 1.0)),
        samples_per_s=None if np.isnan(samples_per_s) else samples_per_s,
        staleness=_staleness(staleness[~np.isnan(staleness)]),
        bubbles=_bubbles(np.stack([steps[column][mine] for column in BUBBLE_COLUMNS]), wall),
    )


def _bubbles(seconds: Samples, wall: Samples) -> Bubbles | None:
    known = ~np.isnan(seconds).any(axis=0)
    if not known.any():
        return None
    fill, drain, imbalance = seconds[:, known].mean(axis=1).tolist()
    share = float(seconds[:, known].sum() / wall[known].sum())
    return Bubbles(fill_s=fill, drain_s=drain, imbalance_s=imbalance, share=share)


def _staleness(values: Samples) -> Staleness | None:
    if not values.size:
        return None
    ages, counts = np.unique(values.round().astype(np.int64), return_counts=True)
    return Staleness(
        mean=float(values.mean()),
        p90=float(np.quantile(values, 0.9)),
        largest=float(values.max()),
        counts=dict(zip(ages.tolist(), counts.tolist(), strict=True)),
    )


# -- who waits for whom ------------------------------------------------------------------------------


def _waiting(steps: SelectedSteps, ranks: list[int]) -> Waiting | None:
    waited, wall = _by_step(steps, ranks)
    least = waited.min(axis=1, initial=np.inf)
    longer = waited - least[:, None]
    someone = longer.sum(axis=1) > _NOBODY_WAITED_S
    waited, longer, taken = waited[someone], longer[someone], len(waited)
    if not len(longer):
        return None
    last = waited.argmin(axis=1)
    lost = np.zeros((len(ranks), len(ranks)))
    np.add.at(lost.T, last, longer)
    last_in = np.bincount(last, minlength=len(ranks))
    # Were the last rank as fast as the next, all would go on that much earlier.
    sooner = np.bincount(last, np.partition(longer, 1, axis=1)[:, 1], minlength=len(ranks)) / taken
    return Waiting(
        steps=len(longer),
        last_in=tuple(last_in.tolist()),
        lost_s=tuple(lost.sum(axis=0).tolist()),
        for_whom_s=tuple(map(tuple, (lost / taken).tolist())),
        straggler=_straggler(steps, ranks, last_in, lost.sum(axis=0) / taken, sooner, float(wall.mean())),
    )


def _by_step(steps: SelectedSteps, ranks: list[int]) -> tuple[Samples, Samples]:
    """Seconds of waiting and of wall time, a line for each step that all ranks took, a column for each."""
    unique, line = np.unique(step_keys(steps), return_inverse=True)
    column = np.searchsorted(ranks, steps["rank"])
    waited, wall = np.full((2, len(unique), len(ranks)), np.nan)
    bubbles = sum(np.nan_to_num(steps[column]) for column in BUBBLE_COLUMNS)
    waited[line, column] = steps[Account.COMMUNICATION.column] + bubbles
    wall[line, column] = steps["wall_s"]
    whole = ~np.isnan(waited).any(axis=1)
    return waited[whole], wall[whole]


def _straggler(
    taken: SelectedSteps,
    ranks: list[int],
    last_in: NDArray[np.int64],
    lost: Samples,
    sooner: Samples,
    step_s: float,
) -> Straggler | None:
    place, steps = int(last_in.argmax()), int(last_in.sum())
    share = last_in[place] / steps
    # The lower end of its 95 % interval: by chance one of many ranks is always ahead of the others.
    least = share - 2 * np.sqrt(share * (1 - share) / steps)
    gain = float(sooner[place])
    if least <= _CLEARLY / len(ranks) or gain < _WORTH * step_s:
        return None
    waited_s = float(lost[place]) / (len(ranks) - 1)
    account, longer_s = _longer_in(taken, ranks[place])
    return Straggler(
        rank=ranks[place],
        steps=int(last_in[place]),
        waited_s=waited_s,
        waited_share=waited_s / step_s,
        account=account,
        longer_s=longer_s,
        shorter_s=gain,
        shorter_share=gain / step_s,
    )


def _longer_in(steps: SelectedSteps, rank: int) -> tuple[Account, float]:
    """The account in which a rank is longer than the others by most, and by how much in a mean step."""
    mine = steps["rank"] == rank
    longer = {
        account: float(np.nan_to_num(seconds[mine]).mean() - np.nan_to_num(seconds[~mine]).mean())
        for account in ACCOUNTS
        if account not in (Account.COMMUNICATION, Account.IDLE)
        for seconds in [steps[account.column]]
    }
    account = max(longer, key=lambda account: longer[account])
    return account, longer[account]


# -- traffic -----------------------------------------------------------------------------------------


def _traffic(rank: int, exchanged: RankExchanges) -> RankTraffic:
    every = [_per_step(each, exchanged.steps) for each in exchanged.collectives]
    return RankTraffic(
        rank=rank,
        bytes=sum(each.bytes for each in every),
        wire_bytes=_sum(each.wire_bytes for each in every),
        exposed_s=sum(each.exposed_s for each in every),
        overlapped_s=_sum(each.overlapped_s for each in every),
    )


def _per_step(each: Collective, steps: int) -> CollectiveTraffic:
    return CollectiveTraffic(
        kind=each.kind,
        ranks=1,
        calls=each.calls / steps,
        bytes=each.bytes / steps,
        wire_bytes=None if each.wire_bytes is None else each.wire_bytes / steps,
        seconds=None if each.seconds is None else each.seconds / steps,
        exposed_s=each.exposed_s / steps,
    )


def _collectives(exchanged: Iterable[RankExchanges]) -> tuple[CollectiveTraffic, ...]:
    by_kind: dict[str, list[CollectiveTraffic]] = {}
    for of_rank in exchanged:
        for each in of_rank.collectives:
            if not each.calls:
                continue  # a wait for what torch exchanges by itself, as where DDP makes its buckets
            by_kind.setdefault(each.kind, []).append(_per_step(each, of_rank.steps))
    means = [
        CollectiveTraffic(
            kind=kind,
            ranks=len(rows),
            calls=_mean(row.calls for row in rows),
            bytes=_mean(row.bytes for row in rows),
            wire_bytes=_known_mean(row.wire_bytes for row in rows),
            seconds=_known_mean(row.seconds for row in rows),
            exposed_s=_mean(row.exposed_s for row in rows),
        )
        for kind, rows in by_kind.items()
    ]
    return tuple(sorted(means, key=lambda each: (-each.bytes, each.kind)))


def _buckets(exchanged: Iterable[RankExchanges]) -> tuple[BucketTraffic, ...]:
    """By number and layers: the stages of a pipeline have different layers in theirs."""
    alike: dict[tuple[int, tuple[str, ...]], list[tuple[Bucket, int]]] = {}
    for of_rank in exchanged:
        for each in of_rank.buckets:
            alike.setdefault((each.bucket, each.layers), []).append((each, of_rank.steps))
    return tuple(
        BucketTraffic(
            bucket=bucket,
            layers=layers,
            bytes=_mean(each.bytes / steps for each, steps in rows),
            seconds=_mean(each.seconds / steps for each, steps in rows),
            exposed_s=_mean(each.exposed_s / steps for each, steps in rows),
        )
        for (bucket, layers), rows in sorted(alike.items())
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean([*values]))


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [*values]
    return None if None in known else sum(value or 0.0 for value in known)
