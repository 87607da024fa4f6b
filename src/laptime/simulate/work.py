"""What each rank of a plan computes in a step: a predicted step divided by features, stages and shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import lru_cache
from itertools import groupby
from typing import Annotated

from laptime.errors import PlanError
from laptime.estimate.predict import device_step
from laptime.estimate.run_correction import Correction
from laptime.hardware import Device
from laptime.model import LOSS_LAYER, Phase, Workload
from laptime.model.constants import Source
from laptime.model.plan import Plan
from laptime.ops.registry import kind_named
from laptime.ops.rescaling import rescaled
from laptime.simulate.features import block_of, split_features

INPUT_SHARE: Annotated[
    float, Source("Of a backward pass: gradients of inputs take as long as those of weights.")
] = 0.5
_HOST = "(host)"


class Experts(Flag):
    """What a layer has to do with experts, which are on other ranks than the samples."""

    NONE = 0
    HOLDS = auto()
    FIRST = auto()  # of its block: samples are sent to the ranks of their experts before it
    LAST = auto()  # and sent back after it


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer on one rank, for one micro-batch; bytes are those of the rank's own part."""

    name: str
    forward_s: float
    backward_s: float
    update_s: float
    parameters: int  # elements of this rank's part, before sharding
    output_bytes: float  # what the next layer gets
    kept_bytes: float  # from the forward for the backward pass
    copied_bytes: float = 0.0  # of its parameters in the type of autocast, until the backward pass is over
    forward_bytes: float = 0.0  # exchanged after its forward pass by ranks that split features
    backward_bytes: float = 0.0  # and after its backward pass
    experts: Experts = Experts.NONE

    @property
    def block(self) -> str:
        """The block that it belongs to, such as `transformer.h.0`: what is sharded as one."""
        return block_of(self.name) or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """All layers of a network, as the rank that has them computes them."""

    layers: tuple[LayerWork, ...]
    host_s: float  # between two steps
    batch: int  # samples of a micro-batch
    micro_batches: int
    interval: float  # half width of the prediction's interval, relative


def rank_work(
    workload: Workload, device: Device, plan: Plan, batch: int, correction: Correction | None = None
) -> RankWork:
    """A step with `batch` samples for each replica, corrected by what a run took."""
    if workload.mode != "training":
        raise PlanError(
            "a training is simulated, and the workload has no backward pass; read it for training"
        )
    if batch < plan.micro_batches:
        raise PlanError(
            f"{batch} samples of a replica cannot be {plan.micro_batches} micro-batches; "
            f"give batch={plan.micro_batches} or more, or fewer micro_batches"
        )
    if batch % plan.micro_batches:
        raise PlanError(
            f"{batch} samples do not divide into {plan.micro_batches} micro-batches; "
            f"give batch={plan.micro_batches * -(-batch // plan.micro_batches)}"
        )
    work = _rank_work(
        workload,
        device,
        plan.feature,
        plan.sequence,
        plan.experts,
        plan.parameter_bytes,
        batch // plan.micro_batches,
        plan.micro_batches,
    )
    return work if correction is None else _corrected(work, device, correction)


def _corrected(work: RankWork, device: Device, correction: Correction) -> RankWork:
    """As a prediction is corrected by a run: layer by layer, and the host's time between them."""
    kept = correction.kept(device, work.batch)
    if not kept or correction.device is None:
        return work
    layers = tuple(
        replace(
            layer,
            forward_s=layer.forward_s * correction.factor(layer.name, Phase.FORWARD, kept),
            backward_s=layer.backward_s * correction.factor(layer.name, Phase.BACKWARD, kept),
            update_s=layer.update_s * correction.factor(layer.name, Phase.UPDATE, kept),
        )
        for layer in work.layers
    )
    host_s = work.host_s
    if device.name == correction.device.name:
        host_s = max(0.0, correction.rest_s * kept + host_s * (1 - kept))
    width = correction.width(work.interval, device, work.batch)
    return replace(work, layers=layers, host_s=host_s, interval=width)


@lru_cache(256)
def _rank_work(
    workload: Workload,
    device: Device,
    feature: int,
    sequence: bool,
    experts: int,
    parameter_bytes: int,
    micro: int,
    micro_batches: int,
) -> RankWork:
    sized = rescaled(workload, micro)
    split = split_features(sized, feature, sequence=sequence) if feature > 1 else None
    parts = split.workload if split else sized
    step = device_step(parts, device)
    seconds: dict[str, dict[Phase, float]] = {}
    for timed in step.step.operations:
        phases = seconds.setdefault(timed.operation.layer, dict.fromkeys(Phase, 0.0))
        phases[timed.operation.phase] += timed.span_s
    host_s = sum(seconds.pop(_HOST, {}).values())
    order = [*(name for name in parts.layers if name in seconds)]
    order += [name for name in seconds if name not in order]
    facts = layer_facts(sized)
    shares = split.kept_shares if split else {}
    have_experts = _with_experts(order)

    def parts_of(name: str) -> int:
        """Ranks that a layer's parameters are divided among."""
        return (feature if split and name in split.linear else 1) * (experts if name in have_experts else 1)

    layers = tuple(
        LayerWork(
            name=name,
            forward_s=seconds[name][Phase.FORWARD],
            backward_s=seconds[name][Phase.BACKWARD],
            update_s=seconds[name][Phase.UPDATE] / (experts if name in have_experts else 1),
            forward_bytes=split.forward_bytes.get(name, 0.0) if split else 0.0,
            backward_bytes=split.backward_bytes.get(name, 0.0) if split else 0.0,
            experts=have_experts.get(name, Experts.NONE),
            parameters=facts[name].parameters // parts_of(name),
            output_bytes=facts[name].passed_bytes(parameter_bytes),
            kept_bytes=facts[name].kept_bytes * shares.get(name, 1.0),
            copied_bytes=facts[name].copied_bytes / parts_of(name),
        )
        for name in order
    )
    made = step.prediction
    return RankWork(
        layers=layers,
        host_s=host_s,
        batch=micro,
        micro_batches=micro_batches,
        interval=made.interval_s[1] / made.step_s - 1,
    )


def _with_experts(order: Sequence[str]) -> dict[str, Experts]:
    """Layers that hold experts, in the network's order; the first and the last of each block."""
    found: dict[str, Experts] = {}
    for _, block in groupby((name for name in order if "expert" in name), key=block_of):
        names = list(block)
        found |= dict.fromkeys(names, Experts.HOLDS)
        found[names[0]] |= Experts.FIRST
        found[names[-1]] |= Experts.LAST
    return found


@dataclass(slots=True)
class LayerFacts:
    """What a layer holds and hands on, whatever it runs on."""

    parameters: int = 0
    output_bytes: float = 0.0
    kept_bytes: float = 0.0
    copied_bytes: float = 0.0
    element_bytes: int = 4  # of its output

    def passed_bytes(self, most: int) -> float:
        """Its output with elements of so many bytes at most, as parameters have them."""
        return self.output_bytes * min(1.0, most / self.element_bytes)


def layer_facts(workload: Workload) -> dict[str, LayerFacts]:
    """Parameters, output, kept bytes and autocast's copies of each layer."""
    facts: dict[str, LayerFacts] = defaultdict(LayerFacts)
    weights = {
        (operation.layer, size)
        for operation in workload.phase(Phase.FORWARD)
        for size in kind_named(operation.kind).weights(operation.sizes)
    }
    alive = 0
    for operation in workload.operations:
        layer = facts[operation.layer]
        if operation.phase is Phase.UPDATE:
            layer.parameters += operation.sizes["params"]
        elif operation.phase is Phase.FORWARD:
            more = max(0, operation.alive - alive)
            if operation.name == "aten._to_copy" and (operation.layer, operation.sizes["n"]) in weights:
                layer.copied_bytes += min(more, operation.written)
                more -= min(more, operation.written)
            layer.kept_bytes += more
            layer.output_bytes, layer.element_bytes = float(operation.written), operation.element_bytes
            alive = operation.alive
    kept = sum(layer.kept_bytes for layer in facts.values())
    whole = workload.memory.activations - sum(layer.copied_bytes for layer in facts.values())
    for layer in facts.values():  # what is freed again within the pass is not kept
        layer.kept_bytes *= min(1.0, max(0.0, whole) / kept) if kept else 0.0
    return facts


# -- stages --------------------------------------------------------------------------------------------------


def cut(
    layers: Sequence[LayerWork], stages: int, slowness: Sequence[float] = ()
) -> tuple[tuple[LayerWork, ...], ...]:
    """Layers in `stages` parts so that the longest, on stages of unequal speed, is as short as it can be.

    Blocks stay whole, if there are enough of them: more than one tensor passes inside a block.
    """
    whole = [layer for layer in layers if layer.name != LOSS_LAYER]
    if stages > len(whole):
        raise PlanError(f"{stages} stages of {len(whole)} layers; give at most stages={len(whole)}")
    factors = slowness or [1.0] * stages
    units = [tuple(block) for _, block in groupby(whole, key=lambda layer: layer.block)]
    if stages > len(units):
        units = [(layer,) for layer in whole]
    seconds = [sum(layer.forward_s + layer.backward_s for layer in unit) for unit in units]
    low, high = 0.0, max(factors) * sum(seconds)
    for _ in range(60):
        middle = (low + high) / 2
        if _filled(seconds, factors, middle) is not None:
            high = middle
        else:
            low = middle
    ends = _even(seconds, factors, high)
    begins = [0, *ends[:-1]]
    parts = [
        tuple(layer for unit in units[begin:end] for layer in unit)
        for begin, end in zip(begins, ends, strict=True)
    ]
    parts[-1] += tuple(layer for layer in layers if layer.name == LOSS_LAYER)
    return tuple(parts)


def _even(seconds: Sequence[float], factors: Sequence[float], most: float) -> list[int]:
    """Where each part ends: no part longer than `most`, and none much shorter than the others."""
    most *= 1 + 1e-9  # the other way round the sums are rounded differently
    backwards = _filled(seconds[::-1], factors[::-1], most) or range(1, len(factors) + 1)
    least = [len(seconds) - end for end in reversed(backwards)][1:]  # else the rest has no room
    least.append(len(seconds))
    ends: list[int] = []
    end = 0
    for place, factor in enumerate(factors):
        begin, held = end, 0.0
        share = sum(seconds[begin:]) / sum(1 / each for each in factors[place:])
        last = len(seconds) - (len(factors) - place - 1)
        while end < last:
            more = held + seconds[end] * factor
            must = end == begin or end < least[place]
            if not must and (more > most * (1 + 1e-9) or more - share > share - held):
                break
            held, end = more, end + 1
        ends.append(end)
    return [*ends[:-1], len(seconds)]


def _filled(seconds: Sequence[float], factors: Sequence[float], most: float) -> list[int] | None:
    """Where each part ends, as long as `most` allows but none empty; None where that is not enough."""
    ends: list[int] = []
    end = 0
    for place, factor in enumerate(factors):
        room, begin = most * (1 + 1e-9), end
        last = len(seconds) - (len(factors) - place - 1)  # one is left for each part that follows
        while end < last and (end == begin or room >= seconds[end] * factor):
            room -= seconds[end] * factor
            end += 1
        if room < 0:
            return None
        ends.append(end)
    return ends if end == len(seconds) else None
