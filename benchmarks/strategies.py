"""Strategies against bandwidth: `python -m benchmarks.strategies [--rates 100mbit,10mbit] [--workers 1,2,4]`.

A mini-batch of 64, of all ranks together, for any number of them. Each rank is on a host of its own
(`on_hosts.py`); those of `mixed` are two groups of two, on two hosts. A figure is the median over the means
of eight steps, as many as `local` takes between two averages, and the mean over ranks; the first steps are
left out. The share of communication is that of the same steps, waiting for other stages included.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tools.testbed import Host, down, set_rate, start_ray, up

from benchmarks.on_hosts import RAY_NODE, SERVED, Plan, TrainingFailed, train
from benchmarks.tables import NOTHING, Table
from laptime.model import Stage
from laptime.runs import Run

BATCH = 64
STEPS = {"1gbit": 60, "100mbit": 36, "10mbit": 20}
SKIPPED, TOGETHER = 4, 8
# How many ranks read the same samples, and the settings of a strategy; None: all of them.
PLANS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "data": (1, ()),
    "sharded": (1, ()),
    "local": (1, ()),
    "model": (None, ()),
    "feature": (None, ()),
    "hybrid": (2, ("parallel.stages=2",)),
    "asynchronous": (1, ()),
    "mixed": (1, ("parallel.groups=2",)),
}
OF_FOUR = ("hybrid", "mixed")  # groups of at least two, and at least two of them
NETWORKS = {
    "zener4": 'network = "zener4"\ndata = {kind = "zener", samples = 1024}',
    "resnet18": 'network = {name = "resnet18", options = {num_classes = 10}}\n'
    'data = {kind = "synthetic", shape = [3, 64, 64], classes = 10, samples = 1024}',
}
CONFIG = """
{network}
[train]
batch = {batch}
epochs = 100
steps = {steps}
threads = 1
device = "cpu"
[validation]
every = 0
[checkpoint]
every = 0
"""
GUIDE = "the guide, doubling the GPUs: −35 % (CNTK, MXNet), −28 % (Caffe), −10 % (Torch, TensorFlow)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A training on so many ranks."""

    step_s: float
    communication: float  # share of the mean step
    rank_s: tuple[float, ...] = ()  # each rank's own step
    staleness: tuple[tuple[float, ...], ...] = ()  # of each gradient of each rank, of parameter servers

    def cell(self, alone: Measured) -> str:
        """Milliseconds, the change against one rank, samples/s and the share of communication."""
        change = f"{(self.step_s / alone.step_s - 1) * 100:+.0f} %".replace("-", "−")
        return (
            f"{self.step_s * 1e3:.1f} ms ({change}), {BATCH / self.step_s:,.0f}/s, "
            f"{self.communication * 100:.0f} % comm."
        )


def measure(
    hosts: Sequence[Host],
    strategy: str,
    rate: str,
    network: str,
    *,
    more: Sequence[str] = (),
    slow: int | None = None,
) -> Measured:
    """Train on one rank in each of these hosts; with more settings, and a rank at a third of its speed."""
    shared, settings = PLANS[strategy]
    plan = Plan(
        config=CONFIG.format(
            network=NETWORKS[network],
            batch=BATCH * (shared or len(hosts)) // len(hosts),
            steps=STEPS.get(rate, 40),
        ),
        strategy=strategy,
        settings=(*settings, *more),
        ranks_per_host=2 if strategy == "mixed" else 1,
        slow=slow,
    )
    measured = train(hosts[: len(hosts) // plan.ranks_per_host], plan, _measured)
    assert isinstance(measured, Measured)
    return measured


def _measured(run: Run) -> Measured:
    steps = [step for step in run.steps if step.stage is Stage.TRAIN]
    walls = []
    for rank in sorted({step.rank for step in steps}):
        mine = [step.wall_s for step in steps if step.rank == rank][SKIPPED:]
        blocks = len(mine) // TOGETHER
        walls.append(np.median(np.reshape(mine[: blocks * TOGETHER], (blocks, TOGETHER)).mean(axis=1)))
    later = [step for step in steps if step.step >= SKIPPED]
    waited = sum((step.communication_s or 0.0) + (step.idle_s or 0.0) for step in later)
    stale: dict[int, list[float]] = {}
    for step in steps:
        if step.staleness is not None:
            stale.setdefault(step.rank, []).append(step.staleness)
    return Measured(
        step_s=float(np.mean(walls)),
        communication=waited / sum(step.wall_s for step in later),
        rank_s=tuple(map(float, walls)),
        staleness=tuple(tuple(stale[rank]) for rank in sorted(stale)),
    )


def main() -> None:
    """Print a table for each bandwidth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", default=",".join(STEPS))
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--strategies", default=",".join(PLANS))
    parser.add_argument("--network", choices=NETWORKS, default="zener4")
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    counts = [int(count) for count in asked.workers.split(",")]
    hosts = up(max(counts), "1gbit", ssh=False)
    try:
        alone = measure(hosts[:1], "data", "1gbit", asked.network)
        served = [name for name in asked.strategies.split(",") if name in SERVED]
        if served:
            start_ray(hosts, variables=RAY_NODE)
        for rate in asked.rates.split(","):
            set_rate(rate)
            rows = []
            for strategy in asked.strategies.split(","):
                cells = [_cell(hosts[:count], strategy, rate, asked.network, alone) for count in counts]
                rows.append([strategy, *cells])
                print(*rows[-1], sep=" | ", flush=True)
            table = _table(rate, asked.network, alone, counts, rows)
            print(table.text(), flush=True)
            if asked.markdown:
                with open(asked.markdown, "a", encoding="utf-8") as file:
                    file.write(table.markdown() + "\n")
    finally:
        down()


def _cell(hosts: Sequence[Host], strategy: str, rate: str, network: str, alone: Measured) -> str:
    if strategy in OF_FOUR and len(hosts) < 4:
        return NOTHING
    try:
        return measure(hosts, strategy, rate, network).cell(alone)
    except TrainingFailed as error:
        return f"failed ({error})"


def _table(
    rate: str, network: str, alone: Measured, counts: Sequence[int], rows: Sequence[Sequence[str]]
) -> Table:
    return Table(
        title=f"Mini-batch of {BATCH}, {network}, at {rate}, {os.cpu_count()} cores",
        header=["strategy", *(f"{count} ranks" for count in counts)],
        rows=rows,
        notes=[f"one rank: {alone.step_s * 1e3:.1f} ms, {BATCH / alone.step_s:,.0f} samples/s", GUIDE],
    )


if __name__ == "__main__":
    main()
