"""One configuration in a process of its own, so that nothing of the one before it is left in this one."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import independent_trace, memory, own_work, slowdown
from benchmarks.networks import Configuration, configuration, workload
from laptime.recorder.backends import environment

MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker is to do."""

    name: str  # a configuration, or "memory"
    device: str
    sections: tuple[str, ...]
    seconds: float
    rounds: int | None = None
    steps: int = memory.STEPS


def measure(order: Order, *, began: float, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The document of one configuration, or of the memory section."""
    if order.name == MEMORY:
        facts = environment(torch.device("cpu"))
        found = memory.measure(steps=order.steps, root=root, say=say)
        return {"name": MEMORY, "environment": facts, "memory": found}
    one = configuration(order.name, order.device)
    return _configuration(order, one, until=began + order.seconds, root=root, say=say)


def _configuration(
    order: Order, one: Configuration, *, until: float, root: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    work = workload(one, order.device)
    step_s = slowdown.first_steps(work)
    traced_steps = 3 if step_s > slowdown.SLOW_STEP_S else 10
    document: dict[str, Any] = {
        "name": one.name,
        "label": one.label,
        "bound": one.bound,
        "environment": environment(work.device),
    }
    runs: Sequence[Any] = ()
    if "slowdown" in order.sections:
        reserved = (traced_steps + 6) * step_s * 1.2 + 2.0 if "trace" in order.sections else 0.0
        measured = slowdown.measure(
            one, work, step_s=step_s, root=root, rounds=order.rounds, until=until - reserved, say=say
        )
        document.update(measured.document)
        runs = measured.runs
    if "trace" in order.sections:
        say(f"{one.label}: independent trace")
        document["trace"] = independent_trace.measure(one, work, root=root, steps=traced_steps, runs=runs)
    if "own" in order.sections and order.device == "cpu":
        document["own"] = own_work.measure(one, step_s, root=root, say=say)
    return document


def main() -> None:
    """Called by `python -m benchmarks`: an order as JSON comes in, a document goes to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("order")
    parser.add_argument(
        "began", type=float, help="when the time started to run, on the system's monotonic clock"
    )
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    fields = json.loads(given.order)
    order = Order(**{**fields, "sections": tuple(fields["sections"])})

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="laptime-bench-") as folder:
        document = measure(order, began=given.began, root=Path(folder), say=say)
    given.out.write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
