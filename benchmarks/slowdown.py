"""Section `slowdown`: what recording costs, what it leaves behind, and the same steps under the peers.

Order matters. Bare blocks come first, while nothing has ever been attached. Then laptime takes turns with
bare blocks. The peers come last, since CUPTI may leave 10 to 20 % behind after torch.profiler has stopped;
their ratio is to bare blocks of their own rounds, which flatters them if anything.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Block,
    Size,
    Variant,
    documents,
    paired_ratio,
    run_block,
    run_rounds,
    samples,
    unpaired_ratio,
)
from benchmarks.networks import BUDGET_TARGET, Configuration, Workload
from benchmarks.variants import Bare, DeepSpeedFlops, Laptime, TorchProfiler
from laptime.model import summarize

FEWEST_ROUNDS = 3  # six and more give the interval its 95 %, see tables.py
FEWEST_STEPS = 2
BLOCK_S = 2.0  # the recorder's writer flushes every 2 s: one flush in each timed block
BARE_S = 0.75
WARMUP_S = 0.4  # books were closed once, their events are back in the pool
SETTLE_S = 0.75  # the budget has reviewed its share a few times
SLOW_STEP_S = 0.5
PEER_S = 0.5
PEER_ROUNDS = 2
CLOSING_S = 1.5  # torch.profiler puts its events together
MOST_PEER_STEPS = 10  # torch.profiler takes seconds to close thousands of events
FIRST_STEPS = 3  # until allocators and algorithm choices have settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Blocks of each variant, chosen for a step of a known length."""

    bare: Size
    every_step: Size
    budget: Size
    peer: Size

    def of(self, variant: str) -> Size:
        """The block of a variant in laptime's rounds."""
        return {"bare": self.bare, "every_step": self.every_step, "budget": self.budget}[variant]


def sizes(step_s: float) -> Sizes:
    """Long enough for a flush each; the first step of a recording, which discovers layers, is never timed."""

    def count(seconds: float, fewest: int) -> int:
        return max(fewest, math.ceil(seconds / step_s))

    return Sizes(
        bare=Size(warmup=count(0.1, 1), steps=count(BARE_S, FEWEST_STEPS)),
        every_step=Size(warmup=count(WARMUP_S, 2), steps=count(BLOCK_S, FEWEST_STEPS)),
        budget=Size(warmup=count(SETTLE_S, 2), steps=count(BLOCK_S, FEWEST_STEPS)),
        peer=Size(warmup=1, steps=min(MOST_PEER_STEPS, count(PEER_S, 1))),
    )


def first_steps(work: Workload, seconds: float = 1.0) -> float:
    """Run steps until the network is warm; returns the time of a step."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < FIRST_STEPS or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        work.step(work.batch)
        work.synchronize()
        times.append(time.perf_counter() - start)
    return float(summarize(times[len(times) // 2 :]).median)


@dataclass(slots=True)
class Measured:
    """What the slow-down section hands on: its document, and the runs, which the trace section reads."""

    document: dict[str, Any]
    runs: list[Any]


def measure(
    one: Configuration,
    work: Workload,
    *,
    step_s: float,
    root: Path,
    rounds: int | None,
    until: float,
    say: Callable[[str], None],
) -> Measured:
    """One row: bare, every step, default budget, left behind, peers. Runs stay under `root`."""
    cuda = work.device.type == "cuda"
    size = sizes(step_s)
    bare = Bare()
    every, budget = (Laptime(work, root, every_step=each) for each in (True, False))

    def block(variant: Variant, index: int) -> Block:
        gc.collect()  # each block starts with no garbage of the one before
        return run_block(work, variant, size.of(variant.name), index=index, each_step=not cuda)

    say(f"{one.label}: {step_s * 1e3:.1f} ms a step; bare")
    before = [block(bare, index) for index in range(2 if step_s > SLOW_STEP_S else 4)]
    say(f"{one.label}: laptime and bare in turns")
    peer_s = _peer_seconds(step_s, cuda=cuda, rounds=rounds)
    turns = run_rounds(
        block, [bare, every, bare, budget], rounds=rounds, fewest=FEWEST_ROUNDS, until=until - peer_s
    )
    say(f"{one.label}: peers")
    peers = _peer_rounds(work, size, rounds=rounds, until=until)
    document = {
        "bare": _bare(before, turns),
        "every_step": {**paired_ratio(turns, "every_step").document(), "target": one.target},
        "budget": {**paired_ratio(turns, "budget").document(), "target": BUDGET_TARGET},
        **_left(before, turns, peers),
        **_books(every, budget),
        **_peers(peers),
        "blocks": {"before": documents(before), "turns": documents(turns), "peers": documents(peers)},
    }
    return Measured(document, every.runs)


def _bare(before: Sequence[Block], turns: Sequence[Block]) -> dict[str, Any]:
    found = summarize([*samples(before), *samples(turns)])
    return {
        "median_s": found.median,
        "q1_s": found.q1,
        "q3_s": found.q3,
        "samples": found.count,
        "noise": str(found.noise),
    }


def _books(every: Laptime, budget: Laptime) -> dict[str, Any]:
    """The worst of all recordings: most unexplained, least named."""
    summaries = [run.summary for run in every.runs]
    return {
        "unexplained_share": max(abs(summary["unexplained_share"]) for summary in summaries),
        "named_share": min(summary["named_share"] for summary in summaries),
        "host_clock_ratio": [summary["host_clock_ratio"] for summary in summaries],
        "instrumented_share": [run.summary["budget"]["share"] for run in budget.runs],
        "notes": sorted({note for summary in summaries for note in summary["notes"]}),
    }


def _peer_seconds(step_s: float, *, cuda: bool, rounds: int | None) -> float:
    """About what the peers' rounds will take."""
    variants = 2 if cuda or not DeepSpeedFlops.installed() else 3
    one = variants * (sizes(step_s).peer.steps + 1) * step_s * 1.3 + CLOSING_S
    return one * (rounds if rounds is not None else PEER_ROUNDS)


def _peer_rounds(work: Workload, size: Sizes, *, rounds: int | None, until: float) -> list[Block]:
    cuda = work.device.type == "cuda"
    variants: list[Variant] = [Bare(), TorchProfiler(cuda=cuda)]
    if not cuda and DeepSpeedFlops.installed():
        variants.append(DeepSpeedFlops(work))

    def block(variant: Variant, index: int) -> Block:
        gc.collect()  # each block starts with no garbage of the one before
        return run_block(work, variant, size.peer, index=index, each_step=not cuda)

    return run_rounds(block, variants, rounds=rounds, fewest=PEER_ROUNDS, until=until)


def _left(before: Sequence[Block], turns: Sequence[Block], peers: Sequence[Block]) -> dict[str, Any]:
    """Bare steps after the first recording, and after the first peer, against those before anything."""

    def first(blocks: Sequence[Block]) -> int:
        return next((index for index, block in enumerate(blocks) if block.variant != "bare"), 0)

    untouched = [*before, *turns[: first(turns)]]
    return {
        "left": unpaired_ratio(turns[first(turns) :], untouched).document(),
        "left_by_peers": unpaired_ratio(peers[first(peers) :], untouched).document(),
    }


def _peers(peers: Sequence[Block]) -> dict[str, Any]:
    ran = {block.variant for block in peers}
    return {
        "torch_profiler": paired_ratio(peers, "torch_profiler").document(),
        "deepspeed": paired_ratio(peers, "deepspeed").document() if "deepspeed" in ran else None,
    }
