"""A parent that forks trainings and kills each with SIGKILL at a random moment: run by test_killed.py.

Forked from a parent that has imported torch and used none of it, so that twenty trainings start at once.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import laptime


def train(out: Path, log: Path) -> None:
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x = torch.randn(8, 16)
    with (
        open(log, "w", buffering=1) as finished,
        laptime.record(network, optimizer, out=out, every_step=True) as rec,
    ):
        for step in rec.steps(range(10**9)):
            network(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                finished.write(f"{step} {time.time()}\n")


def start(out: Path, log: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            train(out, log)
        finally:
            os._exit(1)
    while not log.exists() or not log.stat().st_size:
        time.sleep(0.01)
    return child


def main(folder: Path, kills: int, seed: int) -> None:
    """Four at a time: the first steps must be more than five seconds old when the process dies."""
    rng = random.Random(seed)
    for first in range(0, kills, 4):
        names = range(first, min(first + 4, kills))
        children = {start(folder / f"run-{n}", folder / f"log-{n}"): n for n in names}
        deaths = sorted((time.time() + rng.uniform(5.5, 9.0), child) for child in children)
        for when, child in deaths:
            time.sleep(max(0.0, when - time.time()))
            killed = time.time()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            run, log = folder / f"run-{children[child]}", folder / f"log-{children[child]}"
            print(json.dumps({"run": str(run), "log": str(log), "killed": killed}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
