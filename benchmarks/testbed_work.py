"""What a rank of the test bed computes, from layer times of one worker; two cores that ranks share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import laptime
from benchmarks.testbed_rows import WORKER
from laptime.hardware.cluster import Cluster
from laptime.model import LOSS_LAYER, Workload
from laptime.model.plan import Plan
from laptime.ops.rescaling import rescaled
from laptime.simulate.features import split_features
from laptime.simulate.shared_cores import SharedCores
from laptime.simulate.work import LayerWork, RankWork, layer_facts

LINKS = {"1gbit": "ethernet-1g", "100mbit": "ethernet-100m", "10mbit": "ethernet-10m"}
STAGES_OF_2 = 2  # layers of the first of two stages, as laptime cuts this network: conv1 and conv2
CORES = SharedCores(count=2, turns=1.15)
# Of one core: Ray's work for an exchange, a worker's over TCP and on the server's host, and the server's.
CALL_S, NEAR_CALL_S, APPLY_S = 0.010, 0.006, 0.007
FEATURE_S = 0.012  # of one core: DTensor's Python, in each step
MEETING = 1.38  # times as long, where gradients of several workers meet on the server's link


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One worker with a batch."""

    wall_s: float
    host_s: float
    layers: Mapping[str, Sequence[float]]  # forward, backward, update


@cache
def measured(path: Path = WORKER) -> Mapping[int, Alone]:
    """By batch."""
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {int(batch): Alone(**each) for batch, each in told["batches"].items()}


@cache
def _workload() -> Workload:
    return laptime.workload("zener4", batch=64)


def work_of(plan: Plan, batch: int) -> RankWork:
    """Layer times of one worker with the batch of a micro-batch."""
    micro = batch // plan.micro_batches
    alone, workload = measured()[micro], rescaled(_workload(), micro)
    facts = layer_facts(workload)
    split = split_features(workload, plan.feature, sequence=plan.sequence) if plan.feature > 1 else None
    layers = []
    for name, (forward_s, backward_s, update_s) in alone.layers.items():
        known = facts[name]
        part = plan.feature if split and name in split.linear else 1
        layers.append(
            LayerWork(
                name=name,
                forward_s=forward_s / part,
                backward_s=backward_s / part,
                update_s=update_s / part,
                parameters=known.parameters // part,
                output_bytes=known.output_bytes,
                kept_bytes=known.kept_bytes,
                forward_bytes=split.forward_bytes.get(name, 0.0) if split else 0.0,
                backward_bytes=split.backward_bytes.get(name, 0.0) if split else 0.0,
            )
        )
    return RankWork(
        layers=tuple(sorted(layers, key=lambda layer: layer.name == LOSS_LAYER)),
        host_s=alone.host_s,
        batch=micro,
        micro_batches=plan.micro_batches,
        interval=0.05,
    )


def crowding(ranks: float) -> float:
    """How much longer a rank takes that shares its core."""
    return 1.0 if ranks <= CORES.count else CORES.turns * ranks / CORES.count


def at_once(plan: Plan) -> float:
    """Ranks that compute at the same time: stages of a pipeline wait for each other."""
    return plan.workers * plan.micro_batches / (plan.micro_batches + plan.stages - 1)


def crowded(work: RankWork, ranks: float) -> RankWork:
    """Ranks that share a core take turns."""
    times = crowding(ranks)
    layers = tuple(
        replace(
            layer,
            forward_s=layer.forward_s * times,
            backward_s=layer.backward_s * times,
            update_s=layer.update_s * times,
        )
        for layer in work.layers
    )
    return replace(work, layers=layers, host_s=work.host_s * times)


def bed(rate: str, nodes: int, per_node: int = 1) -> Cluster:
    """Hosts at that bandwidth; several ranks of a host reach each other through memory."""
    return Cluster(
        name="test bed",
        title="test bed",
        device="cpu",
        nodes=nodes,
        devices_per_node=per_node,
        inside="ethernet-10g" if per_node > 1 else None,
        between=LINKS[rate],
    )
