"""Simulated against measured strategies on the test bed: `python -m benchmarks.testbed_simulation`.

One worker trained at the batch sizes that ranks and micro-batches have; its layer times are all that the
simulation knows of the computing. What gloo, Ray and turns on a core take beside (`testbed_work`) was set on
`data` and on `asynchronous` at 1 Gbit/s; all other rows are predicted. Measured: `python -m
benchmarks.testbed_rows`, `measured/testbed_strategies.jsonl`.

The second table is how stale the gradients of asynchronous training are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.on_hosts import SERVED
from benchmarks.strategies import BATCH, STEPS
from benchmarks.testbed_rows import BOUND, RANKS, ROWS, SLOW, Cell
from benchmarks.testbed_work import (
    APPLY_S,
    CALL_S,
    CORES,
    FEATURE_S,
    MEETING,
    NEAR_CALL_S,
    STAGES_OF_2,
    at_once,
    bed,
    crowded,
    crowding,
    measured,
    work_of,
)
from laptime.hardware import cluster_links
from laptime.model.plan import Plan
from laptime.simulate.exchange_order import ExchangeOrder, ServerLink, WorkerPace
from laptime.simulate.exchange_order import play as play_exchanges
from laptime.simulate.fabric import GLOO, Fabric
from laptime.simulate.step import play
from laptime.simulate.training import averaging_s, group_of

PLANS = {
    "model": "model,micro_batches=4",
    "hybrid": "hybrid,stages=2,micro_batches=4",
    "mixed": "mixed,groups=2",
}
BUCKETS = 4  # exchanges of gradients and parameters in a group's step
SPREAD = 0.1  # of a rank's step
SLOWDOWN = 3.0  # of a slow rank
NEAR = 0.7  # of the mean staleness: below it a rank is on the server's host
# Rows that constants were set on: gloo's, DTensor's and Ray's work, and what is lost where gradients meet.
SET_ON = (
    *(("data", rate) for rate in STEPS),
    ("feature", "1gbit"),
    *(("asynchronous", rate) for rate in STEPS),
)


def exchanges(cell: Cell, *, near: int | None, steps: int, seed: int = 0) -> ExchangeOrder:
    """Training with a server on the host of rank `near`."""
    plan = Plan.of(PLANS.get(cell.strategy, cell.strategy), workers=cell.ranks)
    work = work_of(plan, BATCH // plan.data)
    fabric = Fabric(cluster=bed(cell.rate, cell.ranks), habits=GLOO)
    step_s = work.host_s + sum(layer.forward_s + layer.backward_s for layer in work.layers)
    size = sum(layer.parameters for layer in work.layers) * plan.gradient_bytes
    _, link = cluster_links(fabric.cluster)
    assert link is not None
    over_s = size / (link.bandwidth * GLOO.between) + link.latency_s
    groups, each = (plan.groups, plan.data // plan.groups) if cell.strategy == "mixed" else (cell.ranks, 1)
    inside_s = BUCKETS * GLOO.call_s if each > 1 else 0.0  # of a group on one host: it computes, too
    paces = [
        WorkerPace(
            step_s=step_s + inside_s,
            slowdown=SLOWDOWN if cell.slow and group == SLOW else 1.0,
            spread=SPREAD,
            near=group == near,
            ranks=each,
            call_s=NEAR_CALL_S if group == near else CALL_S,
        )
        for group in range(groups)
    ]
    return play_exchanges(
        paces,
        ServerLink(push_s=over_s, pull_s=over_s, apply_s=APPLY_S, meeting=MEETING),
        updates=steps,
        staleness=cell.bound,
        seed=seed,
        cores=CORES,
    )


def simulated_s(cell: Cell, near: int | None) -> float:
    """A mini-batch of 64, of all ranks together."""
    if cell.strategy in SERVED:
        made = exchanges(cell, near=near, steps=STEPS[cell.rate])
        steps = [np.diff(made.answered_s[made.worker == rank]) for rank in range(len(made.workers))]
        return float(np.mean([np.mean(each[3:]) for each in steps]))
    plan = Plan.of(PLANS.get(cell.strategy, cell.strategy), workers=cell.ranks)
    work = work_of(plan, BATCH // plan.data)
    if plan.feature > 1:
        work = replace(work, host_s=work.host_s + FEATURE_S)
    work = crowded(work, at_once(plan))
    crowd = crowding(at_once(plan))
    habits = replace(GLOO, sync_s=GLOO.sync_s * crowd, call_s=GLOO.call_s * crowd)
    fabric = Fabric(cluster=bed(cell.rate, cell.ranks), habits=habits)
    alone = group_of(plan)
    parts = (work.layers[:STAGES_OF_2], work.layers[STAGES_OF_2:]) if plan.stages == 2 else None
    return play(work, alone, fabric, parts=parts).step_s + averaging_s(work, plan, fabric)


def near_of(row: Mapping[str, Any]) -> int | None:
    """The rank, or group, on the server's host: others hardly ever come between; None: no rank is there."""
    if "staleness" not in row:
        return None
    ages = [np.mean(rank) for rank in row["staleness"]]
    least = int(np.argmin(ages))
    if ages[least] < NEAR * np.mean(ages):
        return least // 2 if row["strategy"] == "mixed" else least
    return 0 if row["strategy"] == "asynchronous" and row["ranks"] == RANKS else None  # each host has a rank


def cell_of(row: Mapping[str, Any]) -> Cell:
    """What a row is of."""
    return Cell(**{name: row[name] for name in ("strategy", "rate", "ranks", "slow", "bound")})


def rows() -> list[Mapping[str, Any]]:
    """All trainings that were measured."""
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def times(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Step times: the median of the repetitions, and simulated."""
    cells: dict[Cell, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found:
        cells[cell_of(row)].append(row)
    errors: dict[str, list[float]] = defaultdict(list)
    tested: list[float] = []
    scatter: list[float] = []
    yield "| strategy | ranks | rate | measured ms | lowest, highest | simulated ms | error |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for cell, mine in cells.items():
        if cell.slow or cell.bound is not None:
            continue
        each = [float(row["step_ms"]) for row in mine]
        middle = float(np.median(each))
        made = float(np.median([simulated_s(cell, near_of(row)) for row in mine])) * 1e3
        error = made / middle - 1
        errors[cell.strategy].append(error)
        scatter += [value / middle - 1 for value in each if len(each) > 1]
        if (cell.strategy, cell.rate) not in SET_ON:
            tested.append(error)
        yield (
            f"| {cell.strategy} | {cell.ranks} | {cell.rate} | {middle:.1f} | {min(each):.1f}, "
            f"{max(each):.1f} | {made:.1f} | {error:+.0%} |"
        )
    whole = [error for each in errors.values() for error in each]
    for name, values in [*errors.items(), ("all", whole), ("rows that nothing was set on", tested)]:
        sizes = np.abs(values) * 100
        yield f"{name}: mean {sizes.mean():.1f} %, p90 {np.quantile(sizes, 0.9):.1f} %, {len(sizes)} rows"
    if scatter:
        yield f"repetitions around their median: mean {np.mean(np.abs(scatter)):.1%}"


def staleness(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How stale gradients are: all of a training, and by worker."""
    titles = ("mean", "simulated", "error", *(f"{name} | simulated" for name in ("p90", "near", "far")))
    yield f"| asynchronous, four ranks | {' | '.join(titles)} |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    cells: dict[Cell, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found:
        if row["strategy"] == "asynchronous" and row["ranks"] == 4 and row.get("staleness"):
            cells[cell_of(row)].append(row)
    errors = []
    for cell, mine in cells.items():
        real, played = [], []
        for row in mine:
            near = near_of(row)
            made = exchanges(cell, near=near, steps=STEPS[cell.rate], seed=int(row["repetition"]))
            real.append(_ages(row["staleness"], near))
            ages = [made.staleness[made.worker == rank].tolist() for rank in range(cell.ranks)]
            played.append(_ages(ages, near))
        measured_, made_ = np.mean(real, axis=0), np.mean(played, axis=0)
        error = made_[0] / measured_[0] - 1
        errors.append(error)
        slow = ", one slow" if cell.slow else ""
        bound = f", at most {BOUND} ahead" if cell.bound is not None else ""
        yield (
            f"| {cell.rate}{slow}{bound} | {measured_[0]:.2f} | {made_[0]:.2f} | {error:+.0%} | "
            + " | ".join(
                f"{one:.1f} | {other:.1f}" for one, other in zip(measured_[1:], made_[1:], strict=True)
            )
            + " |"
        )
    sizes = np.abs(errors) * 100
    yield f"means: {sizes.mean():.1f} % apart, at most {sizes.max():.1f} %"


def _ages(ranks: Sequence[Sequence[float]], near: int | None) -> list[float]:
    """Mean and 90th percentile of all gradients, means of the near rank's and of the others'."""
    whole = [age for rank in ranks for age in rank]
    far = [age for place, rank in enumerate(ranks) if place != near for age in rank]
    mine = ranks[near] if near is not None else whole
    ages = np.mean(whole), np.quantile(whole, 0.9), np.mean(mine), np.mean(far)
    return [float(age) for age in ages]


def main() -> int:
    """Print measured, simulated and the errors."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found = rows()
    for line in (*times(found), "", *staleness(found)):
        print(line, flush=True)
    alone = ", ".join(f"{batch}: {each.wall_s * 1e3:.1f} ms" for batch, each in measured().items())
    print(f"\none worker, by batch: {alone}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
