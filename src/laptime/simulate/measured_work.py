"""What a rank computes as a run measured it, instead of as it is predicted."""

from __future__ import annotations

from collections.abc import Sequence

from laptime.errors import PlanError
from laptime.estimate.run_correction import workload_of
from laptime.model import LOSS_LAYER, Account
from laptime.model.plan import Plan
from laptime.runs import Run
from laptime.simulate.features import split_features
from laptime.simulate.work import LayerWork, RankWork, layer_facts

SPREAD_OF_RUNS = 0.05  # between two runs of the same network on the same machine


def measured_work(runs: Sequence[Run], plan: Plan, batch: int) -> RankWork:
    """Layer times of the run whose batch is that of a micro-batch."""
    micro = batch // plan.micro_batches
    by_batch = {workload_of(run).batch: run for run in runs}
    if micro not in by_batch or batch % plan.micro_batches:
        batches = ", ".join(map(str, sorted(by_batch)))
        raise PlanError(f"no run has batch {micro}, which a micro-batch has here; there are {batches}")
    run = by_batch[micro]
    workload = workload_of(run)
    facts = layer_facts(workload)
    split = split_features(workload, plan.feature, sequence=plan.sequence) if plan.feature > 1 else None
    layers = []
    for each in run.layers():
        known = facts[each.layer]
        part = plan.feature if split and each.layer in split.linear else 1
        layers.append(
            LayerWork(
                name=each.layer,
                forward_s=each.forward_s / part,
                backward_s=each.backward_s / part,
                update_s=each.update_s / part,
                parameters=known.parameters // part,
                output_bytes=known.output_bytes,
                kept_bytes=known.kept_bytes,
                forward_bytes=split.forward_bytes.get(each.layer, 0.0) if split else 0.0,
                backward_bytes=split.backward_bytes.get(each.layer, 0.0) if split else 0.0,
            )
        )
    accounts = run.accounts()
    outside = (Account.DATA_WAIT, Account.COPY, Account.HOST, Account.INSTRUMENT, Account.UNEXPLAINED)
    host_s = sum(accounts[account].seconds.mean for account in outside)
    return RankWork(
        layers=tuple(sorted(layers, key=lambda layer: layer.name == LOSS_LAYER)),
        host_s=host_s,
        batch=micro,
        micro_batches=plan.micro_batches,
        interval=SPREAD_OF_RUNS,
    )
