"""Section `memory`: resident memory of a process whose recorder takes in a million steps.

A fake clock and a network of one weight make steps as fast as they can be recorded. Most steps only set the
marks that a real one would; every twentieth runs forward, backward and update, so that hooks and the autograd
graph are in it. Memory is sampled often, since finished steps wait in a queue of bounded length, and compared
by the median of each window.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import laptime
from laptime.measure.clocks import FakeClock
from laptime.measure.recorder import Recorder
from laptime.measure.timeline import HOST, LOSS, OPTIMIZERS, backward_code, forward_code

STEPS = 1_000_000
WINDOWS = 20  # a window is 50,000 of a million steps
SAMPLES_PER_WINDOW = 25
REAL_EVERY = 20
SETTLED = 0.2  # of the steps: queues, buffers and allocators have reached their size
TARGET_BYTES_PER_STEP = 8.0  # one float per step would be kept: 8 MB after a million steps
MARKS = (forward_code(0), LOSS, backward_code(0), OPTIMIZERS, HOST)


def resident_bytes() -> int:
    """Resident set size of this process, from the kernel."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def measure(*, steps: int = STEPS, root: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Resident memory by steps recorded: first plateau, last plateau, slope, and what closing the run takes."""
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
        "target_bytes_per_step": TARGET_BYTES_PER_STEP,
        "samples": samples,
    }


def _record(
    recording: Recorder,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    clock: FakeClock,
    steps: int,
    say: Callable[[str], None],
) -> list[tuple[int, int]]:
    every = max(1, steps // (WINDOWS * SAMPLES_PER_WINDOW))
    value = torch.zeros(1, 1)
    mark, lap, advance = recording.timeline.mark, recording.lap, clock.advance
    samples: list[tuple[int, int]] = []
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
            samples.append((count, resident_bytes()))
            if count % (every * SAMPLES_PER_WINDOW) == 0:
                say(f"memory: {count:,} steps, {samples[-1][1] / 2**20:.0f} MiB")
    return samples


def plateaus(samples: list[tuple[int, int]]) -> dict[str, Any]:
    """Medians by window; the slope is Theil and Sen's (median over pairs of windows) past the first fifth."""
    counts, sizes = (np.array(column, dtype=np.float64) for column in zip(*samples, strict=True))
    groups = np.array_split(np.arange(len(samples)), min(WINDOWS, len(samples)))
    at = np.array([counts[group].mean() for group in groups])
    size = np.array([np.median(sizes[group]) for group in groups])
    settled = at >= SETTLED * counts[-1]
    x, y = at[settled], size[settled]
    i, j = np.triu_indices(len(x), k=1)
    slope = float(np.median((y[j] - y[i]) / (x[j] - x[i]))) if len(i) else float("nan")
    return {
        "first_bytes": float(y[0]),
        "last_bytes": float(y[-1]),
        "largest_bytes": float(sizes.max()),
        "bytes_per_step": slope,
        "windows": [{"steps": float(a), "bytes": float(b)} for a, b in zip(at, size, strict=True)],
    }


def main() -> None:
    """`python -m benchmarks.memory --steps N`: the section by itself, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps: int = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="laptime-bench-") as folder:
        print(json.dumps(measure(steps=steps, root=Path(folder)), indent=1))


if __name__ == "__main__":
    main()
