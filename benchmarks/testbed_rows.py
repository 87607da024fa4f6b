"""Measures what `testbed_simulation` compares with: `python -m benchmarks.testbed_rows [--repeat 3]`.

One worker at the batch sizes that ranks and micro-batches have, layer by layer; then every strategy on hosts
made of network namespaces, as `benchmarks.strategies` trains them, at three bandwidths, in turns; and
asynchronous training with a slow rank and with a bound. All on one machine, one after the other, into
`measured/testbed_worker.json` and `measured/testbed_strategies.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.testbed import down, set_rate, start_ray, up

from benchmarks.on_hosts import RAY_NODE, SERVED, TrainingFailed
from benchmarks.on_hosts import Plan as Spread
from benchmarks.on_hosts import train as train_on
from benchmarks.strategies import BATCH, CONFIG, NETWORKS, OF_FOUR, PLANS, STEPS, Measured, measure
from laptime.model import Account
from laptime.runs import Run

FOLDER = Path(__file__).parent / "measured"
WORKER, ROWS = FOLDER / "testbed_worker.json", FOLDER / "testbed_strategies.jsonl"
BATCHES = (64, 32, 16, 8)  # of a rank, or of one of its micro-batches
RANKS = 4
SLOW = 3  # the rank that is slow
BOUND = 2  # updates
OUTSIDE = (Account.DATA_WAIT, Account.COPY, Account.HOST, Account.INSTRUMENT, Account.UNEXPLAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A strategy at a bandwidth."""

    strategy: str
    rate: str
    ranks: int
    slow: bool = False
    bound: int | None = None

    def settings(self) -> list[str]:
        """Of `laptime train`."""
        return [] if self.bound is None else [f"parallel.staleness={self.bound}"]


def cells(*, served: bool) -> Iterator[Cell]:
    """Everything that is measured at each bandwidth, with parameter servers or without."""
    for rate in STEPS:
        for strategy in PLANS:
            for ranks in (2, RANKS):
                if (strategy in SERVED) == served and (ranks == RANKS or strategy not in OF_FOUR):
                    yield Cell(strategy=strategy, rate=rate, ranks=ranks)
        if not served:
            continue
        yield Cell(strategy="asynchronous", rate=rate, ranks=RANKS, slow=True)
        yield Cell(strategy="asynchronous", rate=rate, ranks=RANKS, bound=BOUND)
        yield Cell(strategy="asynchronous", rate=rate, ranks=RANKS, slow=True, bound=BOUND)


def row(cell: Cell, made: Measured) -> dict[str, Any]:
    """What is kept of a training."""
    told = asdict(cell) | {"step_ms": round(made.step_s * 1e3, 3)}
    told["communication"] = round(made.communication, 4)
    if made.staleness:
        told["staleness"] = [[int(each) for each in rank] for rank in made.staleness]
        told["rank_ms"] = [round(each * 1e3, 2) for each in made.rank_s]
    return told


def alone(run: Run) -> Mapping[str, Any]:
    """Seconds of each layer of one worker: forward, backward, update; and between them."""
    accounts = run.accounts()
    return {
        "host_s": sum(accounts[account].seconds.mean for account in OUTSIDE),
        "wall_s": accounts.wall.median,
        "layers": {each.layer: [each.forward_s, each.backward_s, each.update_s] for each in run.layers()},
    }


def one_worker(batch: int) -> Mapping[str, Any]:
    """A training of one rank on a host of its own."""
    config = CONFIG.format(network=NETWORKS["zener4"], batch=batch, steps=120)
    hosts = up(1, "1gbit", ssh=False)
    made = train_on(hosts, Spread(config=config, strategy="data"), alone)
    assert isinstance(made, Mapping)
    return made


def median_of(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several trainings, number by number."""
    layers = {
        name: np.median([part["layers"][name] for part in parts], axis=0).round(7).tolist()
        for name in parts[0]["layers"]
    }
    middle = {
        name: round(float(np.median([part[name] for part in parts])), 7) for name in ("host_s", "wall_s")
    }
    return {**middle, "layers": layers}


def main() -> None:
    """Measure, and write what was measured after each training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--strategies", default=",".join(PLANS), help="the others' rows stay as they are")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--worker", type=Path, default=WORKER)
    asked = parser.parse_args()
    wanted = asked.strategies.split(",")
    single: dict[int, list[Mapping[str, Any]]] = {batch: [] for batch in BATCHES}
    facts = {"cores": os.cpu_count(), "torch": torch.__version__, "batch": BATCH}
    with tempfile.NamedTemporaryFile("w", dir=FOLDER, suffix=".jsonl", delete=False) as file:
        try:
            for line in asked.rows.read_text(encoding="utf-8").splitlines() if asked.rows.exists() else ():
                if json.loads(line)["strategy"] not in wanted:
                    file.write(line + "\n")
            for repetition in range(asked.repeat):
                started = False
                for batch in BATCHES:
                    single[batch].append(one_worker(batch))
                down()
                hosts = up(RANKS, "1gbit", ssh=False)
                for cell in (*cells(served=False), *cells(served=True)):
                    if cell.strategy not in wanted:
                        continue
                    if cell.strategy in SERVED and not started:  # its nodes take processor time
                        start_ray(hosts, variables=RAY_NODE)
                        started = True
                    set_rate(cell.rate)
                    try:
                        made = measure(
                            hosts[: cell.ranks],
                            cell.strategy,
                            cell.rate,
                            "zener4",
                            more=cell.settings(),
                            slow=SLOW if cell.slow else None,
                        )
                    except TrainingFailed as error:
                        print(cell, f"failed: {error}", flush=True)
                        continue
                    told = row(cell, made) | {"repetition": repetition}
                    file.write(json.dumps(told) + "\n")
                    file.flush()
                    print({name: told[name] for name in told if name != "staleness"}, flush=True)
                down()
        finally:
            down()
            os.replace(file.name, asked.rows)
            asked.rows.chmod(0o644)
    worker = facts | {"batches": {batch: median_of(parts) for batch, parts in single.items() if parts}}
    asked.worker.write_text(json.dumps(worker, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
