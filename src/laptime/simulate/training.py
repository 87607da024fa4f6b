"""A training of a plan on a cluster: steps, waits, checkpoints, failures; hours and money."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
import simpy
from numpy.typing import NDArray

from laptime import hardware
from laptime.errors import PlanError
from laptime.estimate.data_parallel import DDP
from laptime.estimate.run_correction import Correction
from laptime.hardware import Device
from laptime.hardware.cluster import Cluster
from laptime.model import Account, Workload
from laptime.model.constants import Source
from laptime.model.plan import SERVED, Plan
from laptime.simulate.cluster_work import cluster_work
from laptime.simulate.exchange_order import ExchangeOrder, ServerLink, WorkerPace
from laptime.simulate.exchange_order import play as play_exchanges
from laptime.simulate.fabric import Fabric, Group, LinkHabits, habits_of
from laptime.simulate.memory import RankMemory, memory_of
from laptime.simulate.step import PlayedStep
from laptime.simulate.step import play as play_step
from laptime.simulate.work import RankWork

SPREAD: Annotated[float, Source("Standard deviation between devices; fitted to nodes of 2 to 8 GPUs.")] = (
    DDP.spread
)
_INTERVAL = Source(
    "Added to a device's interval: p90 against published rows (`python -m benchmarks.clusters`), 268 of data "
    "parallel and sharded training (0.125), 98 with stages or split features (0.12, widened by a quarter: "
    "the model was mended on those rows).",
    "of the step",
)
REPLICAS_INTERVAL: Annotated[float, _INTERVAL] = 0.13
PIPELINES_INTERVAL: Annotated[float, _INTERVAL] = 0.15
RESTART_S: Annotated[
    float, Source("From a failure until training goes on. Llama 3 restarted in minutes; a guess of ten.")
] = 600.0
CHECKPOINT_S: Annotated[float, Source("Between two checkpoints, where nothing is said: half an hour.")] = (
    1800.0
)
STEPS = 100
MOST_SAMPLES = 10**9  # of a replica's step
MOST_DRAWS = 2_000_000  # numbers drawn at once


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """How much is trained, and what happens meanwhile."""

    steps: int = STEPS  # that are played
    samples: int | None = None  # of an epoch
    epochs: int | None = None
    jitter: float = 0.0  # standard deviation of a rank's step from one to the next, relative
    data_s: float = 0.0  # that a batch of all ranks takes to arrive, beside the step before it
    checkpoint_every_s: float = CHECKPOINT_S
    restart_s: float = RESTART_S
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("samples", 1), ("epochs", 1), ("seed", 0)):
            count = getattr(self, name)
            if count is not None and (type(count) is not int or count < least):
                raise PlanError(f"{name} is {count!r}; give a whole number from {least} up")
        for name in ("jitter", "data_s", "restart_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise PlanError(f"{name} is {getattr(self, name)!r}; give a number from 0 up")
        if not 0 < self.checkpoint_every_s < math.inf:
            raise PlanError(f"checkpoint_every_s is {self.checkpoint_every_s!r}; give more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Failures of a whole training, as one draw of them fell out."""

    failures: int = 0
    lost_s: float = 0.0  # work since the last checkpoint, done again
    restart_s: float = 0.0
    checkpoint_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A plan on a cluster. All of it is simulated, nothing measured."""

    network: str
    cluster: Cluster
    plan: Plan
    batch: int  # samples of a replica in a step
    precision: str
    step: PlayedStep  # of ranks that nobody delays
    step_times_s: NDArray[np.float64] = field(hash=False, compare=False)
    slowest: NDArray[np.int64] = field(hash=False, compare=False)  # the rank that others waited for, by step
    waiting_s: float  # mean wait for the slowest rank
    data_wait_s: float
    interval: float  # half width, relative
    memory: RankMemory
    device_memory_bytes: float | None
    paces: tuple[float, ...] = ()  # computing of each rank over that of its stage's slowest device; (): equal
    exchanges: ExchangeOrder | None = field(default=None, hash=False, compare=False)  # with parameter servers
    faults: Faults = Faults()
    samples: int | None = None
    epochs: int | None = None
    flops: float = 0.0  # of a step, all replicas together, without what is computed again
    peak_flops: float = 0.0  # a second, of the device that computes longest
    notes: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """The mean step."""
        return float(self.step_times_s.mean())

    @property
    def interval_s(self) -> tuple[float, float]:
        """Nine in ten should be inside."""
        return self.step_s * (1 - self.interval), self.step_s * (1 + self.interval)

    @property
    def global_batch(self) -> int:
        """Samples of a step, all replicas together."""
        return self.batch * self.plan.data

    @property
    def samples_per_s(self) -> float:
        """Of all ranks."""
        return self.global_batch / self.step_s

    @property
    def utilization(self) -> float:
        """FLOPs of the network over those that all devices could do meanwhile (MFU)."""
        return self.flops / self.step_s / self.plan.workers / self.peak_flops

    @property
    def fits(self) -> bool | None:
        """Whether the rank that needs most has the memory; None where that is not known."""
        room = self.device_memory_bytes
        return None if room is None else self.memory.reserved <= room

    @property
    def steps(self) -> int | None:
        """Of the whole training."""
        if self.samples is None or self.epochs is None:
            return None
        return -(-self.samples // self.global_batch) * self.epochs

    @property
    def training_s(self) -> float | None:
        """Of the whole training, failures included."""
        if self.steps is None:
            return None
        faults = self.faults
        return self.steps * self.step_s + faults.lost_s + faults.restart_s + faults.checkpoint_s

    @property
    def nodes(self) -> int:
        """That are paid for."""
        return -(-self.plan.workers // self.cluster.devices_per_node)

    @property
    def dollars_per_hour(self) -> float | None:
        """Of all nodes that the plan takes."""
        return self.cluster.dollars_of(self.nodes)

    @property
    def dollars(self) -> float | None:
        """Of the whole training."""
        if self.training_s is None or self.dollars_per_hour is None:
            return None
        return self.training_s / 3600 * self.dollars_per_hour

    def shares(self) -> dict[Account, float]:
        """Seconds of a mean step by account, over all stages; waits for slow ranks are communication."""
        seconds: dict[Account, float] = {}
        for rank in self.step.ranks:
            for account, each in rank.accounts().items():
                seconds[account] = seconds.get(account, 0.0) + each / len(self.step.ranks)
        seconds[Account.DATA_WAIT] = self.data_wait_s
        # What is left: waits for slow ranks and for servers, averages of `local`.
        waiting_s = self.step_s - sum(seconds.values())
        seconds[Account.COMMUNICATION] = seconds.get(Account.COMMUNICATION, 0.0) + waiting_s
        return {account: value for account, value in seconds.items() if value}

    @property
    def uneven_s(self) -> float:
        """Mean wait of ranks on faster devices for those on slower ones."""
        if not self.paces or self.exchanges is not None:
            return 0.0
        return (1 - sum(self.paces) / len(self.paces)) * self.step.compute_s

    @property
    def bottleneck(self) -> str:
        """What takes most of the step beside computing, and how much."""
        shares = self.shares()
        lost = {
            "communication": shares.get(Account.COMMUNICATION, 0.0),
            "pipeline bubbles": shares.get(Account.IDLE, 0.0),
            "waiting for data": self.data_wait_s,
        }
        name, seconds = max(lost.items(), key=lambda pair: pair[1])
        if seconds < 0.05 * self.step_s:
            return f"computing: {1 - sum(lost.values()) / self.step_s:.0%} of the step"
        return f"{name}: {seconds / self.step_s:.0%} of the step"


def simulate(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    *,
    batch: int | None = None,
    run: TrainingRun = TrainingRun(),  # noqa: B008
    habits: LinkHabits | None = None,
    correction: Correction | None = None,
) -> Simulation:
    """Play a plan; `batch` samples for each replica, by default as many as the workload has.

    habits      what collectives reach of links; by default those of NCCL, between CPUs of gloo
    correction  what a run of one worker took, which corrects the predicted times of layers
    """
    batch = workload.batch if batch is None else batch
    if type(batch) is not int or not 1 <= batch <= MOST_SAMPLES:
        raise PlanError(f"batch is {batch!r}; give a whole number from 1 to {MOST_SAMPLES:,}")
    plan = _as_stored(plan, workload)
    placed = cluster_work(workload, cluster, plan, batch, correction)
    work = placed.work
    fabric = Fabric(cluster=cluster, habits=habits or habits_of(placed.device))
    alone = group_of(plan)
    step = play_step(work, alone, fabric, parts=placed.parts)
    exchanges = None
    if plan.strategy in SERVED:
        exchanges = served(work, step, plan, fabric, run, placed.paces)
        base_s = _mean_step_s(exchanges)
        times, slowest, waiting = np.full(run.steps, base_s), np.zeros(run.steps, dtype=np.int64), 0.0
    else:
        base_s = step.step_s + averaging_s(work, plan, fabric)
        times, slowest = _delayed(base_s, step.compute_s, plan, cluster, run, placed.paces)
        waiting = float(times.mean()) - base_s
    data_wait_s = max(0.0, run.data_s - float(times.mean()))
    made = Simulation(
        network=workload.network,
        cluster=cluster,
        plan=plan,
        batch=batch,
        precision=workload.precision,
        step=step,
        step_times_s=times + data_wait_s,
        slowest=slowest,
        waiting_s=waiting,
        data_wait_s=data_wait_s,
        interval=work.interval + cluster_interval(plan),
        memory=memory_of(work, workload, plan, placed.parts),
        device_memory_bytes=placed.memory_bytes,
        paces=placed.paces,
        flops=workload.flops / workload.batch * batch * plan.data,
        peak_flops=placed.device.peak(workload.precision),
        exchanges=exchanges,
        samples=run.samples,
        epochs=run.epochs,
        notes=(*workload.notes, *_notes(correction, placed.device, work)),
    )
    return replace(made, faults=_faults(made, run))


def _as_stored(plan: Plan, workload: Workload) -> Plan:
    """Parameters and gradients travel as the network holds them, if that is smaller than the plan says."""
    if not workload.parameters:
        return plan
    each = max(1, round(workload.memory.parameters / workload.parameters))
    if each not in (1, 2):
        return plan
    return replace(
        plan,
        parameter_bytes=min(each, plan.parameter_bytes),
        gradient_bytes=min(each, plan.gradient_bytes),
    )


def _mean_step_s(exchanges: ExchangeOrder) -> float:
    """Of workers that may differ: as long as if all made as many gradients a second as they do together."""
    workers = range(len(exchanges.workers))
    ends_s = [float(exchanges.answered_s[exchanges.worker == worker].max()) for worker in workers]
    each = len(exchanges) / len(ends_s)
    return len(ends_s) / sum(each / end_s for end_s in ends_s)


def _notes(correction: Correction | None, device: Device, work: RankWork) -> Iterator[str]:
    if correction is not None:
        yield correction.note(device, correction.kept(device, work.batch))


def cluster_interval(plan: Plan) -> float:
    """What is added to a device's own interval, relative."""
    if plan.workers == 1:
        return 0.0
    return REPLICAS_INTERVAL if plan.stages * plan.feature == 1 else PIPELINES_INTERVAL


def expected_slowest(ranks: int) -> float:
    """Standard deviations by which the largest of n normal numbers lies above their mean (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _delayed(
    step_s: float,
    compute_s: float,
    plan: Plan,
    cluster: Cluster,
    run: TrainingRun,
    paces: Sequence[float] = (),
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Steps in which all wait for the slowest rank, and which one that was."""
    random = np.random.default_rng(run.seed)
    ranks = plan.workers
    pace = np.zeros(ranks)
    if ranks > 1:
        pace = random.normal(0.0, SPREAD, ranks)
        # The largest of these is that of an average draw, so that two seeds agree on the mean.
        pace *= expected_slowest(ranks) * SPREAD / pace.max() if pace.max() > 0 else 1.0
        pace += slow_ranks(plan, cluster, run.seed) - 1
    if paces:
        pace -= 1 - np.array(paces)  # faster devices delay nobody
    together = plan.average_every if plan.strategy == "local" else 1  # steps until all wait for each other
    waits = -(-run.steps // together)
    times = np.empty(waits)
    slowest = np.empty(waits, dtype=np.int64)
    each = max(1, MOST_DRAWS // ranks)
    for begin in range(0, waits, each):
        count = min(each, waits - begin)
        delays = np.broadcast_to(pace, (count, ranks))
        if run.jitter:
            delays = delays + random.normal(0.0, run.jitter / together**0.5, (count, ranks))
        slowest[begin : begin + count] = delays.argmax(axis=1)
        times[begin : begin + count] = step_s + compute_s * np.maximum(0.0, delays.max(axis=1))
    return times.repeat(together)[: run.steps], slowest.repeat(together)[: run.steps]


def slow_ranks(plan: Plan, cluster: Cluster, seed: int) -> NDArray[np.float64]:
    """Times as long as each rank takes, by the slow nodes of the cluster."""
    nodes = -(-plan.workers // cluster.devices_per_node)
    slow = np.random.default_rng([seed, nodes]).random(nodes) < cluster.slow_share
    factors: NDArray[np.float64] = np.where(slow, cluster.slowdown, 1.0)
    return factors.repeat(cluster.devices_per_node)[: plan.workers]


def averaging_s(work: RankWork, plan: Plan, fabric: Fabric) -> float:
    """Of `local`: the average of all parameters, spread over the steps between two of them."""
    if plan.strategy != "local":
        return 0.0
    size = sum(layer.parameters for layer in work.layers) * plan.gradient_bytes
    beside = group_of(plan).data  # ranks of a group, each of which averages with its like
    groups = plan.data // beside
    room = fabric.cluster.devices_per_node
    across = Group(ranks=groups, per_node=max(1, min(room // beside, groups)), sharers=min(room, beside))
    return fabric.seconds("all_reduce", size, across) / plan.average_every


# -- parameter servers ---------------------------------------------------------------------------------------


def group_of(plan: Plan) -> Plan:
    """What is synchronous within itself: a worker of `asynchronous`, a group of `mixed` or `local`."""
    if plan.strategy not in (*SERVED, "local"):
        return plan
    alone = plan.strategy == "asynchronous" or (plan.strategy == "local" and plan.groups == 1)
    ranks = 1 if alone else plan.data // plan.groups
    return replace(plan, strategy="data", data=ranks, groups=1, servers=1, staleness=None)


def served(
    work: RankWork,
    step: PlayedStep,
    plan: Plan,
    fabric: Fabric,
    run: TrainingRun,
    relative: Sequence[float] = (),
) -> ExchangeOrder:
    """Gradients to the servers and parameters back, nobody waits for the others."""
    count = plan.groups if plan.strategy == "mixed" else plan.data
    inside, between = hardware.cluster_links(fabric.cluster)
    link = between or inside
    if link is None:
        raise PlanError(f"{fabric.cluster.name} has no link to parameter servers; give `between` in its file")
    rails = fabric.cluster.rails if between is not None else 1
    bandwidth = link.bandwidth * rails * fabric.habits.between
    size = sum(layer.parameters for layer in work.layers) * plan.gradient_bytes
    over_s = size / bandwidth + link.latency_s
    applied_s = sum(layer.update_s for layer in work.layers)
    spread = float(np.hypot(SPREAD, run.jitter))
    computing_s = step.step_s - applied_s  # the server updates, not the worker
    each = plan.data // count  # ranks of a worker
    slow = slow_ranks(plan, fabric.cluster, run.seed)
    paces = [
        WorkerPace(
            step_s=computing_s * max(relative[first : first + each], default=1.0),
            slowdown=float(slow[first : first + each].max()),
            spread=spread,
            link=first // fabric.cluster.devices_per_node,
        )
        for first in range(0, plan.data, each)
    ]
    return play_exchanges(
        paces,
        ServerLink(
            push_s=over_s,
            pull_s=over_s,
            apply_s=applied_s,
            servers=plan.servers,
            worker_push_s=over_s,
            worker_pull_s=over_s,
        ),
        updates=run.steps,
        staleness=plan.staleness,
        seed=run.seed,
    )


# -- failures ------------------------------------------------------------------------------------------------


def _faults(made: Simulation, run: TrainingRun) -> Faults:
    """Failures of nodes over the whole training, one draw of them, on the virtual clock."""
    hours, steps = made.cluster.node_hours_between_failures, made.steps
    if steps is None:
        return Faults()
    needed_s = steps * made.step_s
    saved_s = _checkpoint_s(made)
    if hours is None:
        return Faults(checkpoint_s=needed_s // run.checkpoint_every_s * saved_s)
    env = simpy.Environment()
    random = np.random.default_rng(run.seed + 1)
    between_s = hours * 3600 / made.nodes
    failures, total = 0, {"lost_s": 0.0, "restart_s": 0.0, "checkpoint_s": 0.0}

    def training() -> Generator[simpy.Event, Any, None]:
        nonlocal failures
        done = 0.0
        while done < needed_s:
            part = min(run.checkpoint_every_s, needed_s - done)
            fails_s = float(random.exponential(between_s))
            if fails_s < part + saved_s:
                failures += 1
                total["lost_s"] += fails_s
                total["restart_s"] += run.restart_s
                if failures > 1_000_000:
                    raise PlanError(
                        "nodes fail more often than a checkpoint takes; give a shorter checkpoint_every or "
                        "more node_hours_between_failures"
                    )
                yield env.timeout(fails_s + run.restart_s)
                continue
            done += part
            total["checkpoint_s"] += saved_s
            yield env.timeout(part + saved_s)

    env.process(training())
    env.run()
    return Faults(failures=failures, **total)


def _checkpoint_s(made: Simulation) -> float:
    """Parameters and optimizer state, written by all nodes at once to their storage."""
    name = made.cluster.storage
    if name is None:
        return 0.0
    per_node = made.cluster.devices_per_node
    # Replicas on a node save the same once; what is divided among them, all of it.
    replicas = min(max(1, per_node // made.plan.feature), made.plan.data)
    ranks = min(per_node, made.plan.workers)
    parameters = made.memory.parameters * ranks / (replicas if made.plan.shards == 1 else 1)
    divided = max(made.plan.shards, made.plan.state_shards) > 1
    size = parameters + made.memory.state * ranks / (1 if divided else replicas)
    return size / hardware.storage(name).read_bandwidth
