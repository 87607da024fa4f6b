"""One step of a plan, played on SimPy's virtual clock.

Ranks that do the same are played once: one for each rank of a pipeline. Such a rank has a compute stream, and
its links, over which exchanges follow each other. What the compute stream waits for is exposed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Annotated, Any, NamedTuple

import simpy

from laptime import hardware
from laptime.errors import PlanError
from laptime.model import Account
from laptime.model.constants import Source
from laptime.model.layers import LOSS_LAYER, LayerSeconds
from laptime.model.plan import Plan
from laptime.simulate.fabric import Fabric, Group, Kind, LinkHabits, PlanGroups, groups_of
from laptime.simulate.schedules import ORDERS, Action, Pass
from laptime.simulate.work import INPUT_SHARE, Experts, LayerWork, RankWork, cut

BUCKET_BYTES: Annotated[float, Source("The default of DistributedDataParallel.")] = 25 * 2**20
FIRST_BUCKET_BYTES: Annotated[float, Source("Of its first bucket, so that it starts early.")] = 2**20
CAUSES = ("fill", "drain", "imbalance")

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a rank's compute stream does for a while."""

    start_s: float
    end_s: float
    account: Account
    layer: str = ""
    cause: str = ""  # of idle time in a pipeline

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTransfer:
    """An exchange of a rank with others."""

    kind: str
    bytes: float
    ranks: int
    start_s: float
    end_s: float
    layers: tuple[str, ...] = ()  # whose gradients or parameters it carries

    @property
    def seconds(self) -> float:
        """How long, without waiting for the link."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRank:
    """One rank's step. Its spans follow each other without gaps and end with the step."""

    stage: int
    spans: tuple[Span, ...]
    transfers: tuple[LinkTransfer, ...]
    compute_s: float

    def accounts(self) -> dict[Account, float]:
        """Seconds by account."""
        seconds: dict[Account, float] = {}
        for span in self.spans:
            seconds[span.account] = seconds.get(span.account, 0.0) + span.seconds
        return seconds

    def bubbles(self) -> dict[str, float]:
        """Idle seconds by cause."""
        seconds = dict.fromkeys(CAUSES, 0.0)
        for span in self.spans:
            if span.cause:
                seconds[span.cause] += span.seconds
        return seconds

    def layers(self) -> tuple[LayerSeconds, ...]:
        """Seconds of each layer by phase."""
        times: dict[str, dict[str, float]] = {}
        for span in self.spans:
            if span.layer:
                phase = "forward" if span.account is Account.LOSS else span.account.value
                phases = times.setdefault(span.layer, dict.fromkeys(("forward", "backward", "update"), 0.0))
                phases[phase] += span.seconds
        return tuple(
            LayerSeconds(layer=name, **{f"{phase}_s": value for phase, value in phases.items()})
            for name, phases in times.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """A step of a plan."""

    step_s: float
    ranks: tuple[PlayedRank, ...]  # one for each rank of a pipeline

    @property
    def compute_s(self) -> float:
        """Of the rank that computes longest."""
        return max(rank.compute_s for rank in self.ranks)

    @property
    def exposed_s(self) -> float:
        """Communication that the longest rank waits for."""
        return max(rank.accounts().get(Account.COMMUNICATION, 0.0) for rank in self.ranks)

    @property
    def bubble_share(self) -> float:
        """Idle time of all stages over all of their time."""
        idle = sum(rank.accounts().get(Account.IDLE, 0.0) for rank in self.ranks)
        return idle / (len(self.ranks) * self.step_s)


def play(
    work: RankWork, plan: Plan, fabric: Fabric, *, parts: Sequence[tuple[LayerWork, ...]] | None = None
) -> PlayedStep:
    """A steady step, without stragglers, faults and waits for data.

    parts  the layers of each stage, where they are known; otherwise as even as they can be
    """
    groups = groups_of(plan, fabric.cluster)
    if plan.experts > 1 and not any(layer.experts for layer in work.layers):
        raise PlanError("no layer of the network is called an expert; leave experts out")
    env = simpy.Environment()
    parts = parts or cut(work.layers, plan.stages * plan.chunks)
    passed: dict[tuple[Pass, int, int], simpy.Event] = {}
    seconds = _remembered(fabric)
    ranks = [
        _Rank(env, rank, parts, work.host_s, plan, fabric.habits, groups, seconds, passed)
        for rank in range(plan.stages)
    ]
    for rank in ranks:
        env.process(rank.run())
    env.run()
    step_s = max(rank.at_s for rank in ranks)
    return PlayedStep(step_s=step_s, ranks=tuple(rank.played(step_s) for rank in ranks))


Seconds = Callable[[Kind, float, Group, bool], float]


def _remembered(fabric: Fabric) -> Seconds:
    """How long an exchange takes; those of a step are alike, and links are looked up once."""
    links = tuple(link for link in hardware.cluster_links(fabric.cluster) if link is not None)
    fabric = replace(fabric, cluster=replace(fabric.cluster, links=links))

    @cache
    def seconds(kind: Kind, size: float, group: Group, beside: bool) -> float:
        return fabric.seconds(kind, size, group, beside=beside)

    return seconds


@dataclass(slots=True)
class _Bucket:
    """Gradients that wait to be exchanged."""

    bytes: float = 0.0
    layers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Link:
    """ExchangeOrder over it follow each other."""

    free_s: float = 0.0


class _Block(NamedTuple):
    """Layers whose parameters are gathered and scattered together."""

    name: str
    layers: tuple[LayerWork, ...]
    parameters: int
    names: tuple[str, ...]  # of layers with parameters

    @classmethod
    def of(cls, layers: Sequence[LayerWork]) -> tuple[_Block, ...]:
        """The blocks of layers, in their order."""
        blocks = []
        for name, group in groupby(layers, key=lambda layer: layer.block):
            members = tuple(group)
            named = tuple(layer.name for layer in members if layer.parameters)
            blocks.append(cls(name, members, sum(layer.parameters for layer in members), named))
        return tuple(blocks)


class _Chunk(NamedTuple):
    """Neighbouring layers of a rank."""

    layers: tuple[LayerWork, ...]
    forward: tuple[_Block, ...]
    backward: tuple[_Block, ...]
    received_bytes: float  # from the stage before: gradients of these activations are as large

    @classmethod
    def of(cls, parts: Sequence[tuple[LayerWork, ...]], place: int) -> _Chunk:
        """The part at that place of the network."""
        layers = parts[place]
        received = parts[place - 1][-1].output_bytes if place else 0.0
        return cls(layers, _Block.of(layers), _Block.of(layers[::-1]), received)


class _Rank:
    """A rank of a pipeline; of a plan without stages, the only one.

    Nobody else uses its links, so that a pass is reckoned as a whole, from `at_s` on. SimPy's clock follows
    after each pass and carries what ranks send each other.
    """

    def __init__(
        self,
        env: simpy.Environment,
        rank: int,
        parts: Sequence[tuple[LayerWork, ...]],
        host_s: float,
        plan: Plan,
        habits: LinkHabits,
        groups: PlanGroups,
        seconds: Seconds,
        passed: dict[tuple[Pass, int, int], simpy.Event],
    ) -> None:
        self.env, self.rank, self.host_s, self.plan, self.habits = env, rank, host_s, plan, habits
        self.groups, self.seconds, self.passed = groups, seconds, passed
        self.chunks = [_Chunk.of(parts, place) for place in range(rank, len(parts), plan.stages)]
        self.inside, self.between = _Link(), _Link()
        self.sending = _Link()  # what stages hand on does not wait for gradients: it has channels of its own
        self.at_s = 0.0  # of the compute stream
        self.spans: list[Span] = []
        self.transfers: list[LinkTransfer] = []
        self.arrived_s: float | None = None  # of gradients, the last; None where none are exchanged
        self.gathered: dict[str, float] = {}  # when parameters of a block are there, for the pass that runs
        self.following: list[
            tuple[float, int, float, tuple[str, ...]]
        ] = []  # averages of scattered gradients
        self.gathering_s = 0.0  # that the compute stream has waited for parameters
        self.forwards_left = plan.micro_batches * len(self.chunks)
        self.bucket, self.buckets = _Bucket(), 0

    # -- the compute stream ------------------------------------------------------------------------------

    def run(self) -> Process:
        """A step: passes in the schedule's order, exchanges of gradients, the update."""
        self._take(self.host_s, Account.HOST)
        for action in ORDERS[self.plan.schedule](
            self.rank, self.plan.stages, self.plan.micro_batches, self.plan.chunks
        ):
            needed = self._input(action)
            if needed is not None:
                arrives_s = yield needed
                self._wait_until(arrives_s, Account.IDLE, self._cause(action))
            self._pass(action)
            if self.at_s > self.env.now:
                yield self.env.timeout(self.at_s - self.env.now)
            self._hand_on(action)
        self._exchanged()
        layers = [layer for chunk in self.chunks for layer in chunk.layers]
        sharers = max(self.plan.shards, self.plan.state_shards)
        for layer in layers:
            self._take(layer.update_s / sharers, Account.UPDATE, layer.name)
        size = sum(layer.parameters for layer in layers) * self.plan.parameter_bytes
        self._wait_for("all_gather", size, self.groups.state)  # each rank has updated its part

    def _exchanged(self) -> None:
        """Wait for the gradients; what was hidden has slowed the backward pass down."""
        computed_s = self.at_s
        self._send_bucket()
        self._follow(math.inf)
        if self.arrived_s is None:
            return
        self._wait_until(max(computed_s, self.arrived_s) + self.habits.sync_s, Account.COMMUNICATION)
        self.transfers.sort(key=lambda each: each.end_s)
        beside = sum(
            max(0.0, min(each.end_s, computed_s) - each.start_s) for each in self.transfers if each.layers
        )
        hidden = beside - self.gathering_s
        self._take(self.habits.contention * max(0.0, hidden), Account.BACKWARD)

    def _cause(self, action: Action) -> str:
        if action.kind is Pass.FORWARD and action.micro == 0 and action.chunk == 0:
            return "fill"
        return "imbalance" if self.forwards_left else "drain"

    def _input(self, action: Action) -> simpy.Event | None:
        """What another stage computes."""
        if action.kind is Pass.WEIGHT:
            return None
        at, last = self._place(action.chunk), self.plan.stages * self.plan.chunks - 1
        if action.kind is Pass.FORWARD:
            return self._event(Pass.FORWARD, action.micro, at - 1) if at else None
        return self._event(Pass.BACKWARD, action.micro, at + 1) if at < last else None

    def _event(self, kind: Pass, micro: int, place: int) -> simpy.Event:
        """That it is known when a pass' result arrives; its value is when."""
        key = kind, micro, place
        if key not in self.passed:
            self.passed[key] = self.env.event()
        return self.passed[key]

    def _place(self, chunk: int) -> int:
        return chunk * self.plan.stages + self.rank

    def _pass(self, action: Action) -> None:
        chunk = self.chunks[action.chunk]
        if action.kind is Pass.FORWARD:
            self._forward(chunk.forward)
            self.forwards_left -= 1
            return
        if action.kind is Pass.WEIGHT:
            share = 1 - INPUT_SHARE
        else:
            share = INPUT_SHARE if action.kind is Pass.INPUT else 1.0
        inputs, weights = action.kind is not Pass.WEIGHT, action.kind is not Pass.INPUT
        last = weights and action.micro == self.plan.micro_batches - 1
        self._backward(chunk.backward, share, exchanges=inputs, weights=weights, last=last)

    def _forward(self, blocks: Sequence[_Block]) -> None:
        for place, block in enumerate(blocks):
            self._gather(blocks[place : place + 2])
            self._computed(block.layers, Account.FORWARD)
            self.gathered.pop(block.name, None)

    def _computed(self, layers: Sequence[LayerWork], account: Account) -> None:
        """Layers forward: in the forward pass, or again in the backward pass."""
        for layer in layers:
            charged = Account.LOSS if layer.name == LOSS_LAYER and account is Account.FORWARD else account
            self._experts(layer, Experts.FIRST)
            self._take(layer.forward_s, charged, layer.name)
            self._experts(layer, Experts.LAST)
            self._wait_for("all_reduce", layer.forward_bytes, self.groups.feature)

    def _backward(
        self, blocks: Sequence[_Block], share: float, *, exchanges: bool, weights: bool, last: bool
    ) -> None:
        for place, block in enumerate(blocks):
            self._gather(blocks[place : place + 2])
            if self.plan.recompute and exchanges:
                self._computed(block.layers[::-1], Account.BACKWARD)
            for layer in block.layers:
                if exchanges:
                    self._experts(layer, Experts.LAST)
                self._take(layer.backward_s * share, Account.BACKWARD, layer.name)
                if exchanges:
                    self._experts(layer, Experts.FIRST)
                    self._wait_for("all_reduce", layer.backward_bytes, self.groups.feature)
                if last and self.plan.shards == 1:
                    self._add_gradients(layer)
            self.gathered.pop(block.name, None)
            if self.plan.shards > 1 and weights:
                self._scatter(block, last=last)

    def _take(self, seconds: float, account: Account, layer: str = "") -> None:
        if seconds > 0:
            begin, self.at_s = self.at_s, self.at_s + seconds
            if self.at_s > begin:
                self.spans.append(Span(start_s=begin, end_s=self.at_s, account=account, layer=layer))

    def _wait_until(self, end_s: float, account: Account, cause: str = "") -> None:
        if end_s > self.at_s:
            self.spans.append(Span(start_s=self.at_s, end_s=end_s, account=account, cause=cause))
            self.at_s = end_s

    # -- exchanges ---------------------------------------------------------------------------------------

    def _over(
        self, kind: Kind, size: float, group: Group, layers: tuple[str, ...] = (), *, beside: bool = False
    ) -> float:
        """When an exchange that is asked for now ends; those over the same link follow each other."""
        if self.following:
            self._follow(self.at_s)
        return self._exchange(kind, size, group, layers, self.at_s, beside=beside)

    def _exchange(
        self, kind: Kind, size: float, group: Group, layers: tuple[str, ...], asked_s: float, *, beside: bool
    ) -> float:
        seconds = self.seconds(kind, size, group, beside)
        if seconds <= 0:
            return asked_s
        link = self.sending if kind == "send" else self.between if group.nodes > 1 else self.inside
        begin = max(asked_s, link.free_s)
        link.free_s = end = begin + seconds
        self.transfers.append(
            LinkTransfer(kind=kind, bytes=size, ranks=group.ranks, start_s=begin, end_s=end, layers=layers)
        )
        return end

    def _wait_for(self, kind: Kind, size: float, group: Group) -> None:
        """An exchange that the compute stream waits for."""
        if size > 0 and group.ranks > 1:
            self._wait_until(self._over(kind, size, group), Account.COMMUNICATION)

    def _hand_on(self, action: Action) -> None:
        """Send to the neighbour, while the next pass runs."""
        if action.kind is Pass.WEIGHT:
            return
        chunk = self.chunks[action.chunk]
        forward = action.kind is Pass.FORWARD
        size = chunk.layers[-1].output_bytes if forward else chunk.received_bytes
        # Each of the ranks that split features sends its part; without `sequence` they gather it again.
        arrives_s = self.at_s
        if self.plan.stages > 1 and size:
            neighbours = self.groups.neighbours[self.rank if forward else (self.rank or self.plan.stages) - 1]
            arrives_s = self._over("send", size / self.plan.feature, neighbours)
            if not self.plan.sequence:
                arrives_s += self.seconds("all_gather", size, self.groups.feature, False)
        kind = Pass.FORWARD if forward else Pass.BACKWARD
        self._event(kind, action.micro, self._place(action.chunk)).succeed(arrives_s)

    def _experts(self, layer: LayerWork, place: Experts) -> None:
        """Samples to the ranks of their experts, or back."""
        if self.plan.experts > 1 and place in layer.experts:
            self._wait_for("all_to_all", layer.output_bytes, self.groups.experts)

    def _add_gradients(self, layer: LayerWork) -> None:
        """DDP's buckets: what is full is exchanged while the pass goes on."""
        if self.groups.data.ranks == 1:
            return
        if layer.experts and self.plan.experts > 1:
            size = layer.parameters * self.plan.gradient_bytes
            self._arrives(
                self._over("all_reduce", size, self.groups.same_experts, (layer.name,), beside=True)
            )
            return
        self.bucket.bytes += layer.parameters * self.plan.gradient_bytes
        if layer.parameters:
            self.bucket.layers.append(layer.name)
        full = BUCKET_BYTES if self.buckets else FIRST_BUCKET_BYTES
        if self.bucket.bytes >= full:
            self._send_bucket()

    def _send_bucket(self) -> None:
        bucket, self.bucket = self.bucket, _Bucket()
        if bucket.bytes:
            self.buckets += 1
            names = tuple(dict.fromkeys(bucket.layers))
            state = self.groups.state
            if state.ranks == self.groups.data.ranks:  # each gets the mean of what it updates
                self._arrives(self._over("reduce_scatter", bucket.bytes, state, names, beside=True))
                return
            self._arrives(self._over("all_reduce", bucket.bytes, self.groups.data, names, beside=True))

    def _arrives(self, end_s: float) -> None:
        self.arrived_s = max(end_s, self.arrived_s or 0.0)

    def _gather(self, blocks: Sequence[_Block]) -> None:
        """Sharded parameters of a block, and of the next one beside it."""
        if self.plan.shards == 1:
            return
        for block in blocks:
            if block.name not in self.gathered:
                size = block.parameters * self.plan.parameter_bytes
                self.gathered[block.name] = self._over(
                    "all_gather", size, self.groups.data, block.names, beside=True
                )
        there_s = self.gathered[blocks[0].name]
        self.gathering_s += max(0.0, there_s - self.at_s)
        self._wait_until(there_s, Account.COMMUNICATION)

    def _scatter(self, block: _Block, *, last: bool) -> None:
        """Gradients of a block: each rank keeps the mean of its own shard."""
        size = block.parameters * self.plan.gradient_bytes
        if not size:
            return
        end = self._over("reduce_scatter", size, self.groups.data, block.names, beside=True)
        self._arrives(end)
        if last and self.groups.replicas.ranks > 1:
            shard = size / self.plan.shards
            heapq.heappush(self.following, (end, len(self.transfers), shard, block.names))

    def _follow(self, until_s: float) -> None:
        """Averages over replicas of what is scattered by then; they are asked for where that ends."""
        while self.following and self.following[0][0] <= until_s:
            asked_s, _, size, names = heapq.heappop(self.following)
            replicas = self.groups.replicas
            self._arrives(self._exchange("all_reduce", size, replicas, names, asked_s, beside=True))

    # -- the result --------------------------------------------------------------------------------------

    def played(self, step_s: float) -> PlayedRank:
        """The rank's step, which lasts as long as that of the slowest."""
        spans = list(self.spans)
        if self.at_s < step_s:
            # Until the first input of the next step; of plans without stages no rank ends early.
            spans.append(Span(start_s=self.at_s, end_s=step_s, account=Account.IDLE, cause="fill"))
        compute = (Account.FORWARD, Account.LOSS, Account.BACKWARD, Account.UPDATE, Account.HOST)
        return PlayedRank(
            stage=self.rank,
            spans=tuple(spans),
            transfers=tuple(sorted(self.transfers, key=lambda each: each.end_s)),
            compute_s=sum(span.seconds for span in spans if span.account in compute),
        )
