"""How long the dashboard takes: a list of 1,000 runs, and the page of a run of 100,000 steps.

`python -m benchmarks.dashboard` makes the runs, starts the real command on them and asks it over HTTP, as a
browser does. `serving` and the runs that `made` are for a browser's side of the same table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.tables import Table, verdict
from laptime.model import Layer, Phase
from laptime.runs import RunWriter, from_columns

LIST_S, RUN_S = 0.5, 2.0  # what is promised: a list of 1,000 runs, and a run of 100,000 steps
RUNS, STEPS, LAYERS = 1000, 100_000, 10
SAMPLED, EVERY = "long/sampled", "long/every-step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, and how often it was made."""

    what: str
    seconds: float
    size: int
    limit_s: float


def made(folder: Path, *, runs: int = RUNS, steps: int = STEPS) -> Path:
    """A folder with many small runs, and two long ones: layers on every 10th step, and on every step."""
    for number in range(runs):
        small_run(folder / f"sweep-{number // 100:02d}" / f"lr-{number:04d}", number)
    _long_run(folder / SAMPLED, steps, every=10)
    _long_run(folder / EVERY, steps, every=1)
    return folder


def small_run(path: Path, number: int) -> None:
    """A run of 20 steps and 4 layers."""
    config = {"command": "train", "network": {"name": f"resnet{18 + number % 5}"}, "train": {"batch": 32}}
    writer = _writer(path, config, [f"layer{place}" for place in range(4)])
    _steps(writer, 20, number)
    wall = {"median": 0.01 + number * 1e-5, "mean": 0.01, "count": 19}
    writer.close("finished", {"steps": {"train": 20}, "step_s": wall, "wall_s": 0.2 + number * 1e-3})


def _long_run(path: Path, steps: int, *, every: int) -> None:
    names = [f"block{place // 3}.conv{place % 3}" for place in range(LAYERS)]
    writer = _writer(path, {"command": "train", "network": {"name": "long"}}, names)
    _steps(writer, steps, 0)
    marked = np.arange(0, steps, every)
    random = np.random.default_rng(1)
    for piece in np.array_split(marked, max(1, len(marked) // 10_000)):
        count = len(piece) * LAYERS * len(Phase)
        columns: dict[str, Any] = {
            "stage": "train",
            "step": np.repeat(piece, LAYERS * len(Phase)),
            "layer": np.tile(np.repeat(names, len(Phase)), len(piece)),
            "phase": np.tile([phase.value for phase in Phase], len(piece) * LAYERS),
            "start_s": np.repeat(piece, LAYERS * len(Phase)) * 0.01,
            "seconds": random.gamma(20.0, 1.5e-5, count),
            "how": "measured",
        }
        writer.append("layers", from_columns("layers", columns))
        writer.flush()
    writer.close("finished", {"steps": {"train": steps}, "wall_s": steps * 0.01})


def _writer(path: Path, config: dict[str, Any], names: list[str]) -> RunWriter:
    environment = {"python": "3.11", "device": {"type": "cuda", "name": "NVIDIA H200"}}
    writer = RunWriter.create(path, config=config, environment=environment)
    writer.network([Layer(name=name, path=name, kind="Conv2d", parameters=1000) for name in names])
    return writer


def _steps(writer: RunWriter, steps: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    wall = random.gamma(100.0, 1e-4, steps)
    columns = {
        "stage": "train",
        "step": np.arange(steps),
        "optimizer_step": np.arange(steps),
        "epoch": np.arange(steps) // 1000,
        "start_s": np.cumsum(wall) - wall,
        "wall_s": wall,
        **{name: wall * share for name, share in _SHARES.items()},
        "samples": np.full(steps, 32),
        "loss": 2.3 * np.exp(-np.arange(steps) / steps) + random.normal(0, 0.02, steps),
        "instrumented": np.arange(steps) % 10 == 0,
    }
    writer.append("steps", from_columns("steps", columns))
    writer.flush()


_SHARES = {"forward_s": 0.3, "backward_s": 0.5, "update_s": 0.1, "data_wait_s": 0.05, "host_s": 0.05}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The real command on a free port; gives its address."""
    command = [sys.executable, "-m", "laptime", "serve", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"].rstrip("/")
            _get(url + "/healthz")
            yield url
        finally:
            process.terminate()
            process.wait(timeout=20)


def _get(address: str) -> tuple[float, int]:
    begun = time.perf_counter()
    with urllib.request.urlopen(address, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - begun, size


def measured(folder: Path, warm: int = 5) -> Iterator[Asked]:
    """Each server is asked cold once, and warm as often as told: then the median counts."""

    def again(url: str) -> tuple[float, int]:
        found = sorted(_get(url) for _ in range(warm))
        return found[len(found) // 2]

    rows = [("list of runs", "/", LIST_S), ("searched", "/?q=resnet18+batch%3D32", LIST_S)]
    rows += [(f"page of {name}", f"/runs/{quote(name)}", RUN_S) for name in (SAMPLED, EVERY)]
    for what, place, limit_s in rows:
        with serving(folder) as url:
            time.sleep(2.0)  # someone opens the address that was printed
            for state, ask in (("cold", _get), ("warm", again)):
                seconds, size = ask(url + place)
                yield Asked(what=f"{what}, {state}", seconds=seconds, size=size, limit_s=limit_s)


def table(asked: list[Asked]) -> Table:
    """Seconds against what is promised."""
    lines = [
        (
            one.what,
            f"{one.seconds:.3f}",
            f"{one.limit_s:.1f}",
            f"{one.size / 1e3:,.0f}",
            verdict(one.seconds < one.limit_s),
        )
        for one in asked
    ]
    return Table(title="The dashboard", header=("asked for", "seconds", "promised", "kB", "kept"), rows=lines)


def main() -> None:
    """Make the runs, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--keep", type=Path, help="a folder for the runs, kept and used again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = given.keep or Path(place)
        if not (folder / EVERY / "run.json").exists():
            made(folder, runs=given.runs, steps=given.steps)
        print(table(list(measured(folder))).text())


if __name__ == "__main__":
    main()
