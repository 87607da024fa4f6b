"""Section `memory`: resident memory of a process whose recorder takes in a million steps.

A fake clock and a network of one weight make steps as fast as they can be recorded. Most steps only set the
marks that a real one would; every twentieth runs forward, backward and update, so that hooks and the autograd
graph are in it. Finished steps wait in a queue and rows in a buffer, both of bounded length, so memory goes
up and down within seconds; a plateau is the lowest sample of a window. Python's own count of live blocks is
kept beside it: allocators fragment, but an object kept per step would show there as one block per step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import laptime
from laptime.recorder.backends import FakeClock
from laptime.recorder.recorder import Recorder
from laptime.recorder.timeline import HOST, LOSS, OPTIMIZERS, backward_code, forward_code

Sample = tuple[int, int, int]  # steps recorded, resident bytes, live Python blocks
Column = NDArray[np.float64]

STEPS = 1_000_000
WINDOWS = 20  # a window is 50,000 of a million steps
SAMPLES_PER_WINDOW = 25
REAL_EVERY = 20
SETTLED = 0.2  # of the steps: queues, buffers and allocators have reached their size
TARGET_GROWTH = 0.05  # from the first plateau to the last; 20 bytes kept per step would be as much
TARGET_BLOCKS_PER_STEP = 0.01
MARKS = (forward_code(0), LOSS, backward_code(0), OPTIMIZERS, HOST)


def resident_bytes() -> int:
    """Resident set size of this process, from the kernel."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def measure(*, steps: int = STEPS, root: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Resident memory by steps recorded: first and last plateau, slope, and what closing the run takes."""
    torch.set_num_threads(1)
    network = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    clock = FakeClock()
    recording = laptime.record(network, optimizer, out=root / "long", every_step=True, clock=clock)
    began = time.perf_counter()
    with recording:
        samples = _record(recording, network, optimizer, clock, steps, say)
        loop_s = time.perf_counter() - began
        open_bytes = resident_bytes()
    return {
        **plateaus(samples),
        "steps": steps,
        "seconds": loop_s,
        "closing_s": time.perf_counter() - began - loop_s,
        "closing_bytes": resident_bytes() - open_bytes,
        "recorded": recording.run.summary["steps"],
        "target_growth": TARGET_GROWTH,
        "target_blocks_per_step": TARGET_BLOCKS_PER_STEP,
    }


def _record(
    recording: Recorder,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    clock: FakeClock,
    steps: int,
    say: Callable[[str], None],
) -> list[Sample]:
    every = max(1, steps // (WINDOWS * SAMPLES_PER_WINDOW))
    value = torch.zeros(1, 1)
    mark, lap, advance = recording.timeline.mark, recording.lap, clock.advance
    samples: list[Sample] = []
    recording.lap()  # opens the first step
    for count in range(steps):
        if count % REAL_EVERY == 0:
            advance(5e-3)
            network(value).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            for code in MARKS:
                mark(code)
                advance(1e-3)
        lap()
        if count % every == 0:
            samples.append((count, resident_bytes(), sys.getallocatedblocks()))
            if count % (every * SAMPLES_PER_WINDOW) == 0:
                say(f"memory: {count:,} steps, {samples[-1][1] / 2**20:.0f} MiB")
    return samples


def plateaus(samples: list[Sample]) -> dict[str, Any]:
    """The lowest sample of each window, and slopes over the windows past the first fifth."""
    counts, sizes, blocks = (np.array(column, dtype=np.float64) for column in zip(*samples, strict=True))
    groups = np.array_split(np.arange(len(samples)), min(WINDOWS, len(samples)))
    at = np.array([counts[group].mean() for group in groups])
    lowest = np.array([sizes[group].min() for group in groups])
    fewest = np.array([blocks[group].min() for group in groups])
    settled = at >= SETTLED * counts[-1]
    return {
        "first_bytes": float(lowest[settled][0]),
        "last_bytes": float(lowest[settled][-1]),
        "largest_bytes": float(sizes.max()),
        "growth": float(lowest[settled][-1] / lowest[settled][0]) - 1.0,
        "bytes_per_step": slope(at[settled], lowest[settled]),
        "blocks_per_step": slope(at[settled], fewest[settled]),
        "windows": [
            {"steps": float(x), "bytes": float(y), "blocks": float(z)}
            for x, y, z in zip(at, lowest, fewest, strict=True)
        ],
    }


def slope(x: Column, y: Column) -> float:
    """Theil and Sen's: the median over all pairs, so that a single odd window has no say."""
    i, j = np.triu_indices(len(x), k=1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i]))) if len(i) else float("nan")


def main() -> None:
    """`python -m benchmarks.memory --steps N`: the section by itself, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps: int = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="laptime-bench-") as folder:
        print(json.dumps(measure(steps=steps, root=Path(folder)), indent=1))


if __name__ == "__main__":
    main()
