"""Slow-down by interleaved blocks in one process: variants take turns on the same network and batch.

A round holds one block of each variant, and every second round runs in the reverse order, so that a linear
drift of the machine cancels. A block's figure is its *mean* step time, warm-up left out: the recorder's
writer thread touches few steps, which a median over steps would hide although the user pays for them. The
result is the median over rounds of the ratio to the round's own bare blocks, with that median's bootstrap
interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, repeat
from typing import Any, Protocol

from laptime.model import ratio_interval, summarize


class Variant(Protocol):
    """One way of running the steps: bare, or under an instrument."""

    name: str

    def attach(self) -> None:
        """Start the instrument; not timed."""
        ...

    def detach(self) -> None:
        """Stop it; not timed."""
        ...

    def each(self, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches, each of them a step of the instrument."""
        ...


class Work(Protocol):
    """What a block runs: `benchmarks.networks.Workload`, or a stand-in with a clock that is told the time."""

    @property
    def batch(self) -> Any: ...
    @property
    def step(self) -> Callable[[Any], None]: ...
    def synchronize(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many steps a block runs before it is timed, and while it is."""

    warmup: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The timed steps of one variant in one round.

    `step_s` is empty on CUDA, where only the block as a whole can be timed without synchronising inside.
    """

    variant: str
    round: int
    steps: int
    seconds: float
    step_s: tuple[float, ...] = ()

    @property
    def mean_s(self) -> float:
        """Seconds per step, everything that ran beside the steps included."""
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A slow-down with its 95 % interval: 1.01 is one per cent slower."""

    ratio: float
    low: float
    high: float
    rounds: int

    def document(self) -> dict[str, float]:
        """As plain values."""
        return asdict(self)


def run_block(
    work: Work,
    variant: Variant,
    size: Size,
    *,
    index: int = 0,
    each_step: bool = True,
    now: Callable[[], float] = time.perf_counter,
) -> Block:
    """Attach, warm up, time the steps, detach. The device is waited for around the steps, never inside."""
    variant.attach()
    try:
        stamps: list[float] = []
        # A stamp opens each step's body; the last is taken when the instrument has closed the last step.
        for count, batch in enumerate(variant.each(repeat(work.batch, size.warmup + size.steps))):
            if count == size.warmup:
                work.synchronize()
            stamps.append(now())
            work.step(batch)
        work.synchronize()
        stamps.append(now())
    finally:
        variant.detach()
    timed = stamps[size.warmup :]
    steps = tuple(end - start for start, end in pairwise(timed)) if each_step else ()
    return Block(
        variant=variant.name, round=index, steps=size.steps, seconds=timed[-1] - timed[0], step_s=steps
    )


def turns(variants: Sequence[Variant], index: int) -> list[Variant]:
    """The order of a round: each pair of rounds starts one variant later, its second one is reversed."""
    shift = (index // 2) % len(variants)
    order = [*variants[shift:], *variants[:shift]]
    return order[::-1] if index % 2 else order


def run_rounds(
    block: Callable[[Variant, int], Block],
    variants: Sequence[Variant],
    *,
    rounds: int | None,
    fewest: int,
    until: float,
    now: Callable[[], float] = time.monotonic,
) -> list[Block]:
    """Rounds of one block per variant: `rounds` of them, or as many as end by `until`, at least `fewest`."""
    blocks: list[Block] = []
    done, longest = 0, 0.0
    while done < (rounds if rounds is not None else fewest) or (rounds is None and now() + longest < until):
        began = now()
        blocks += [block(variant, done) for variant in turns(variants, done)]
        longest = max(longest, now() - began)
        done += 1
    return blocks


def by_round(blocks: Iterable[Block], variant: str) -> dict[int, float]:
    """Mean step time of one variant by round, over its blocks if a round has several."""
    found: dict[int, list[float]] = {}
    for block in blocks:
        if block.variant == variant:
            found.setdefault(block.round, []).append(block.mean_s)
    return {key: sum(means) / len(means) for key, means in found.items()}


def paired_ratio(blocks: Sequence[Block], variant: str, base: str = "bare") -> Ratio:
    """Median over rounds of variant / base within the round, with the bootstrap interval of that median."""
    top, bottom = by_round(blocks, variant), by_round(blocks, base)
    ratios = [top[key] / bottom[key] for key in sorted(top.keys() & bottom.keys())]
    found = summarize(ratios)
    return Ratio(ratio=found.median, low=found.low, high=found.high, rounds=found.count)


def samples(blocks: Iterable[Block], variant: str = "bare") -> list[float]:
    """Step times of one variant where single steps were timed, mean step times of its blocks where not."""
    mine = [block for block in blocks if block.variant == variant]
    return [one for block in mine for one in (block.step_s or (block.mean_s,))]


def unpaired_ratio(after: Sequence[Block], before: Sequence[Block]) -> Ratio:
    """Bare steps after something against bare steps before it: these cannot take turns, so drift is in it."""
    late, early = samples(after), samples(before)
    ratio, low, high = ratio_interval(late, early)
    return Ratio(ratio=ratio, low=low, high=high, rounds=min(len(late), len(early)))


def documents(blocks: Iterable[Block]) -> list[Mapping[str, Any]]:
    """Raw samples, to be kept with the result."""
    return [asdict(block) for block in blocks]
