"""Time until a loss, simulated beside measured: `python -m benchmarks.target_simulation`.

The trainings of `benchmarks.time_to_target` on a virtual clock: real gradients in one process, in the order
in which four ranks on two hosts exchange them over 100 Mbit/s. What a rank's step takes was measured by one
worker; the rest follows from bytes, bandwidth and two cores, as in `benchmarks.testbed_simulation`. Each
training is computed with the seed of a measured one. Where the parameter server runs is Ray's choice; here it
is on the first host for odd seeds and on the second for even ones.

Measured: `python -m benchmarks.time_to_target --rates 100mbit --lr data=0.08,… --repeat 4 --rows FILE`, kept
in `measured/testbed_targets.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.on_hosts import STOPPED_S
from benchmarks.testbed_rows import FOLDER, SLOW
from benchmarks.testbed_simulation import BUCKETS, SLOWDOWN, SPREAD
from benchmarks.testbed_work import APPLY_S, CALL_S, CORES, MEETING, NEAR_CALL_S, bed, measured, work_of
from benchmarks.time_to_target import BATCH, CONFIG, HOSTS, LOSS, PLANS, RANKS_PER_HOST
from laptime.hardware import cluster_links
from laptime.model.comparison import geometric_mean
from laptime.model.plan import Plan
from laptime.simulate.exchange_order import (
    ExchangeOrder,
    ServerLink,
    ValidationPause,
    WorkerPace,
    local,
    play,
    synchronous,
)
from laptime.simulate.fabric import GLOO
from laptime.training.config.reading import read_config
from laptime.training.virtual_clock import Learned, VirtualTraining

ROWS = FOLDER / "testbed_targets.jsonl"
RATE, RANKS = "100mbit", HOSTS * RANKS_PER_HOST
VALIDATED = 200  # samples
AVERAGE_EVERY = 8
FAR_S = 0.07
# A rank that is stopped two thirds of the time, for 20 ms each, comes so much later at each hop of a ring.
STOPPED_HOP_S = 2 / 3 * STOPPED_S / 2
HOPS = 2 * (RANKS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One of those that were measured."""

    strategy: str
    lr: float
    slow: bool
    seed: int
    first: bool  # whether the server was on the host of rank 0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Training:
        """A step of rank 0 that crossed the link both ways takes longer than this."""
        known = {name: row[name] for name in ("strategy", "lr", "slow", "seed")}
        return cls(first=row["seconds"] / row["step"] < FAR_S, **known)

    def learned(self) -> tuple[ExchangeOrder, Learned]:
        """On the virtual clock."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.toml"
            text = CONFIG.replace("SEED", str(self.seed)).replace("RATE", str(self.lr))
            path.write_text(text, encoding="utf-8")
            config = read_config(path, PLANS[self.strategy]).config
        group = RANKS_PER_HOST if self.strategy == "mixed" else 1
        training = VirtualTraining(config, workers=RANKS // group, ranks_per_worker=group)
        order = self.schedule(training.length.updates, training.length.validate_every)
        return order, training.learn(order)

    def schedule(self, updates: int, every: int) -> ExchangeOrder:
        """When which gradient reaches which parameters."""
        work = work_of(Plan(), BATCH)
        step_s = work.host_s + sum(
            layer.forward_s + layer.backward_s + layer.update_s for layer in work.layers
        )
        forward_s = sum(layer.forward_s for layer in work.layers) / BATCH
        size = sum(layer.parameters for layer in work.layers) * 4
        _, link = cluster_links(bed(RATE, HOSTS))
        assert link is not None
        over_s = size / (link.bandwidth * GLOO.between) + link.latency_s
        served = self.strategy in ("asynchronous", "mixed")
        # With servers the first worker judges all samples, else each rank its part.
        judges = RANKS_PER_HOST if self.strategy == "mixed" else 1 if served else RANKS
        pause = ValidationPause(every=every, seconds=forward_s * VALIDATED / judges)
        sync_s = GLOO.sync_s * CORES.turns * RANKS / CORES.count
        # A ring of four ranks crosses the link between two hosts with 3/2 of the bytes each way.
        ring_s = 1.5 * over_s + sync_s + (HOPS * STOPPED_HOP_S if self.slow else 0.0)
        size_of_group = RANKS_PER_HOST if self.strategy == "mixed" else 1
        at_server = [
            served and (worker * size_of_group < RANKS_PER_HOST) == self.first
            for worker in range(RANKS // size_of_group)
        ]
        paces = [
            WorkerPace(
                step_s=step_s + (BUCKETS * GLOO.call_s if size_of_group > 1 else 0.0),
                slowdown=SLOWDOWN if self.slow and worker == SLOW // size_of_group else 1.0,
                spread=SPREAD,
                near=here,
                ranks=size_of_group,
                call_s=(NEAR_CALL_S if here else CALL_S) if served else 0.0,
            )
            for worker, here in enumerate(at_server)
        ]
        common: dict[str, Any] = {"updates": updates, "seed": self.seed, "validation": pause, "cores": CORES}
        if self.strategy == "data":
            return synchronous(paces, exchange_s=ring_s, **common)
        if self.strategy == "local":  # what is validated is the average of all
            common["validation"] = ValidationPause(every=every, seconds=pause.seconds + ring_s)
            return local(paces, exchange_s=ring_s, average_every=AVERAGE_EVERY, **common)
        return play(
            paces,
            ServerLink(push_s=over_s, pull_s=over_s, apply_s=APPLY_S, meeting=MEETING),
            staleness=None,
            **common,
        )


def lines(rows: Sequence[Mapping[str, Any]], every: bool) -> Iterator[str]:
    """A row for each strategy, with equal ranks and with a slow one."""
    cells: dict[tuple[str, bool], list[tuple[Mapping[str, Any], ExchangeOrder, Learned]]] = defaultdict(list)
    for row in rows:
        training = Training.of(row)
        order, learned = training.learned()
        cells[training.strategy, training.slow].append((row, order, learned))
        if every:
            reached = "not" if learned.reached_s is None else f"{learned.reached_s:.1f} s"
            yield (
                f"{training}: measured {row['seconds']:.1f} s after {row['step']} steps of rank 0 "
                f"({'reached' if row['reached'] else 'not reached'}), simulated {reached}, "
                f"{learned.updates} updates"
            )
    yield f"| until a loss of {LOSS} | measured s | simulated s | error | a step of rank 0 | simulated |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for (strategy, slow), found in cells.items():
        real = [float(row["seconds"]) for row, _, _ in found if row["reached"]]
        made = [learned.reached_s for _, _, learned in found if learned.reached_s is not None]
        each = np.median([row["seconds"] / row["step"] for row, _, _ in found])
        played = np.median([_first_s(order) for _, order, _ in found])
        error = geometric_mean(made) / geometric_mean(real) - 1 if made and real else float("nan")
        yield (
            f"| {strategy}{', one slow rank' if slow else ''} | {_cell(real, len(found))} | "
            f"{_cell(made, len(found))} | {error:+.0%} | {each * 1e3:.1f} ms | {played * 1e3:.1f} ms |"
        )


def _first_s(order: ExchangeOrder) -> float:
    """A step of worker 0, validations included."""
    mine = order.worker == 0
    return float(order.answered_s[mine].max()) / int(mine.sum())


def _cell(seconds: Sequence[float], tried: int) -> str:
    missed = f" ({len(seconds)} of {tried})" if len(seconds) < tried else ""
    return (f"{geometric_mean(seconds):.1f}" if seconds else "never") + missed


def main() -> int:
    """Print simulated beside measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--every", action="store_true", help="each training")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.rows.read_text(encoding="utf-8").splitlines()]
    for line in lines(rows, asked.every):
        print(line, flush=True)
    alone = measured()[BATCH]
    print(f"\none worker: {alone.wall_s * 1e3:.2f} ms a step of {BATCH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
