"""Time until a loss, simulated: `python -m benchmarks.target_simulation [--seeds 4]`.

The trainings of `benchmarks.time_to_target` on a virtual clock: real gradients in one process, in the order
in which four ranks on two hosts exchange them over 100 Mbit/s. What a rank's step takes is measured by one
worker; exchanges follow from bytes and bandwidth, with the constants of `benchmarks.testbed_simulation`.
Measured times: docs/scale.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed_simulation import CORES, GLOO, RAY_S, SHARED_CORE, calibrated
from benchmarks.time_to_target import CONFIG, HOSTS, PLANS, RANKS_PER_HOST
from laptime.model.comparison import geometric_mean
from laptime.simulate.exchange_order import (
    ExchangeOrder,
    ServerLink,
    ValidationPause,
    WorkerPace,
    local,
    play,
    synchronous,
)
from laptime.training.config.reading import read_config
from laptime.training.virtual_clock import VirtualTraining

RANKS, BATCH = HOSTS * RANKS_PER_HOST, 16
BYTES, LINK = 126_177 * 4, 100e6 / 8 * GLOO.between
AVERAGE_EVERY = 8
# Learning rates, and seconds until a validation loss of 0.3, measured: with equal ranks, with a straggler.
MEASURED: Mapping[str, tuple[float, float, float]] = {
    "data": (0.08, 18.0, 28.0),
    "asynchronous": (0.01, 9.7, 13.1),
    "mixed": (0.02, 8.8, 14.1),
    "local": (0.04, 7.2, 12.5),
}
SLOWDOWN = 3.0  # of the straggler


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a rank's step and of the exchanges."""

    step_s: float
    validation_s: float

    @property
    def all_reduce_s(self) -> float:
        """A ring of four ranks crosses the link between two hosts with 3/2 of the bytes each way."""
        return 1.5 * BYTES / LINK + GLOO.sync_s * SHARED_CORE * RANKS / CORES


def schedule(
    strategy: str, costs: Costs, updates: int, every: int, *, slow: bool, seed: int
) -> ExchangeOrder:
    """When which gradient reaches which parameters."""
    pause = ValidationPause(every=every, seconds=costs.validation_s)
    paces = [
        WorkerPace(
            step_s=costs.step_s,
            slowdown=SLOWDOWN if slow and rank == RANKS - 1 else 1.0,
            spread=0.1,
            near=rank < RANKS_PER_HOST,
        )
        for rank in range(RANKS)
    ]
    if strategy == "data":
        return synchronous(paces, exchange_s=costs.all_reduce_s, updates=updates, seed=seed, validation=pause)
    if strategy == "local":
        return local(
            paces,
            exchange_s=costs.all_reduce_s,
            average_every=AVERAGE_EVERY,
            updates=updates,
            seed=seed,
            validation=pause,
        )
    over_s = BYTES / LINK
    if strategy == "mixed":  # two groups of two, each on its host
        inside_s = GLOO.sync_s * SHARED_CORE * RANKS / CORES
        paces = [
            WorkerPace(
                step_s=max(pace.mean_s for pace in paces[first : first + 2]) + inside_s + 2 * RAY_S,
                spread=0.1,
                near=first == 0,
            )
            for first in (0, RANKS_PER_HOST)
        ]
    else:
        each_s = 2 * RAY_S * SHARED_CORE * RANKS / CORES
        paces = [
            WorkerPace(step_s=pace.mean_s + each_s, spread=pace.spread, near=pace.near) for pace in paces
        ]
    return play(
        paces,
        ServerLink(push_s=over_s, pull_s=over_s, apply_s=0.0005),
        updates=updates,
        staleness=None,
        seed=seed,
        validation=pause,
    )


def main() -> int:
    """Print simulated beside measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--runs", type=Path, help="runs of one worker, as of benchmarks.testbed_simulation")
    options = parser.parse_args()
    print("| strategy | measured s | simulated s | error | slow rank: measured | simulated | error | stale |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        kept = options.runs or Path(folder)
        [run] = calibrated(kept, (BATCH,))
        alone_s = run.accounts().wall.median
        costs = Costs(
            step_s=alone_s * SHARED_CORE * RANKS / CORES,
            validation_s=200 / RANKS / BATCH * alone_s / 3 * SHARED_CORE * RANKS / CORES,
        )
        for strategy, (rate, equal_s, slow_s) in MEASURED.items():
            cells = [strategy]
            stale = ""
            for slow, measured_s in ((False, equal_s), (True, slow_s)):
                reached = []
                for seed in range(1, options.seeds + 1):
                    path = Path(folder) / "config.toml"
                    path.write_text(
                        CONFIG.replace("SEED", str(seed)).replace("RATE", str(rate)), encoding="utf-8"
                    )
                    config = read_config(path, PLANS[strategy]).config
                    group = RANKS_PER_HOST if strategy == "mixed" else 1
                    training = VirtualTraining(config, workers=RANKS // group, ranks_per_worker=group)
                    length = training.length
                    made = schedule(
                        strategy, costs, length.updates, length.validate_every, slow=slow, seed=seed
                    )
                    learned = training.learn(made)
                    if learned.reached_s is not None:
                        reached.append(learned.reached_s)
                    if not slow:
                        stale = f"{made.mean_staleness:.2f}"
                found = geometric_mean(reached) if reached else float("nan")
                missed = f" ({len(reached)} of {options.seeds})" if len(reached) < options.seeds else ""
                cells += [f"{measured_s:.1f}", f"{found:.1f}{missed}", f"{found / measured_s - 1:+.0%}"]
            print("| " + " | ".join([*cells, stale]) + " |", flush=True)
    print(f"\none worker: {alone_s * 1e3:.2f} ms a step of {BATCH}; {costs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
