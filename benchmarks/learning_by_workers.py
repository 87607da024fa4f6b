"""How many workers a way to train bears: `python -m benchmarks.learning_by_workers [--seeds 2]`.

The guide says that synchronous training is sound up to about 40 GPUs, that asynchronous training works with
stale values, and that a mixture is between them. Real gradients on a virtual clock: the Zener network, 16
samples a worker and step, on the guide's clusters, steps 10 % longer or shorter by chance. Every
strategy takes, at each number of workers, the learning rate of `RATES` with which the first seed is fastest.
A row says after how many samples and how many virtual seconds the validation loss reaches the target.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import laptime
from laptime import hardware
from laptime.model import Workload
from laptime.model.comparison import geometric_mean
from laptime.model.plan import Plan
from laptime.simulate import exchange_order
from laptime.simulate.exchange_order import ExchangeOrder, ValidationPause, WorkerPace
from laptime.simulate.training import TrainingRun, simulate
from laptime.training.config import Config
from laptime.training.config.reading import read_config
from laptime.training.virtual_clock import VirtualTraining

BATCH, JITTER, LOSS = 16, 0.1, 0.3
SAMPLES, EPOCHS = 8192, 12
WORKERS = (4, 16, 40, 64)
GROUPS = {4: 2, 16: 4, 40: 8, 64: 8}  # of `mixed`
STRATEGIES = ("data", "mixed", "asynchronous", "local")
RATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
CLUSTER = "guide-clusters"
CONFIG = f"""
network = "zener4"
[data]
kind = "zener"
samples = {SAMPLES}
validation_samples = 200
[train]
batch = {BATCH}
epochs = {EPOCHS}
threads = 1
device = "cpu"
seed = SEED
until = {{loss = {LOSS}}}
[optimizer]
name = "momentum"
lr = RATE
[record]
profile = false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training on the virtual clock."""

    seconds: float  # until the target; infinite where it was not reached
    samples: float
    staleness: float


def plan_of(strategy: str, workers: int) -> Plan:
    """With as many groups as `GROUPS` says."""
    groups = f",groups={GROUPS[workers]}" if strategy == "mixed" else ""
    return Plan.of(strategy + groups, workers=workers)


def order_of(workload: Workload, plan: Plan, updates: int, every: int, seed: int) -> ExchangeOrder:
    """When which gradient reaches which parameters, on the guide's clusters."""
    entry = hardware.cluster(CLUSTER)
    cluster = hardware.cluster(
        CLUSTER, nodes=max(entry.nodes, math.ceil(plan.workers / entry.devices_per_node))
    )
    made = simulate(
        workload, cluster, plan, batch=BATCH, run=TrainingRun(steps=updates, jitter=JITTER, seed=seed)
    )
    if made.exchanges is not None:
        return made.exchanges
    steady = simulate(workload, cluster, plan, batch=BATCH, run=TrainingRun(steps=1, seed=seed))
    paces = [WorkerPace(step_s=steady.step.step_s, spread=JITTER)] * plan.data
    rest_s = max(0.0, steady.step_s - steady.step.step_s)
    pause = ValidationPause(every=every, seconds=0.0)
    if plan.strategy == "local":
        each = plan.average_every
        return exchange_order.local(
            paces, exchange_s=rest_s * each, updates=updates, average_every=each, seed=seed, validation=pause
        )
    return exchange_order.synchronous(paces, exchange_s=rest_s, updates=updates, seed=seed, validation=pause)


def trained(workload: Workload, strategy: str, workers: int, rate: float, seed: int) -> Outcome:
    """One training."""
    plan = plan_of(strategy, workers)
    groups = plan.groups if strategy == "mixed" else workers
    training = VirtualTraining(_config(rate, seed), workers=groups, ranks_per_worker=workers // groups)
    length = training.length
    order = order_of(workload, plan, length.updates, length.validate_every, seed)
    learned = training.learn(order)
    if learned.reached_s is None:
        return Outcome(seconds=math.inf, samples=math.inf, staleness=order.mean_staleness)
    each = BATCH * workers // groups  # samples of a gradient
    gradients = int((order.at_s <= learned.reached_s).sum())
    return Outcome(seconds=learned.reached_s, samples=gradients * each, staleness=order.mean_staleness)


def _config(rate: float, seed: int) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(CONFIG.replace("SEED", str(seed)).replace("RATE", str(rate)), encoding="utf-8")
        return read_config(path).config


def rows(workers: Sequence[int], strategies: Sequence[str], seeds: int) -> Iterator[str]:
    """A line for each strategy and number of workers."""
    workload = laptime.workload("zener4", batch=BATCH)
    yield "| workers | strategy | learning rate | samples | virtual s | staleness | reached |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for count in workers:
        for strategy in strategies:
            tried = {rate: trained(workload, strategy, count, rate, 1) for rate in RATES}
            rate = min(tried, key=lambda rate: tried[rate].seconds)
            every = [tried[rate], *(trained(workload, strategy, count, rate, 1 + n) for n in range(1, seeds))]
            reached = [each for each in every if math.isfinite(each.seconds)]
            told = ["never", "never"]
            if reached:
                samples = geometric_mean([each.samples for each in reached])
                told = [f"{samples:,.0f}", f"{geometric_mean([each.seconds for each in reached]):.3g}"]
            stale = sum(each.staleness for each in every) / len(every)
            yield (
                f"| {count} | `{strategy}` | {rate:g} | {told[0]} | {told[1]} | {stale:.1f} | "
                f"{len(reached)} of {len(every)} |"
            )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    counts = [int(count) for count in asked.workers.split(",")]
    for line in rows(counts, asked.strategies.split(","), asked.seeds):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
