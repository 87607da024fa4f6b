"""The fastest and the cheapest plan over clusters, degrees and schedules, at equal samples for each update.

Plans are judged by the unfavourable end of their interval. On the same nodes the fastest plan is the
cheapest, so a plan is played only if its computing alone is not slower than the best one there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from laptime.errors import HardwareError, LaptimeError, PlanError
from laptime.estimate.run_correction import Correction
from laptime.hardware.cluster import Cluster
from laptime.model import Workload
from laptime.model.plan import Plan
from laptime.simulate.cluster_work import cluster_work
from laptime.simulate.memory import memory_of
from laptime.simulate.training import Simulation, TrainingRun, cluster_interval, simulate

MOST_PLANS = 20_000
MOST_STAGES = 64
LARGEST_MICRO_BATCH = 64  # samples
MOST_MICRO_BATCHES = 512
NEAR = 3  # plans of each number of nodes that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was found, each list best first."""

    plans: tuple[Simulation, ...]  # the best of each cluster and number of nodes
    considered: int
    too_large: int  # do not fit a device's memory
    slower: int  # not played: their computing alone takes longer than a plan that was
    there_are: int  # of which those that were considered are an even selection
    deadline_s: float | None = None

    @property
    def fastest(self) -> Simulation:
        """By the later end of its interval."""
        return min(self.plans, key=latest_s)

    @property
    def cheapest(self) -> Simulation | None:
        """Of those with a price."""
        return min(self._priced(self.plans), key=highest_price, default=None)

    @property
    def cheapest_in_time(self) -> Simulation | None:
        """Of those that end before the deadline at the latest."""
        if self.deadline_s is None:
            return None
        ended = [made for made in self.plans if latest_s(made) <= self.deadline_s]
        return min(self._priced(ended), key=highest_price, default=None)

    @property
    def frontier(self) -> tuple[Simulation, ...]:
        """Plans that no other beats in both time and money, fastest first."""
        best: list[Simulation] = []
        for made in sorted(self._priced(self.plans), key=lambda made: (latest_s(made), highest_price(made))):
            if not best or highest_price(made) < highest_price(best[-1]):
                best.append(made)
        return tuple(best)

    @staticmethod
    def _priced(plans: Iterable[Simulation]) -> list[Simulation]:
        return [made for made in plans if made.dollars is not None]


def latest_s(made: Simulation) -> float:
    """Seconds of the training, or of an update, at the unfavourable end."""
    seconds = made.training_s if made.training_s is not None else made.step_s
    return seconds * (1 + made.interval)


def highest_price(made: Simulation) -> float:
    """Dollars at the unfavourable end."""
    assert made.dollars is not None
    return made.dollars * (1 + made.interval)


def search(
    workload: Workload,
    clusters: Sequence[Cluster],
    *,
    global_batch: int,
    run: TrainingRun = TrainingRun(),  # noqa: B008
    workers: int | None = None,
    deadline_s: float | None = None,
    most: int = MOST_PLANS,
    correction: Correction | None = None,
) -> Search:
    """Every plan that divides, on each cluster with 1, 2, 4, … nodes, or on exactly so many workers.

    No more than `most` are considered, as many on each number of nodes.
    """
    if type(global_batch) is not int or global_batch < 1:
        raise PlanError(f"the batch of an update is {global_batch!r}; give a whole number above 0")
    if deadline_s is not None and not deadline_s > 0:
        raise PlanError(f"the deadline is {deadline_s:g} s; give more than 0")
    kept: list[Simulation] = []
    considered = too_large = slower = there_are = 0
    parts = [part for cluster in clusters for part in _sizes(cluster, workers)]
    for place, part in enumerate(parts):
        share = (most - considered) // (len(parts) - place)
        found = _best(workload, part, global_batch, run, workers, share, correction)
        considered += found.considered
        too_large += found.too_large
        there_are += found.there_are
        slower += found.slower
        kept += found.plans
    if not considered:
        raise PlanError(
            f"no plan divides {global_batch} samples over these clusters; give another batch, such as "
            f"{2 ** max(0, global_batch - 1).bit_length()}"
        )
    if not kept:
        raise PlanError(
            f"none of {considered} plans fits the memory of its devices; give larger devices, more nodes "
            "or a smaller batch"
        )
    order = sorted(kept, key=latest_s)
    return Search(
        plans=tuple(order),
        considered=considered,
        too_large=too_large,
        slower=slower,
        there_are=there_are,
        deadline_s=deadline_s,
    )


def _sizes(cluster: Cluster, workers: int | None) -> Iterator[Cluster]:
    """The cluster with fewer nodes: powers of two and all of them; of unequal nodes, as it is."""
    if cluster.others:
        if workers is None or workers <= cluster.devices:
            yield cluster
        return
    if workers is not None:
        nodes = -(-workers // cluster.devices_per_node)
        if nodes <= cluster.nodes:
            yield replace(cluster, nodes=nodes)
        return
    count = 1
    while count < cluster.nodes:
        yield replace(cluster, nodes=count)
        count *= 2
    yield cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    plans: list[Simulation]
    considered: int
    too_large: int
    slower: int
    there_are: int


def _best(
    workload: Workload,
    cluster: Cluster,
    global_batch: int,
    run: TrainingRun,
    workers: int | None,
    most: int,
    correction: Correction | None,
) -> _Found:
    """The best plans on all devices of a cluster."""
    ranks = workers or cluster.devices
    bounds: list[tuple[float, Plan]] = []
    considered = too_large = slower = 0
    every = list(plans(ranks, cluster.devices_per_node, global_batch))
    count = min(most, len(every))
    for plan in (every[place * len(every) // count] for place in range(count)):  # of all kinds
        try:
            placed = cluster_work(workload, cluster, plan, global_batch // plan.data, correction)
            work, room = placed.work, placed.memory_bytes
            fits = room is None or memory_of(work, workload, plan, placed.parts).reserved <= room
        except (PlanError, HardwareError):  # more stages than layers, nothing to split
            continue
        considered += 1
        if not fits:
            too_large += 1
            continue
        passes = sum(
            (2 if plan.recompute else 1) * layer.forward_s + layer.backward_s for layer in work.layers
        )
        at_least_s = passes * plan.micro_batches / plan.stages
        bounds.append((at_least_s * (1 + work.interval + cluster_interval(plan)), plan))
    kept: list[Simulation] = []
    step = replace(run, samples=None, epochs=None)  # failures of a whole training take longer to play
    for bound_s, plan in sorted(bounds, key=lambda pair: pair[0]):
        if len(kept) == NEAR and bound_s >= kept[-1].interval_s[1]:
            slower += 1
            continue
        try:
            each = global_batch // plan.data
            made = simulate(workload, cluster, plan, batch=each, run=step, correction=correction)
        except LaptimeError:
            continue
        kept = sorted([*kept, made], key=lambda made: made.interval_s[1])[:NEAR]
    kept = [
        simulate(workload, cluster, made.plan, batch=made.batch, run=run, correction=correction)
        for made in kept
    ]
    return _Found(plans=kept, considered=considered, too_large=too_large, slower=slower, there_are=len(every))


def plans(workers: int, per_node: int, global_batch: int) -> Iterator[Plan]:
    """Synchronous plans for so many workers: all degrees that divide, schedules, shards, recomputing."""
    for feature in _divisors(workers, per_node):
        for stages in _divisors(workers // feature, MOST_STAGES):
            data = workers // feature // stages
            if global_batch % data:
                continue
            each = global_batch // data
            for micro in _divisors(each, LARGEST_MICRO_BATCH):
                if each // micro <= MOST_MICRO_BATCHES:
                    yield from _variants(data, stages, feature, each // micro)


def _variants(data: int, stages: int, feature: int, micro_batches: int) -> Iterator[Plan]:
    if stages > 1 and micro_batches < 2:
        return
    schedules: list[tuple[str, int]] = [("1f1b", 1)]
    if stages > 1:
        schedules.append(("zero_bubble", 1))
        if micro_batches % stages == 0:
            schedules.append(("interleaved", 2))
    strategy = "hybrid" if stages * feature > 1 else "data"
    for schedule, chunks in schedules:
        for recompute in (False, True):
            for shards in {1, data} if stages == 1 else {1}:
                plan = Plan(
                    strategy="sharded" if shards > 1 else strategy,  # type: ignore[arg-type]
                    data=data,
                    stages=stages,
                    feature=feature,
                    sequence=feature > 1,
                    shards=shards,
                    schedule=schedule,  # type: ignore[arg-type]
                    chunks=chunks,
                    micro_batches=micro_batches,
                    recompute=recompute,
                )
                yield plan


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]
