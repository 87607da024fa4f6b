"""Simulated against measured strategies on the test bed: `python -m benchmarks.testbed_simulation`.

One worker trains at the batch sizes that ranks and micro-batches have; its layer times are all that the
simulation knows of the computing. The constants of gloo are fitted to the rows of one strategy (`data`) and
tested on the others. Measured rows: `measured/testbed_strategies.csv`, two cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from laptime.hardware.cluster import Cluster
from laptime.model.plan import SERVED, Plan
from laptime.runs import Run, load
from laptime.simulate.fabric import Fabric, LinkHabits
from laptime.simulate.measured_work import measured_work
from laptime.simulate.step import play
from laptime.simulate.training import TrainingRun, averaging_s, group_of, served
from laptime.simulate.work import RankWork

BATCH, CORES = 64, 2
ROWS = Path(__file__).parent / "measured" / "testbed_strategies.csv"
LINKS = {"1gbit": "ethernet-1g", "100mbit": "ethernet-100m", "10mbit": "ethernet-10m"}
PLANS = {
    "model": "model,micro_batches=4",
    "hybrid": "hybrid,stages=2,micro_batches=4",
    "mixed": "mixed,groups=2",
}
STAGES_OF_2 = 2  # layers of the first of two stages, as laptime cuts this network: conv1 and conv2
SHARED_CORE = 1.15
RAY_S = 0.007  # a call to a parameter server and its answer each, beside the link
# gloo over TCP: what it reaches of a link, what a collective takes beside it, and that it computes itself.
GLOO = LinkHabits(
    inside_beside=1.0, inside_alone=1.0, between=0.9, sync_s=0.003, call_s=0.001, contention=0.0
)
CONFIG = """
network = "zener4"
data = {{kind = "zener", samples = 1024}}
train = {{batch = {batch}, epochs = 100, steps = 60, threads = 1, device = "cpu"}}
validation = {{every = 0}}
checkpoint = {{every = 0}}
"""


def calibrated(folder: Path, batches: Sequence[int]) -> list[Run]:
    """Runs of one worker."""
    runs = []
    for batch in batches:
        out = folder / f"b{batch}"
        if not out.is_dir():
            config = folder / f"b{batch}.toml"
            config.write_text(CONFIG.format(batch=batch), encoding="utf-8")
            subprocess.run(
                [sys.executable, "-m", "laptime", "train", str(config), "--out", str(out), "--json"],
                check=True,
                capture_output=True,
            )
        runs.append(load(out))
    return runs


def crowding(ranks: float) -> float:
    """How much longer a rank takes that shares its core; two in turns lose more than the half."""
    return 1.0 if ranks <= CORES else SHARED_CORE * ranks / CORES


def at_once(plan: Plan) -> float:
    """Ranks that compute at the same time: stages of a pipeline wait for each other."""
    return plan.workers * plan.micro_batches / (plan.micro_batches + plan.stages - 1)


def crowded(work: RankWork, ranks: float) -> RankWork:
    """Ranks that share a core take turns."""
    times = crowding(ranks)
    layers = tuple(
        replace(
            layer,
            forward_s=layer.forward_s * times,
            backward_s=layer.backward_s * times,
            update_s=layer.update_s * times,
        )
        for layer in work.layers
    )
    return replace(work, layers=layers, host_s=work.host_s * times)


def simulated_s(runs: Sequence[Run], strategy: str, rate: str, ranks: int, habits: LinkHabits) -> float:
    """A mini-batch of 64, of all ranks together."""
    plan = Plan.of(PLANS.get(strategy, strategy), workers=ranks)
    cluster = Cluster(
        name="test bed",
        title="test bed",
        device="cpu",
        nodes=max(2, ranks),
        devices_per_node=1,
        inside=None,
        between=LINKS[rate],
    )
    batch = BATCH // plan.data
    work = crowded(measured_work(runs, plan, batch), at_once(plan))
    crowd = crowding(at_once(plan))
    habits = replace(habits, sync_s=habits.sync_s * crowd, call_s=habits.call_s * crowd)
    fabric = Fabric(cluster=cluster, habits=habits)
    if strategy in SERVED:
        if strategy == "mixed":  # a group is on one host
            cluster = replace(cluster, nodes=2, devices_per_node=2, inside="ethernet-10g")
            fabric = Fabric(cluster=cluster, habits=habits)
        step = play(work, group_of(plan), fabric)
        groups = plan.groups if strategy == "mixed" else plan.data
        # The server is on the host of one of them, which no link delays; compared is the mean over ranks.
        far = replace(plan, data=plan.data - plan.data // groups, groups=max(1, plan.groups - 1))
        far_s = served(work, step, far, fabric, TrainingRun(steps=50)).seconds / 50
        return (far_s * (groups - 1) + step.step_s) / groups + 2 * RAY_S * crowding(groups)
    parts = None
    if plan.stages == 2:
        parts = work.layers[:STAGES_OF_2], work.layers[STAGES_OF_2:]
    return play(work, plan, fabric, parts=parts).step_s + averaging_s(work, plan, fabric)


def main() -> int:
    """Print measured, simulated and the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="keep the runs of one worker here, or take them from here")
    parser.add_argument("--between", type=float, default=GLOO.between)
    parser.add_argument("--sync", type=float, default=GLOO.sync_s)
    parser.add_argument("--call", type=float, default=GLOO.call_s)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    habits = replace(GLOO, between=options.between, sync_s=options.sync, call_s=options.call)
    with ROWS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    with tempfile.TemporaryDirectory() as folder:
        kept = options.runs or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        runs = calibrated(kept, (64, 32, 16, 8))
        errors: dict[str, list[float]] = defaultdict(list)
        print("| strategy | ranks | rate | measured ms | simulated ms | error |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for row in rows:
            strategy, rate, ranks = row["strategy"], row["rate"], int(row["ranks"])
            made = simulated_s(runs, strategy, rate, ranks, habits) * 1e3
            error = made / float(row["step_ms"]) - 1
            errors[strategy].append(error)
            print(f"| {strategy} | {ranks} | {rate} | {row['step_ms']} | {made:.1f} | {error:+.0%} |")
    whole = [error for each in errors.values() for error in each]
    tested = [error for name, each in errors.items() if name != "data" for error in each]
    for name, each in [*errors.items(), ("all", whole), ("all but data", tested)]:
        sizes = np.abs(each) * 100
        print(f"{name}: mean {sizes.mean():.1f} %, p90 {np.quantile(sizes, 0.9):.1f} %, {len(sizes)} rows")
    if options.json:
        print(json.dumps(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
