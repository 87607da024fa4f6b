"""What the ranks of a plan compute on a cluster whose nodes may have different devices."""

from __future__ import annotations

from dataclasses import dataclass

from laptime.estimate.device_speed import device as device_named
from laptime.estimate.run_correction import Correction
from laptime.hardware import Device
from laptime.hardware.cluster import Cluster
from laptime.model import Workload
from laptime.model.plan import Plan
from laptime.simulate.work import LayerWork, RankWork, cut, rank_work


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWork:
    """The slowest rank of each stage, for which the others wait."""

    work: RankWork  # on the slowest device
    device: Device  # which that is
    parts: tuple[tuple[LayerWork, ...], ...] | None = None  # of each stage; None: equal devices
    paces: tuple[float, ...] = ()  # of each rank: its seconds over those of its stage's slowest; (): equal
    memory_bytes: float | None = None  # of the device that has least


def cluster_work(
    workload: Workload, cluster: Cluster, plan: Plan, batch: int, correction: Correction | None = None
) -> ClusterWork:
    """The work of a plan's ranks: features beside each other, then replicas, then stages, node by node."""
    if not cluster.others:
        device = device_named(cluster.device)
        work = rank_work(workload, device, plan, batch, correction)
        return ClusterWork(work=work, device=device, memory_bytes=device.memory_bytes)
    of_rank = [cluster.device_of(rank // cluster.devices_per_node) for rank in range(plan.workers)]
    devices = {name: device_named(name) for name in dict.fromkeys(of_rank)}
    works = {name: rank_work(workload, device, plan, batch, correction) for name, device in devices.items()}
    seconds = {name: _computing_s(work) for name, work in works.items()}
    each = plan.data * plan.feature
    slowest = [
        max(set(of_rank[stage * each : (stage + 1) * each]), key=seconds.__getitem__)
        for stage in range(plan.stages)
    ]
    whole = max(slowest, key=seconds.__getitem__)
    chunks = [slowest[part % plan.stages] for part in range(plan.stages * plan.chunks)]
    order = cut(works[whole].layers, len(chunks), [seconds[name] / seconds[whole] for name in chunks])
    layers = {name: {layer.name: layer for layer in work.layers} for name, work in works.items()}
    memories = [device.memory_bytes for device in devices.values()]
    known = [memory for memory in memories if memory is not None]
    return ClusterWork(
        work=works[whole],
        device=devices[whole],
        parts=tuple(
            tuple(layers[name][layer.name] for layer in part)
            for name, part in zip(chunks, order, strict=True)
        ),
        paces=tuple(seconds[name] / seconds[slowest[rank // each]] for rank, name in enumerate(of_rank)),
        memory_bytes=min(known) if len(known) == len(memories) else None,
    )


def _computing_s(work: RankWork) -> float:
    passes = sum(layer.forward_s + layer.backward_s for layer in work.layers)
    return passes * work.micro_batches + work.host_s + sum(layer.update_s for layer in work.layers)
