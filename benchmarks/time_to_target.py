"""Time until a target loss, by strategy: `python -m benchmarks.time_to_target [--rates 100mbit]`.

The guide's question: synchronous, asynchronous or mixed? Four ranks of one thread each, two on each of two
hosts (`on_hosts.py`), a link between them, the Zener network with 16 samples a rank and step, until a
validation loss of 0.3 is reached. Once with equal ranks, and once with one rank at a third of its speed.

Every strategy has the learning rate, of those in `--lr`, with which its first repetition at equal ranks was
fastest (`best_rate`). Seconds run from the first step, validations included; those of a training that did
not reach the target in time are left out and counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.testbed import Host, down, set_rate, start_ray, up

from benchmarks.on_hosts import RAY_NODE, SERVED, Plan, TrainingFailed, train
from benchmarks.tables import Table
from laptime.model.comparison import geometric_mean, mean_interval
from laptime.model.target import TargetTime
from laptime.runs import Run

HOSTS, RANKS_PER_HOST, BATCH = 2, 2, 16
LOSS = 0.3
SLOW = 3  # the rank that is slow
PLANS = {
    "data": (),
    "asynchronous": (),
    "mixed": ("parallel.groups=2",),
    "local": ("parallel.average_every=8",),
}
CONFIG = f"""
network = "zener4"
[data]
kind = "zener"
samples = 1024
validation_samples = 200
[train]
batch = {BATCH}
epochs = 40
threads = 1
device = "cpu"
seed = SEED
until = {{loss = {LOSS}}}
[optimizer]
name = "momentum"
lr = RATE
[checkpoint]
every = 0
[record]
profile = false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetitions:
    """The same training with several seeds."""

    seconds: tuple[float, ...]  # of those that reached the target
    tried: int
    reason: str = ""  # why the last one failed that did

    def cell(self) -> str:
        """The mean with its interval, and how many reached the target if not all did."""
        if not self.seconds:
            return f"not reached ({self.tried} tried{self.reason})"
        low, high = mean_interval(self.seconds)
        interval = "" if math.isnan(low) else f" [{low:.1f}, {high:.1f}]"
        missed = f", {len(self.seconds)} of {self.tried}" if len(self.seconds) < self.tried else ""
        return f"{geometric_mean(self.seconds):.1f} s{interval}{missed}"


def repeat(
    hosts: Sequence[Host],
    strategy: str,
    lr: float,
    seeds: Sequence[int],
    *,
    slow: bool,
    rows: Path | None = None,
) -> Repetitions:
    """Train once with each seed; each training is a line of `rows`."""
    seconds, reason = [], ""
    for seed in seeds:
        config = CONFIG.replace("SEED", str(seed)).replace("RATE", str(lr))
        plan = Plan(
            config=config,
            strategy=strategy,
            settings=PLANS[strategy],
            ranks_per_host=RANKS_PER_HOST,
            slow=SLOW if slow else None,
        )
        try:
            target = train(hosts, plan, _target)
        except TrainingFailed as error:
            reason = f"; {error}"
            continue
        if not isinstance(target, TargetTime):
            continue
        if target.reached:
            seconds.append(target.seconds)
        if rows is not None:
            told = {"strategy": strategy, "lr": lr, "slow": slow, "seed": seed}
            with open(rows, "a", encoding="utf-8") as file:
                file.write(json.dumps(told | target.document()) + "\n")
        print(strategy, lr, "slow" if slow else "equal", seed, target, flush=True)
    return Repetitions(seconds=tuple(seconds), tried=len(seeds), reason=reason)


def _target(run: Run) -> TargetTime | None:
    return TargetTime.of(run.summary)


def best_rate(hosts: Sequence[Host], strategy: str, rates: Sequence[float]) -> float:
    """The learning rate with which the first seed reaches the target first; from the lowest on, while it
    gets faster, since one that is far too high takes all epochs."""
    best, fastest_s = rates[0], math.inf
    for lr in sorted(rates):
        seconds = min(repeat(hosts, strategy, lr, [1], slow=False).seconds, default=math.inf)
        if seconds > fastest_s:
            break
        if seconds < fastest_s:
            best, fastest_s = lr, seconds
    return best


def main() -> None:
    """Print a table for each bandwidth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", default="1gbit,100mbit")
    parser.add_argument("--strategies", default=",".join(PLANS))
    parser.add_argument(
        "--lr", default="0.01,0.02,0.04", help="or one of each strategy: data=0.08,mixed=0.02"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--rows", type=Path, help="a line of JSON for each training")
    asked = parser.parse_args()
    named = dict(word.split("=") for word in asked.lr.split(",") if "=" in word)
    rates, seeds = [float(lr) for lr in asked.lr.split(",") if "=" not in lr], range(1, asked.repeat + 1)
    hosts = up(HOSTS, "1gbit", ssh=False)
    try:
        if set(asked.strategies.split(",")) & set(SERVED):
            start_ray(hosts, RANKS_PER_HOST, RAY_NODE)
        for rate in asked.rates.split(","):
            set_rate(rate)
            rows = []
            for strategy in asked.strategies.split(","):
                if strategy in named:
                    lr = float(named[strategy])
                else:
                    lr = best_rate(hosts, strategy, rates) if len(rates) > 1 else rates[0]
                cells = [
                    repeat(hosts, strategy, lr, seeds, slow=slow, rows=asked.rows).cell()
                    for slow in (False, True)
                ]
                rows.append([strategy, f"{lr:g}", *cells])
            table = Table(
                title=f"Seconds to a validation loss of {LOSS} at {rate}, {os.cpu_count()} cores",
                header=["strategy", "learning rate", "equal ranks", "one rank at a third of its speed"],
                rows=rows,
                notes=[f"geometric mean of {asked.repeat} seeds, 95 % interval"],
            )
            print(table.text(), flush=True)
            if asked.markdown:
                with open(asked.markdown, "a", encoding="utf-8") as file:
                    file.write(table.markdown() + "\n")
    finally:
        down()


if __name__ == "__main__":
    main()
