"""Every constant that a simulation rests on, with its source: of links, plans, failures and the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from laptime import hardware
from laptime.estimate.device_speed import device
from laptime.model.constants import Constant, of_module, of_value, unit_of
from laptime.simulate import features, memory, step, training, work
from laptime.simulate.fabric import habits_of
from laptime.simulate.training import Simulation

_FIGURES = (
    "nodes",
    "devices_per_node",
    "wiring",
    "rails",
    "oversubscription",
    "storage",
    "dollars_per_hour",
    "node_hours_between_failures",
    "slow_share",
    "slowdown",
)


def constants_of(simulation: Simulation) -> tuple[Constant, ...]:
    """The cluster's figures and links, then what is assumed of links, ranks and failures."""
    return (
        *_of_cluster(simulation),
        *of_value(habits_of(device(simulation.cluster.device))),
        *(constant for module in (step, work, features, memory, training) for constant in of_module(module)),
    )


def _of_cluster(simulation: Simulation) -> Iterator[Constant]:
    cluster = simulation.cluster
    for figure in _FIGURES:
        value = getattr(cluster, figure)
        if value is not None:
            guess = " (estimated)" if figure in cluster.estimated else ""
            source = cluster.sources.get(figure, "by default") + guess
            unit = {"dollars_per_hour": "$/h", "node_hours_between_failures": "h"}.get(figure, "")
            yield Constant(f"{cluster.name}: {figure}", value, unit, source)
    for link in hardware.cluster_links(cluster):
        if link is None:
            continue
        for figure in ("bandwidth_gbs", "latency_us"):
            source = link.sources.get(figure, "no source")
            yield Constant(f"{link.name}: {figure}", getattr(link, figure), unit_of(figure), source)
