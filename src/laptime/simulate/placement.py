"""A plan and a cluster from what a user says of them: names, a text, numbers of workers and nodes."""

from __future__ import annotations

from pathlib import Path

from laptime import hardware
from laptime.errors import PlanError
from laptime.hardware.cluster import Cluster
from laptime.model.plan import Plan


def placed(
    cluster: str | Path | Cluster,
    parallel: str | Plan,
    *,
    workers: int | None = None,
    nodes: int | None = None,
) -> tuple[Cluster, Plan]:
    """The cluster, with as many nodes as are asked for, and the plan on its devices.

    Workers are all devices where neither a number of them nor all degrees of the plan are given. Where
    `nodes` is not given, a cluster that is too small gets as many as the workers need.
    """
    if nodes is not None and nodes < 1:
        raise PlanError(f"nodes is {nodes}; give a whole number from 1 up")
    entry = hardware.cluster(cluster, nodes=nodes)
    plan = parallel if isinstance(parallel, Plan) else None
    if plan is None:
        plan = _plan(str(parallel), workers, entry.devices)
    elif workers is not None and plan.workers != workers:
        raise PlanError(f"the plan has {plan.workers} workers, and {workers} are given; change one of them")
    if nodes is None and plan.workers > entry.devices:
        entry = hardware.cluster(entry, nodes=-(-plan.workers // entry.devices_per_node))
    return entry, plan


def _plan(text: str, workers: int | None, devices: int) -> Plan:
    named = {word.partition("=")[0].strip() for word in text.split(",")}
    if workers is None and "data" in named and "data=" in text.replace(" ", ""):
        workers = Plan.of(text).workers  # every degree is said
    return Plan.of(text, workers=devices if workers is None else workers)


def replica_batch(plan: Plan, asked: int | None, usual: int) -> int:
    """Samples of a replica: as asked, else the usual number, so that they divide into micro-batches."""
    return plan.micro_batches * -(-usual // plan.micro_batches) if asked is None else asked
