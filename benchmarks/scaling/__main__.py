"""The error of predicted scaling: `python -m benchmarks.scaling REFERENCE [--rows] [--constants]`.

Throughput of 2 to 8 GPUs of one node from the published one-GPU row of the same configuration. A few
constants are fitted, always to other rows than those they are tested on: each kind of GPU with each framework
is predicted from the other ones, each fifth of the networks from the rest and, hardest, each file from the
other. HKBU's rows, which split one batch, are fitted to by none.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.facts import FILES, FIXED
from benchmarks.scaling.judging import Judged, baselines, floors, from_two, judge, network_fold, parts


def summary(errors: NDArray[np.float64]) -> str:
    """Mean, median, p90 and worst of the absolute errors in per cent."""
    found = np.abs(errors) * 100
    figures = found.mean(), np.median(found), np.quantile(found, 0.9), found.max()
    return " | ".join([str(len(found)), *(f"{one:.1f}" for one in figures)])


def report(judged: Judged, every: bool, shown: bool) -> Iterator[str]:
    """The tables, line by line."""
    found, ours = judged.rows, judged.held
    for name in FILES:
        count = sum(one.file == name for one in found)
        if count != FIXED[name]:
            yield f"NOTE: {name} has {count} rows where {FIXED[name]} were fixed"
    left = "; ".join(f"{count} {why}" for why, count in sorted(judged.left.items()))
    yield f"{len(found)} rows, and {len(judged.strong)} of HKBU's. Left out: {left}"
    yield from (
        "| held out | rows | mean % | median | p90 | worst |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    )
    whole = np.array([error for _, error in judged.errors])
    yield f"| laptime, by GPU and framework, all files | {summary(whole)} |"
    simple = baselines(found)
    held = {
        "… without HKBU's": ours,
        "laptime, by fifths of the networks": judged.fit.held_out(network_fold(found)),
        "laptime, by file": judged.fit.held_out(lambda one: one.file),
        **simple,
    }
    for name, errors in held.items():
        yield f"| {name} | {summary(errors)} |"
    linear = simple["linear speed-up"]
    for name, where in parts(found).items():
        yield f"| {name} | {summary(ours[where])} |"
        yield f"| … linear speed-up | {summary(linear[where])} |"
    later = np.array([one.twice is not None and one.gpus > 2 for one in found])
    two = np.array([from_two(one) for one, use in zip(found, later, strict=True) if use])
    yield f"| 4 and 8 GPUs where 2 are published: laptime | {summary(ours[later])} |"
    yield f"| … a + b/n through 1 and 2 GPUs | {summary(two)} |"
    yield f"| HKBU, one batch split | {summary(np.array([error for _, error in judged.strong]))} |"
    for name, errors in floors(found).items():
        yield f"| rows among themselves: {name} | {summary(errors)} |"
    sizes = np.abs(ours)
    beyond = sizes > 0.15
    share = sizes[beyond].sum() / sizes.sum()
    yield f"\nRows more than 15 % off: {beyond.sum()}, which hold {share:.0%} of all error."
    yield f"Rows faster on n GPUs than n times one: {sum(one.slowdown < 0.99 for one in found)}."
    worst = sorted(judged.errors, key=lambda one: -abs(one[1]))
    yield "Worst ten: " + "; ".join(f"{label} {error * 100:+.0f} %" for label, error in worst[:10]) + "."
    if shown:
        yield from groups(judged)
    if every:
        yield from (f"{label:70} {error * 100:+6.1f} %" for label, error in worst)


def groups(judged: Judged) -> Iterator[str]:
    """The constants of all rows, and the errors of each group."""
    constants = judged.fit.constants(np.ones(len(judged.rows), bool))
    rounded = {name: float(f"{value:.3g}") for name, value in constants.items()}
    yield f"Fitted to all rows, for use, not for judging: {rounded}"
    grouped = defaultdict(list)
    for one, error in zip(judged.rows, judged.held, strict=True):
        grouped[one.group].append(error)
    yield from (f"{group:60} {summary(np.array(errors))}" for group, errors in sorted(grouped.items()))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument(
        "--constants", action="store_true", help="those fitted to all rows, and errors by group"
    )
    options = parser.parse_args()
    for line in report(judge(options.reference), options.rows, options.constants):
        print(line, flush=True)


if __name__ == "__main__":
    main()
