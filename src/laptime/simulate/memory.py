"""Memory of a rank by plan: parameters, gradients, optimizer state, activations of the passes under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laptime.model import Workload
from laptime.model.plan import Plan
from laptime.model.prediction import LIBRARY_BYTES, ROUNDING
from laptime.simulate.schedules import ORDERS, Pass
from laptime.simulate.work import LayerWork, RankWork, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of the rank that needs most."""

    stage: int
    parameters: float
    gradients: float
    state: float  # of the optimizer
    activations: float
    gathered: float  # autocast's copies of parameters; of sharded networks, the blocks that run
    inputs: float

    @property
    def tensors(self) -> float:
        """All of it."""
        return (
            self.parameters
            + self.gradients
            + self.state
            + self.activations
            + self.gathered
            + self.inputs
            + LIBRARY_BYTES
        )

    @property
    def reserved(self) -> float:
        """With the allocator's rounding, which activations and gathered parameters suffer from."""
        moving = self.activations + self.gathered
        return self.tensors + (ROUNDING - 1) * moving


def memory_of(
    work: RankWork,
    workload: Workload,
    plan: Plan,
    parts: Sequence[Sequence[LayerWork]] | None = None,
) -> RankMemory:
    """The rank that needs most; which stage that is depends on the schedule.

    parts  the layers of each stage, as the step is played with them
    """
    whole = workload.memory
    parameters = sum(map(_held(plan), work.layers)) or 1
    parts = parts or cut(work.layers, plan.stages * plan.chunks)
    ranks = []
    for rank in range(plan.stages):
        layers = [layer for part in parts[rank :: plan.stages] for layer in part]
        mine = sum(map(_held(plan), layers))
        # Bytes of one parameter; a split layer has its part of them already.
        split = parameters / max(1, workload.parameters)
        static = mine / parameters * split / plan.shards
        ranks.append(
            RankMemory(
                stage=rank,
                parameters=whole.parameters * static,
                gradients=whole.gradients * static,
                state=whole.state * static * plan.shards / max(plan.shards, plan.state_shards),
                activations=_activations(rank, parts, plan),
                gathered=_gathered(layers, plan) if plan.shards > 1 else _copies(layers),
                inputs=whole.inputs * work.batch / workload.batch,
            )
        )
    return max(ranks, key=lambda memory: memory.tensors)


def _held(plan: Plan) -> Callable[[LayerWork], float]:
    """Parameters of a layer before shards: experts are divided already, and shared by fewer ranks."""
    again = min(plan.experts, plan.shards)
    return lambda layer: layer.parameters * (again if layer.experts else 1)


def in_flight(rank: int, plan: Plan) -> dict[int, int]:
    """The most micro-batches whose activations a rank holds at once, by chunk, when it holds most in all."""
    held: dict[int, int] = {}
    most: dict[int, int] = {}
    freed = Pass.WEIGHT if plan.schedule == "zero_bubble" else Pass.BACKWARD
    for action in ORDERS[plan.schedule](rank, plan.stages, plan.micro_batches, plan.chunks):
        if action.kind is Pass.FORWARD:
            held[action.chunk] = held.get(action.chunk, 0) + 1
        elif action.kind is freed:
            held[action.chunk] -= 1
        if sum(held.values()) > sum(most.values()):
            most = dict(held)
    return most


def put_off(rank: int, plan: Plan) -> int:
    """The most micro-batches whose gradients of weights wait, beside the one that runs."""
    waiting = most = 0
    for action in ORDERS[plan.schedule](rank, plan.stages, plan.micro_batches, plan.chunks):
        waiting += {Pass.INPUT: 1, Pass.WEIGHT: -1}.get(action.kind, 0)
        most = max(most, waiting)
    return most


def _activations(rank: int, parts: Sequence[Sequence[LayerWork]], plan: Plan) -> float:
    chunks = parts[rank :: plan.stages]
    total = 0.0
    for chunk, count in in_flight(rank, plan).items():
        layers = chunks[chunk]
        if plan.recompute:  # what enters a block stays, which is what the one before gives; one is whole
            blocks: dict[str, float] = {}
            given: dict[str, float] = {}
            for layer in layers:
                blocks[layer.block] = blocks.get(layer.block, 0.0) + layer.kept_bytes
                given[layer.block] = layer.output_bytes
            place = rank + plan.stages * chunk
            before = parts[place - 1][-1].output_bytes if place else 0.0
            entered = (before + sum(given.values()) - layers[-1].output_bytes) / (
                plan.feature if plan.sequence else 1
            )
            total += count * entered + max(blocks.values(), default=0.0)
            # A gradient of weights that is put off needs what was computed again.
            total += put_off(rank, plan) * sum(blocks.values())
        else:
            total += count * sum(layer.kept_bytes for layer in layers)
    return total


def _copies(layers: Sequence[LayerWork]) -> float:
    return sum(layer.copied_bytes for layer in layers)


def _gathered(layers: Sequence[LayerWork], plan: Plan) -> float:
    blocks: dict[str, float] = {}
    for layer in layers:
        blocks[layer.block] = blocks.get(layer.block, 0.0) + layer.parameters * plan.parameter_bytes
    return sum(sorted(blocks.values())[-2:])  # one runs, the next is fetched
