"""How fast simulations are: `python -m benchmarks.simulation_speed`. One core; memory is the process' peak.

The last row only plans a network of 405 billion parameters, which nothing allocates.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import laptime
from benchmarks.tables import Table
from laptime import hardware
from laptime.model import Workload
from laptime.model.plan import Plan
from laptime.simulate.search import search
from laptime.simulate.training import TrainingRun, simulate

LLAMA: dict[str, Any] = {
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "intermediate_size": 53248,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def _gpt2() -> Workload:
    return laptime.workload("gpt2", batch=8, precision="bf16")


def _llama() -> Workload:
    import torch
    import transformers

    with torch.device("meta"):
        network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    ids = torch.zeros((1, 8192), dtype=torch.int64, device="meta")
    return laptime.workload(
        network,
        example={"input_ids": ids, "labels": ids},
        precision="bf16",
        optimizer="adamw",
        name="llama-405b",
    )


def _simulated(workload: Workload, plan: str, workers: int, steps: int) -> str:
    cluster = hardware.cluster("meta-24k", nodes=workers // 8)
    made = simulate(
        workload,
        cluster,
        Plan.of(plan, workers=workers),
        batch=max(8, Plan.of(plan, workers=workers).micro_batches),
        run=TrainingRun(steps=steps, jitter=0.02),
    )
    return f"{made.step_s:.3g} s a step"


def _searched(workload: Workload) -> str:
    found = search(
        workload,
        [hardware.cluster("aws-p5", nodes=4)],
        global_batch=512,
        run=TrainingRun(steps=10, samples=1_000_000, epochs=1),
        most=2000,
    )
    return f"{found.considered} plans"


def _served(workload: Workload) -> str:
    cluster = hardware.cluster("meta-24k", nodes=64)
    made = simulate(
        workload, cluster, Plan.of("asynchronous,servers=8", workers=512), run=TrainingRun(steps=1000)
    )
    assert made.exchanges is not None
    return f"{len(made.exchanges):,} updates"


QUESTIONS: Mapping[str, tuple[str, float, Callable[[], Workload], Callable[[Workload], str]]] = {
    "data": (
        "GPT-2, 512 workers × 1,000 steps, `data`",
        10,
        _gpt2,
        lambda read: _simulated(read, "data", 512, 1000),
    ),
    "hybrid": (
        "GPT-2, 512 workers × 1,000 steps, 8 stages × 8 ranks of features",
        10,
        _gpt2,
        lambda read: _simulated(read, "hybrid,stages=8,feature=8,micro_batches=32", 512, 1000),
    ),
    "served": ("GPT-2, 512 workers × 1,000 steps, `asynchronous`", 10, _gpt2, _served),
    "many": (
        "GPT-2, 16,384 workers × 10 steps, `sharded`",
        60,
        _gpt2,
        lambda read: _simulated(read, "sharded", 16384, 10),
    ),
    "pipelines": (
        "GPT-2, 16,384 workers × 10 steps, 8 stages × 8 ranks of features",
        60,
        _gpt2,
        lambda read: _simulated(read, "hybrid,stages=8,feature=8,micro_batches=64", 16384, 10),
    ),
    "search": ("a search over at least 1,000 plans of GPT-2", 60, _gpt2, _searched),
    "llama": (
        "405 billion parameters, 16,384 workers × 10 steps, 16 stages × 8 ranks of features",
        60,
        _llama,
        lambda read: _simulated(read, "hybrid,stages=16,feature=8,sequence,micro_batches=16", 16384, 10),
    ),
}


def ask(name: str) -> None:
    """One question in this process: seconds without reading the network, peak memory, what came of it."""
    _, _, read, answer = QUESTIONS[name]
    began = time.perf_counter()
    workload = read()
    reading_s = time.perf_counter() - began
    simulate(workload, hardware.cluster("aws-p5"), Plan(), run=TrainingRun(steps=1))  # tables of the device
    began = time.perf_counter()
    told = answer(workload)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{reading_s:.1f} s|{seconds:.1f} s|{peak:.2f} GiB|{told}")


def main() -> int:
    """Print the table; each question has a process of its own, on one core."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--question", choices=QUESTIONS)
    asked = parser.parse_args()
    if asked.question:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        ask(asked.question)
        return 0
    rows = []
    for name, (title, most_s, _, _) in QUESTIONS.items():
        words = [sys.executable, "-m", "benchmarks.simulation_speed", "--question", name]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        rows.append([title, *said.strip().splitlines()[-1].split("|"), f"{most_s} s, 2 GiB"])
        print(*rows[-1], sep=" | ", flush=True)
    table = Table(
        title="Simulations on one core",
        header=["", "reading the network", "simulating", "peak memory", "result", "target"],
        rows=rows,
    )
    print(table.markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
