"""The links of a cluster as groups of ranks share them, and how long a collective takes over them.

Ranks are placed as Megatron-LM does: those that split features next to each other, then the replicas, then
the stages. Ranks of a group that are in different nodes share their nodes' network links with the other
groups of the same kind, which exchange at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from laptime import hardware
from laptime.errors import HardwareError
from laptime.estimate.data_parallel import DDP, mesh_share
from laptime.hardware import Device, Link
from laptime.hardware.cluster import Cluster
from laptime.model.constants import Source
from laptime.model.plan import Plan

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send", "broadcast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkHabits:
    """What collectives reach of nominal links."""

    inside_beside: Annotated[
        float, Source("Of a node's links, beside a backward pass. Fitted by `python -m benchmarks.scaling`.")
    ] = DDP.link_share
    inside_alone: Annotated[
        float,
        Source(
            "Of a node's links, while nothing computes: NCCL's all-reduce reaches 360 to 390 of 450 GB/s "
            "bus bandwidth on eight H100 (nccl-tests, quoted in many reports)."
        ),
    ] = 0.8
    between: Annotated[
        float, Source("Of the network links. Set by `python -m benchmarks.clusters`; see docs/simulation.md.")
    ] = 0.7
    sync_s: Annotated[float, Source("To find out that all are there; fitted as above.")] = DDP.sync_s
    call_s: Annotated[
        float, Source("Of each exchange beside its bytes, above a link's latency; gloo takes a millisecond.")
    ] = 0.0
    contention: Annotated[
        float, Source("Seconds lost for each of hidden communication; fitted as above.")
    ] = DDP.contention


# gloo over TCP, between CPUs: what it reaches of a link, and that it computes itself. Set on rows of `data`
# on the test bed (`python -m benchmarks.testbed_simulation`).
GLOO = LinkHabits(
    inside_beside=1.0, inside_alone=1.0, between=0.95, sync_s=0.006, call_s=0.001, contention=0.0
)


def habits_of(device: Device) -> LinkHabits:
    """NCCL's between GPUs, gloo's between CPUs."""
    return GLOO if device.kind == "cpu" else LinkHabits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that exchange together."""

    ranks: int
    per_node: int  # of them on one node
    sharers: int = 1  # groups of this kind that use a node's network links at the same time
    core: bool = True  # crosses the network's core, which may be oversubscribed

    @property
    def nodes(self) -> int:
        """Nodes that it spans."""
        return math.ceil(self.ranks / self.per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a group has: bytes a second and seconds a hop, within a node and between nodes."""

    inside: float
    inside_latency_s: float
    between: float  # of one node, all its links, this group's share
    between_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A cluster's links."""

    cluster: Cluster
    habits: LinkHabits = LinkHabits()

    def way(self, group: Group, *, beside: bool) -> Way:
        """What a group has of the links; `beside` a backward pass less than alone."""
        inside, between = hardware.cluster_links(self.cluster)
        share = self.habits.inside_beside if beside else self.habits.inside_alone
        bandwidth = inside.bandwidth * self._wired(inside, group) if inside is not None else math.inf
        network = 0.0
        if between is not None:
            rails = self.cluster.rails * between.bandwidth * self.habits.between
            network = rails / (self.cluster.oversubscription if group.core else 1.0) / group.sharers
        return Way(
            inside=bandwidth * share,
            inside_latency_s=inside.latency_s if inside is not None else 0.0,
            between=network,
            between_latency_s=between.latency_s if between is not None else 0.0,
        )

    def _wired(self, inside: Link, group: Group) -> float:
        """The share of a device's link that a group has, by how the node is wired."""
        wiring, host = self.cluster.wiring, max(1, group.per_node * group.sharers // 2)
        if wiring == "mesh":
            return mesh_share(self.cluster.device, group.per_node)
        if wiring == "pairs" and group.per_node > 2:
            name = hardware.device(self.cluster.device).host_link
            return 1.0 if name is None else hardware.link(name).bandwidth / inside.bandwidth / host
        return 1 / host if wiring == "host" else 1.0

    def seconds(self, kind: Kind, size: float, group: Group, *, beside: bool = False) -> float:
        """How long a collective of `size` bytes takes, by the fastest way that it can be done."""
        if group.ranks == 1 or size <= 0:
            return 0.0
        way = self.way(group, beside=beside)
        return self.habits.call_s + min(method(size, group, way) for method in METHODS[kind].values())


def ring_all_reduce(size: float, group: Group, way: Way) -> float:
    """Ring all-reduce: 2(n-1)/n of the bytes cross each link, in 2(n-1) hops."""
    return 2 * _ring(size, group, way)


def _ring(size: float, group: Group, way: Way) -> float:
    """Half of it, a reduce-scatter or an all-gather: (n-1)/n of the bytes cross each link."""
    n = group.ranks
    hops = (n - group.nodes) * way.inside_latency_s
    slowest = way.inside if group.per_node > 1 else math.inf
    if group.nodes > 1:
        slowest = min(slowest, way.between)
        hops += group.nodes * way.between_latency_s - way.between_latency_s / n
    return (n - 1) / n * size / slowest + hops


def tree_all_reduce(size: float, group: Group, way: Way) -> float:
    """Double binary tree: the bytes cross each link twice, in 2·log₂ hops (Sanders, Speck, Träff 2009)."""
    inside = (group.per_node - 1) * way.inside_latency_s
    slowest = way.inside if group.per_node > 1 else math.inf
    if group.nodes > 1:
        slowest = min(slowest, way.between)
    return 2 * (size / slowest + inside + math.ceil(math.log2(group.nodes)) * way.between_latency_s)


def hierarchical_all_reduce(size: float, group: Group, way: Way) -> float:
    """Reduce-scatter in each node, all-reduce of the parts between nodes, all-gather in each node."""
    m, k = group.per_node, group.nodes
    within = _ring(size, Group(ranks=m, per_node=m), way) if m > 1 else 0.0
    # The parts of all devices of a node cross its links at the same time.
    across = (k - 1) / k * size / way.between + (k - 1) * way.between_latency_s if k > 1 else 0.0
    return 2 * (within + across)


def hierarchical_gather(size: float, group: Group, way: Way) -> float:
    """All-gather, or reduce-scatter, between nodes and then in each: what a ring of rails does."""
    return hierarchical_all_reduce(size, group, way) / 2


def all_to_all(size: float, group: Group, way: Way) -> float:
    """Each rank sends 1/n of its bytes to each other; those to other nodes share the node's links."""
    n, m = group.ranks, group.per_node
    within = size * (m - 1) / n / way.inside + way.inside_latency_s if m > 1 else 0.0
    across = 0.0
    if group.nodes > 1:
        across = m * size * (n - m) / n / way.between + way.between_latency_s
    return max(within, across)


def send(size: float, group: Group, way: Way) -> float:
    """One hop, within a node or between two."""
    if group.nodes > 1:
        return size / way.between + way.between_latency_s
    return size / way.inside + way.inside_latency_s


def broadcast(size: float, group: Group, way: Way) -> float:
    """A pipelined ring: the bytes cross each link once."""
    return _ring(size, group, way) * group.ranks / (group.ranks - 1)


Method = Callable[[float, Group, Way], float]
METHODS: Mapping[Kind, Mapping[str, Method]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
        "hierarchical": hierarchical_all_reduce,
    },
    "reduce_scatter": {"ring": _ring, "hierarchical": hierarchical_gather},
    "all_gather": {"ring": _ring, "hierarchical": hierarchical_gather},
    "all_to_all": {"direct": all_to_all},
    "send": {"direct": send},
    "broadcast": {"ring": broadcast},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroups:
    """The groups of a plan on a cluster."""

    feature: Group
    data: Group  # that average gradients, or share parameters
    replicas: Group  # of shards: the same part of the parameters
    state: Group  # that share the optimizer's state
    experts: Group
    same_experts: Group  # that hold the same experts
    neighbours: tuple[Group, ...]  # each stage and the next, the last and the first


def groups_of(plan: Plan, cluster: Cluster) -> PlanGroups:
    """Features within a node as far as they go, then replicas, then stages."""
    room = cluster.devices_per_node
    if plan.workers > cluster.devices:
        raise HardwareError(
            f"the plan takes {plan.workers} workers, {cluster.name} has {cluster.devices}; "
            f"give nodes={math.ceil(plan.workers / room)} or a smaller plan"
        )
    beside = min(plan.feature, room)  # ranks of one node that are in different data groups
    data_here = max(1, min(plan.data, room // beside))
    each = plan.feature * plan.data  # ranks of a stage
    pod = cluster.pod_nodes
    core = pod is None or math.ceil(plan.workers / room) > pod

    def neighbours(stage: int) -> Group:
        """From the middle of a stage to that of the next."""
        nodes = {(at * each + each // 2) // room for at in (stage % plan.stages, (stage + 1) % plan.stages)}
        far = len(nodes) > 1
        crosses = core and (pod is None or len({node // pod for node in nodes}) > 1)
        sharers = min(room, each) if far else 1
        return Group(ranks=2, per_node=1 if far else 2, sharers=sharers, core=crosses)

    groups = PlanGroups(
        feature=Group(ranks=plan.feature, per_node=beside),
        data=Group(
            ranks=plan.shards if plan.shards > 1 else plan.data,
            per_node=min(data_here, plan.shards if plan.shards > 1 else plan.data),
            sharers=beside,
        ),
        replicas=Group(
            ranks=plan.data // plan.shards,
            per_node=max(1, min(data_here // plan.shards, plan.data // plan.shards)),
            sharers=min(room, beside * min(plan.shards, data_here)),
        ),
        state=Group(ranks=plan.state_shards, per_node=min(data_here, plan.state_shards), sharers=beside),
        experts=Group(ranks=plan.experts, per_node=min(data_here, plan.experts), sharers=beside),
        same_experts=Group(
            ranks=plan.data // plan.experts,
            per_node=max(1, min(data_here // plan.experts, plan.data // plan.experts)),
            sharers=min(room, beside * min(plan.experts, data_here)),
        ),
        neighbours=tuple(map(neighbours, range(plan.stages * plan.chunks))),
    )
    if core:
        return groups
    named = ("feature", "data", "replicas", "state", "experts", "same_experts")
    return replace(groups, **{name: replace(getattr(groups, name), core=False) for name in named})
