"""Section `own`: what a recording adds to a CPU step, measured on the same network without its arithmetic.

A shared machine's steps of seconds differ by a tenth, in which a recorder's millisecond drowns. So the same
layers are run with nothing in them: on meta tensors (which is too hard on us: torch's meta operators are
Python that calls `Tensor.to`, which a recording watches), GPT-2 with vectors of 24. A step of milliseconds is
run as it is. What recording adds is the same. The writer thread's processor time is added in full, as if
training waited for it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Size, Variant, run_block
from benchmarks.networks import Configuration, workload
from benchmarks.variants import Bare, Laptime

BLOCK_S = 0.5
SECONDS = 30.0
REAL_STEPS = 5


def measure(
    one: Configuration, step_s: float, *, root: Path, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Seconds that recording every step adds, by the thread that trains and by the one that writes."""
    say(f"{one.label}: recorder's own work")
    real = one.bound == "launch"
    work = workload(one, "cpu" if real or one.network == "gpt2" else "meta", narrow=not real)
    begin = time.perf_counter()
    for _ in range(REAL_STEPS):
        work.step(work.batch)
    count = max(4, round(BLOCK_S / ((time.perf_counter() - begin) / REAL_STEPS)))
    every = Laptime(work, root, every_step=True)
    variants: list[Variant] = [Bare(), every]
    found: dict[str, list[float]] = {variant.name: [] for variant in variants}
    ends = time.perf_counter() + SECONDS
    while time.perf_counter() < ends or len(found["bare"]) < 6:
        for variant in variants:
            gc.collect()
            block = run_block(work, variant, Size(warmup=3, steps=count), index=len(found["bare"]))
            found[variant.name] += block.step_s
        variants.reverse()
    # The lowest tenth: whatever else runs on the machine only ever adds.
    low = {name: float(np.quantile(steps, 0.1)) for name, steps in found.items()}
    background = [run.summary["background_share"] * run.summary["step_s"]["median"] for run in every.runs]
    added, written = low["every_step"] - low["bare"], float(np.median(background))
    return {
        "marks": len(every.runs[0].network) * 2,
        "host_s": low["bare"],
        "added_s": added,
        "written_s": written,
        "step_s": step_s,
        "share": (added + written) / step_s,
        "target": one.target,
        "steps": {name: len(steps) for name, steps in found.items()},
    }
