"""One step of a plan, played on SimPy's virtual clock.

Ranks that do the same are played once: one for each rank of a pipeline. Such a rank has a compute stream, and
its links, over which exchanges follow each other. What the compute stream waits for is exposed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any

import simpy

from laptime.errors import PlanError
from laptime.model import Account
from laptime.model.constants import Source
from laptime.model.layers import LOSS_LAYER, LayerSeconds
from laptime.model.plan import Plan
from laptime.simulate.fabric import Fabric, Group, Groups, Kind, groups_of
from laptime.simulate.schedules import ORDERS, Action, Pass
from laptime.simulate.work import INPUT_SHARE, LayerWork, RankWork, cut

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
class Transfer:
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
    transfers: tuple[Transfer, ...]
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


def play(work: RankWork, plan: Plan, fabric: Fabric) -> PlayedStep:
    """A steady step, without stragglers, faults and waits for data."""
    groups = groups_of(plan, fabric.cluster)
    if plan.experts > 1 and not any(layer.experts for layer in work.layers):
        raise PlanError("no layer of the network is called an expert; leave experts out")
    env = simpy.Environment()
    parts = cut(work.layers, plan.stages * plan.chunks)
    passed: dict[tuple[Pass, int, int], simpy.Event] = {}
    ranks = [
        _Rank(env, rank, parts[rank :: plan.stages], work, plan, fabric, groups, passed)
        for rank in range(plan.stages)
    ]
    for rank in ranks:
        env.process(rank.run())
    env.run()
    step_s = max(rank.ended_s for rank in ranks)
    return PlayedStep(step_s=step_s, ranks=tuple(rank.played(step_s) for rank in ranks))


@dataclass(slots=True)
class _Bucket:
    """Gradients that wait to be exchanged."""

    bytes: float = 0.0
    layers: list[str] = field(default_factory=list)


class _Rank:
    """A rank of a pipeline; of a plan without stages, the only one."""

    def __init__(
        self,
        env: simpy.Environment,
        rank: int,
        chunks: Sequence[tuple[LayerWork, ...]],
        work: RankWork,
        plan: Plan,
        fabric: Fabric,
        groups: Groups,
        passed: dict[tuple[Pass, int, int], simpy.Event],
    ) -> None:
        self.env, self.rank, self.chunks, self.work = env, rank, chunks, work
        self.plan, self.fabric, self.groups, self.passed = plan, fabric, groups, passed
        self.inside, self.between = simpy.Resource(env), simpy.Resource(env)
        self.spans: list[Span] = []
        self.transfers: list[Transfer] = []
        self.arrivals: list[simpy.Event] = []  # of gradients
        self.gathered: dict[str, simpy.Event] = {}  # parameters of a block, for the pass that runs
        self.forwards_left = plan.micro_batches * len(chunks)
        self.bucket, self.buckets = _Bucket(), 0
        self.ended_s = 0.0

    # -- the compute stream ------------------------------------------------------------------------------

    def run(self) -> Process:
        """A step: passes in the schedule's order, exchanges of gradients, the update."""
        yield from self._take(self.work.host_s, Account.HOST)
        for action in ORDERS[self.plan.schedule](
            self.rank, self.plan.stages, self.plan.micro_batches, self.plan.chunks
        ):
            yield from self._await_input(action)
            yield from self._pass(action)
        computed_s = self.env.now
        self._send_bucket()
        yield from self._exchanged(computed_s)
        layers = [layer for chunk in self.chunks for layer in chunk]
        sharers = max(self.plan.shards, self.plan.state_shards)
        for layer in layers:
            yield from self._take(layer.update_s / sharers, Account.UPDATE, layer.name)
        size = sum(layer.parameters for layer in layers) * self.plan.parameter_bytes
        yield from self._wait_for("all_gather", size, self.groups.state)  # each rank has updated its part
        self.ended_s = self.env.now

    def _exchanged(self, computed_s: float) -> Process:
        """Wait for the gradients; what was hidden has slowed the backward pass down."""
        if not self.arrivals:
            return
        begin = self.env.now
        yield self.env.all_of(self.arrivals)
        yield self.env.timeout(self.fabric.habits.sync_s)
        self._span(begin, Account.COMMUNICATION)
        hidden = sum(
            max(0.0, min(each.end_s, computed_s) - each.start_s) for each in self.transfers if each.layers
        )
        yield from self._take(self.fabric.habits.contention * hidden, Account.BACKWARD)

    def _await_input(self, action: Action) -> Process:
        """Wait for what another stage computes."""
        needed = self._input(action)
        begin = self.env.now
        if needed is not None and not needed.processed:
            yield needed
            if self.env.now > begin:
                self._span(begin, Account.IDLE, cause=self._cause(action))

    def _cause(self, action: Action) -> str:
        if action.kind is Pass.FORWARD and action.micro == 0 and action.chunk == 0:
            return "fill"
        return "imbalance" if self.forwards_left else "drain"

    def _input(self, action: Action) -> simpy.Event | None:
        if action.kind is Pass.WEIGHT:
            return None
        at, last = self._place(action.chunk), self.plan.stages * self.plan.chunks - 1
        if action.kind is Pass.FORWARD:
            return self._event(Pass.FORWARD, action.micro, at - 1) if at else None
        return self._event(Pass.BACKWARD, action.micro, at + 1) if at < last else None

    def _event(self, kind: Pass, micro: int, place: int) -> simpy.Event:
        return self.passed.setdefault((kind, micro, place), self.env.event())

    def _place(self, chunk: int) -> int:
        return chunk * self.plan.stages + self.rank

    def _pass(self, action: Action) -> Process:
        layers = self.chunks[action.chunk]
        if action.kind is Pass.FORWARD:
            yield from self._forward(layers)
            self.forwards_left -= 1
            self._hand_on(Pass.FORWARD, action, layers[-1].output_bytes)
            return
        if action.kind is Pass.WEIGHT:
            share = 1 - INPUT_SHARE
        else:
            share = INPUT_SHARE if action.kind is Pass.INPUT else 1.0
        inputs, weights = action.kind is not Pass.WEIGHT, action.kind is not Pass.INPUT
        last = weights and action.micro == self.plan.micro_batches - 1
        yield from self._backward(layers, share, exchanges=inputs, weights=weights, last=last)
        if action.kind is not Pass.WEIGHT:
            self._hand_on(Pass.BACKWARD, action, self._received_bytes(action.chunk))

    def _received_bytes(self, chunk: int) -> float:
        """Of the activations that came from the stage before: their gradients are as large."""
        layer = self.chunks[chunk][0]
        at = self.work.layers.index(layer)
        return self.work.layers[at - 1].output_bytes if at else 0.0

    def _forward(self, layers: Sequence[LayerWork]) -> Process:
        for block, members in _blocks(layers):
            yield from self._gather(layers, block)
            yield from self._computed(members, Account.FORWARD)
            self.gathered.pop(block, None)

    def _computed(self, layers: Sequence[LayerWork], account: Account) -> Process:
        """Layers forward: in the forward pass, or again in the backward pass."""
        for layer in layers:
            charged = Account.LOSS if layer.name == LOSS_LAYER and account is Account.FORWARD else account
            yield from self._experts(layer)
            yield from self._take(layer.forward_s, charged, layer.name)
            yield from self._experts(layer)
            yield from self._wait_for("all_reduce", layer.exchanged_bytes, self.groups.feature)

    def _backward(
        self, layers: Sequence[LayerWork], share: float, *, exchanges: bool, weights: bool, last: bool
    ) -> Process:
        for block, members in _blocks(layers[::-1]):
            yield from self._gather(layers[::-1], block)
            if self.plan.recompute and exchanges:
                yield from self._computed(members[::-1], Account.BACKWARD)
            for layer in members:
                if exchanges:
                    yield from self._experts(layer)
                yield from self._take(layer.backward_s * share, Account.BACKWARD, layer.name)
                if exchanges:
                    yield from self._experts(layer)
                    yield from self._wait_for("all_reduce", layer.exchanged_bytes, self.groups.feature)
                if last and self.plan.shards == 1:
                    self._add_gradients(layer)
            self.gathered.pop(block, None)
            if self.plan.shards > 1 and weights:
                self._scatter(members, last=last)

    def _take(self, seconds: float, account: Account, layer: str = "") -> Process:
        if seconds > 0:
            begin = self.env.now
            yield self.env.timeout(seconds)
            self._span(begin, account, layer)

    def _span(self, begin: float, account: Account, layer: str = "", cause: str = "") -> None:
        if self.env.now > begin:
            self.spans.append(
                Span(start_s=begin, end_s=self.env.now, account=account, layer=layer, cause=cause)
            )

    # -- exchanges ---------------------------------------------------------------------------------------

    def _over(
        self, kind: Kind, size: float, group: Group, layers: tuple[str, ...] = (), *, beside: bool = False
    ) -> Process:
        """An exchange; those over the same link follow each other."""
        seconds = self.fabric.seconds(kind, size, group, beside=beside)
        if seconds <= 0:
            return
        link = self.between if group.nodes > 1 else self.inside
        with link.request() as turn:
            yield turn
            begin = self.env.now
            yield self.env.timeout(seconds)
            self.transfers.append(
                Transfer(
                    kind=kind, bytes=size, ranks=group.ranks, start_s=begin, end_s=self.env.now, layers=layers
                )
            )

    def _wait_for(self, kind: Kind, size: float, group: Group) -> Process:
        """An exchange that the compute stream waits for."""
        if size > 0 and group.ranks > 1:
            begin = self.env.now
            yield from self._over(kind, size, group)
            self._span(begin, Account.COMMUNICATION)

    def _hand_on(self, kind: Pass, action: Action, size: float) -> None:
        """Send to the neighbour, while the next pass runs."""
        done = self._event(kind, action.micro, self._place(action.chunk))

        def sending() -> Process:
            yield from self._over("send", size if self.plan.stages > 1 else 0.0, self.groups.neighbours)
            done.succeed()

        self.env.process(sending())

    def _experts(self, layer: LayerWork) -> Process:
        if layer.experts and self.plan.experts > 1:
            yield from self._wait_for("all_to_all", layer.output_bytes, self.groups.experts)

    def _add_gradients(self, layer: LayerWork) -> None:
        """DDP's buckets: what is full is exchanged while the pass goes on."""
        if self.groups.data.ranks == 1 or self.plan.strategy == "local":
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
            self._start(lambda: self._over("all_reduce", bucket.bytes, self.groups.data, names, beside=True))

    def _start(self, process: Callable[[], Process]) -> simpy.Event:
        started = self.env.process(process())
        self.arrivals.append(started)
        return started

    def _gather(self, layers: Sequence[LayerWork], block: str) -> Process:
        """Sharded parameters of a block, and of the next one beside it."""
        if self.plan.shards == 1:
            return
        every = _blocks(layers)
        at = next(place for place, (name, _) in enumerate(every) if name == block)
        for name, members in every[at : at + 2]:
            if name not in self.gathered:
                size = sum(layer.parameters for layer in members) * self.plan.parameter_bytes
                names = tuple(layer.name for layer in members if layer.parameters)
                self.gathered[name] = self.env.process(
                    self._over("all_gather", size, self.groups.data, names, beside=True)
                )
        begin = self.env.now
        yield self.gathered[block]
        self._span(begin, Account.COMMUNICATION)

    def _scatter(self, members: Sequence[LayerWork], *, last: bool) -> None:
        """Gradients of a block: each rank keeps the mean of its own shard."""
        size = sum(layer.parameters for layer in members) * self.plan.gradient_bytes
        names = tuple(layer.name for layer in members if layer.parameters)

        def scattering() -> Process:
            yield from self._over("reduce_scatter", size, self.groups.data, names, beside=True)
            if last:
                shard = size / self.plan.shards
                yield from self._over("all_reduce", shard, self.groups.replicas, names, beside=True)

        if size:
            self._start(scattering)

    # -- the result --------------------------------------------------------------------------------------

    def played(self, step_s: float) -> PlayedRank:
        """The rank's step, which lasts as long as that of the slowest."""
        spans = list(self.spans)
        if self.ended_s < step_s:
            # Until the first input of the next step; of plans without stages no rank ends early.
            spans.append(Span(start_s=self.ended_s, end_s=step_s, account=Account.IDLE, cause="fill"))
        compute = (Account.FORWARD, Account.LOSS, Account.BACKWARD, Account.UPDATE, Account.HOST)
        return PlayedRank(
            stage=self.rank,
            spans=tuple(spans),
            transfers=tuple(self.transfers),
            compute_s=sum(span.seconds for span in spans if span.account in compute),
        )


def _blocks(layers: Sequence[LayerWork]) -> list[tuple[str, tuple[LayerWork, ...]]]:
    return [(name, tuple(members)) for name, members in groupby(layers, key=lambda layer: layer.block)]
