"""How far a measured step corrects others: `python -m benchmarks.refinement REFERENCE [--devices]`.

Another batch size: pairs of steps of a network in `h200_measured.csv`, one known, the other asked for.
Another device (`--devices`, half a minute): pairs of steps that are alike but for their device, from the list
of `benchmarks.data_sheet`. A correction is measured over predicted; what is asked is which share of its
logarithm to carry over. Whole steps: there are no layer times of several batches or devices in the files.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.prediction import KEPT, Row, rows, summary
from laptime.estimate.predict import predict, predict_all
from laptime.estimate.run_correction import (
    KEPT_ELSEWHERE,
    KEPT_FROM_DATA_SHEET,
    KEPT_PER_DOUBLING,
    WIDTH,
    WIDTH_PER_DOUBLING,
)
from laptime.hardware import device
from laptime.model import Account, Workload
from laptime.ops.rescaling import rescaled

SHARES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
WITHIN = 2.0  # doublings: the 4x


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Logarithms of measured over predicted: of the step that is known, and of the one that is asked for."""

    group: str
    known: float
    wanted: float
    doublings: float = 0.0
    width: float = 0.0  # of the interval without a run

    def error(self, kept: float) -> float:
        """Of the corrected step."""
        return float(np.expm1(kept * self.known - self.wanted))


def batches(found: Sequence[Row]) -> list[Pair]:
    """Steps of the same network and precision at two batch sizes."""
    pairs = []
    for one, other in itertools.permutations(found, 2):
        alike = (one.predicted.network, one.precision) == (other.predicted.network, other.precision)
        if alike:
            made = other.predicted
            pair = Pair(
                group=one.family,
                known=-float(np.log1p(one.error)),
                wanted=-float(np.log1p(other.error)),
                doublings=abs(float(np.log2(one.predicted.batch / made.batch))),
                width=made.interval_s[1] / made.step_s - 1,
            )
            pairs.append(pair)
    return pairs


def by_doublings(share: float) -> Callable[[Pair], float]:
    """What is left of a correction if `share` of it is left with each doubling."""
    return lambda pair: share**pair.doublings


def held_out(pairs: Sequence[Pair]) -> list[float]:
    """Each family with the share that suits the other families best."""
    errors = []
    for group in dict.fromkeys(pair.group for pair in pairs):
        others = [pair for pair in pairs if pair.group != group]

        def mean(share: float, others: Sequence[Pair] = others) -> float:
            kept = by_doublings(share)
            return float(np.mean([abs(pair.error(kept(pair))) for pair in others]))

        kept = by_doublings(min(SHARES, key=mean))
        errors += [pair.error(kept(pair)) for pair in pairs if pair.group == group]
    return errors


def batch_table(pairs: Sequence[Pair]) -> list[str]:
    """Errors by the share that is left with each doubling."""
    near = [pair for pair in pairs if pair.doublings <= WITHIN]
    made = ["| another batch size within 4x | pairs | mean % | median | p90 | worst |", "| --- " * 6 + "|"]
    for share in SHARES:
        kept = by_doublings(share)
        used = " (used)" if share == KEPT_PER_DOUBLING else ""
        label = f"{share:g} of the correction for each doubling{used}"
        made.append(f"| {label} | {summary([pair.error(kept(pair)) for pair in near])} |")
    made.append(f"| the share chosen on the other families | {summary(held_out(near))} |")
    kept = by_doublings(KEPT_PER_DOUBLING)
    inside = [
        abs(np.expm1(pair.wanted - kept(pair) * pair.known))
        <= min(pair.width, WIDTH + WIDTH_PER_DOUBLING * pair.doublings)
        for pair in pairs
    ]
    narrow = np.mean([min(1.0, (WIDTH + WIDTH_PER_DOUBLING * p.doublings) / p.width) for p in pairs])
    made.append(
        f"\nInside the narrowed interval: {np.mean(inside) * 100:.0f} % of all {len(pairs)} pairs; "
        f"it is {narrow * 100:.0f} % as wide as without a run, in the mean."
    )
    return made


def rescaling() -> str:
    """Workloads carried over to another batch size, against those that were read at that size."""
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        kept = [Workload.of(json.loads(line)["workload"]) for line in file]
    flops, steps, peaks, here = 0, [], [], device("h200")
    read = {id(one): predict(one, here).step_s for one in kept}
    for one, other in itertools.permutations(kept, 2):
        if (one.network, one.precision) == (other.network, other.precision):
            made = rescaled(one, other.batch)
            flops += made.flops == other.flops
            steps.append(predict(made, here).step_s / read[id(other)] - 1)
            peaks.append(made.memory.peak / other.memory.peak - 1)
    return (
        f"\nWorkloads carried over to another batch size, against reading them there ({len(steps)} pairs): "
        f"FLOPs equal in {flops}; predicted steps at most {np.max(np.abs(steps)) * 100:.2f} % apart; peak "
        f"memory {np.mean(np.abs(peaks)) * 100:.1f} % (p90 {np.quantile(np.abs(peaks), 0.9) * 100:.1f}, "
        f"from {min(peaks) * 100:+.1f} to {max(peaks) * 100:+.1f})."
    )


def devices(folder: Path) -> list[tuple[str, str, Pair, Pair]]:
    """File, device that is known, and the pair as it is and less each device's median error."""
    from benchmarks.data_sheet.keep import kept
    from benchmarks.data_sheet.rows import Measured, measured

    workloads = dict(kept())
    steps: dict[str, list[Measured]] = {}
    for row in measured(folder):
        if row.asked.label in workloads:
            steps.setdefault(row.asked.label, []).append(row)
    logs: list[tuple[Measured, float]] = []
    for label, alike in steps.items():
        made = predict_all(workloads[label], [row.device for row in alike])
        for row, one in zip(alike, made, strict=True):
            spent = sum(s for phase, s in one.phases.items() if row.update or phase is not Account.UPDATE)
            logs.append((row, float(np.log(row.seconds / spent))))
    names = {row.device.name for row, _ in logs}
    bias = {name: float(np.median([v for row, v in logs if row.device.name == name])) for name in names}
    found = []
    for (a, known), (b, wanted) in itertools.permutations(logs, 2):
        if a.asked == b.asked and a.device.name != b.device.name:
            plain = Pair(group=a.file, known=known, wanted=wanted)
            less = Pair(group=a.file, known=known - bias[a.device.name], wanted=wanted - bias[b.device.name])
            found.append((a.file, a.device.name, plain, less))
    return found


def device_table(found: Sequence[tuple[str, str, Pair, Pair]]) -> list[str]:
    """Errors by the share of a correction that another device takes over."""
    shares = (0.0, 0.3, 0.5, 0.7, 0.85, 1.0)
    made = []
    for title, place in (("as they are", 2), ("less each device's median error, as if calibrated", 3)):
        heads = " | ".join(f"{share:g}" for share in shares)
        made += [f"\n| {title}: mean % (p90), carried over | pairs | {heads} |", "| --- " * 8 + "|"]
        for file in ("all", *sorted({one[0] for one in found})):
            mine: list[Pair] = [one[place] for one in found if file in ("all", one[0])]  # type: ignore[misc]
            cells = []
            for share in shares:
                errors = np.abs([pair.error(share) for pair in mine]) * 100
                cells.append(f"{errors.mean():.1f} ({np.quantile(errors, 0.9):.0f})")
            made.append(f"| {file} | {len(mine)} | {' | '.join(cells)} |")
    made.append(
        f"\nUsed: {KEPT_ELSEWHERE:g} from a calibrated device, {KEPT_FROM_DATA_SHEET:g} from another."
    )
    return made


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--devices", action="store_true", help="other devices too")
    arguments = parser.parse_args()
    print("\n".join(batch_table(batches(list(rows(arguments.reference))))))
    print(rescaling())
    if arguments.devices:
        print("\n".join(device_table(devices(arguments.reference))))


if __name__ == "__main__":
    main()
