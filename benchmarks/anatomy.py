"""What the parts of a recording cost a step: `python -m benchmarks.anatomy [--device cuda] [NAME …]`.

Blocks of steps within one recording, in random order, with more and more of the recorder switched on:
hooks and patches that stamp nothing, the accounts' stamps, the layers' hooks without stamps, with stamps,
and with everything read, closed and written. Bare blocks before and after show what the host drifts by.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

import laptime
from benchmarks.networks import Workload, configuration, configurations, workload
from laptime.recorder.recorder import Recorder

BLOCK_S = 0.06
PARTS = ("bare", "patches", "accounts", "layers, no stamps", "+ stamps", "+ reading", "+ writing")


class Switches:
    """Turns parts of a recorder on and off from block to block."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._now = recorder.timeline._now
        self._take = recorder._finished.take
        self._clock: Any = recorder.timeline.clock
        self._fixed = self._now()  # stands for a stamp where none is taken
        self._recycle = self._clock.recycle
        self._clock.recycle = self._without_fixed  # type: ignore[method-assign]

    def _without_fixed(self, stamps: Sequence[Any]) -> None:
        self._recycle([one for one in stamps if one is not self._fixed])

    def set(self, part: str) -> None:
        """Switch on all parts up to this one."""
        place = PARTS.index(part)
        armed, stamped, read, written = place >= 3, place in (2, 4, 5, 6), place >= 5, place >= 6
        self._recorder._budget.draw = lambda *, early=False: armed  # type: ignore[method-assign]
        timeline: Any = self._recorder.timeline
        timeline._now = self._now if stamped else lambda: self._fixed
        take = self._take if written else self._read if read else self._drop
        self._recorder._finished.take = take  # type: ignore[method-assign]

    def _drop(self, raw: Any) -> None:
        self._clock.recycle(raw.stamps[:-1])

    def _read(self, raw: Any) -> None:
        settling: Any = self._recorder._finished
        if self._clock.deferred:
            self._take(raw)
        settling._pending.clear()


def typical(blocks: list[float]) -> float:
    """The lower quartile: a shared host only ever adds to a block."""
    return float(np.quantile(blocks, 0.25))


def block(work: Workload, count: int, recorder: Recorder | None = None) -> float:
    """Seconds per step of a block that begins and ends with an idle device."""
    batches = repeat(work.batch, count)
    work.synchronize()
    begin = time.perf_counter()
    for batch in batches if recorder is None else recorder.steps(batches):
        work.step(batch)
    work.synchronize()
    return (time.perf_counter() - begin) / count


def measure(work: Workload, seconds: float) -> tuple[dict[str, list[float]], int]:
    """Seconds per step of the blocks of each part, and the marks of a step."""
    for _ in range(3):
        block(work, 3)
    count = max(3, round(BLOCK_S / block(work, 5)))
    rounds = max(3, round(seconds / BLOCK_S / len(PARTS)))
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(rounds // 2):
        found["bare"].append(block(work, count))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with laptime.record(work.network, work.optimizer, out=out, every_step=True) as recorder:
            switches = Switches(recorder)
            block(work, 4, recorder)
            marks = len(recorder._budget._walls[True]) and recorder._budget._marks[True]
            for _ in range(rounds):
                for part in random.sample(PARTS[1:], len(PARTS) - 1):
                    switches.set(part)
                    block(work, 2, recorder)  # the first is armed by the block before
                    found[part].append(block(work, count, recorder))
            switches.set("+ writing")
    for _ in range(rounds - rounds // 2):
        found["bare"].append(block(work, count))
    return found, marks


def main() -> None:
    """Print a row per network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="of blocks, for each network")
    options = parser.parse_args()
    launch = [one.name for one in configurations(options.device) if one.bound == "launch"]
    print("| µs per step over `patches` | bare ms | " + " | ".join(PARTS[1:]) + " | bare, later |")
    print("| --- |" + " ---: |" * (len(PARTS) + 1))
    for name in options.names or launch:
        work = workload(configuration(name, options.device), options.device)
        found, _ = measure(work, options.seconds)
        half = len(found["bare"]) // 2
        base = typical(found["patches"])
        cells = [f"{(typical(found[part]) - base) * 1e6:+.0f}" for part in PARTS[1:]]
        later = (typical(found["bare"][half:]) - typical(found["bare"][:half])) * 1e6
        cells[0] = f"{(base - typical(found['bare'])) * 1e6:+.0f} over bare"
        row = [name, f"{typical(found['bare']) * 1e3:.2f}", *cells, f"{later:+.0f}"]
        print("| " + " | ".join(row) + " |", flush=True)
        del work


if __name__ == "__main__":
    main()
