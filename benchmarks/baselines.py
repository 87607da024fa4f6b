"""What simpler ways of predicting reach on the same rows: `python -m benchmarks.baselines REFERENCE`.

A roofline with one utilisation, a linear model of whole networks, a line through two batch sizes. What others
published of their predictors, on rows of their own, is in `published.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import mxnet, prediction
from benchmarks.data_sheet import keep
from benchmarks.data_sheet import rows as data_sheet
from laptime.estimate.calibration import TYPES
from laptime.hardware import Device, device
from laptime.model import Operation, Phase, Workload

Errors = list[tuple[str, float]]  # what, and its error
LAUNCH_S = 2e-6  # the shortest kernel
# For the linear model. Norms and grouped convolutions apart, or a count of operations beside, made it worse.
CLASSES = ("convolution", "matrix", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A measured step and what it asks for."""

    label: str
    family: str  # left out together
    precision: str
    seconds: float
    workload: Workload
    device: Device
    update: bool = True


def h200(folder: Path) -> list[Step]:
    """The steps of `h200_measured.csv`."""
    kept = dict(prediction_workloads())
    return [
        Step(
            label=prediction.label(row),
            family="resnet" if row["family"] == "wide" else row["family"],
            precision=row["precision"],
            seconds=float(row["step_ms"]) / 1e3,
            workload=kept[prediction.label(row)],
            device=device("h200"),
        )
        for row in prediction.measured(folder)
    ]


def prediction_workloads() -> Iterable[tuple[str, Workload]]:
    """The networks of those steps, as they were read."""
    with gzip.open(prediction.KEPT, "rt", encoding="utf-8") as file:
        for one in map(json.loads, file):
            yield one["label"], Workload.of(one["workload"])


def other_devices(folder: Path) -> list[Step]:
    """The fixed list of `benchmarks.data_sheet`; a device is its own family."""
    kept = dict(keep.kept())
    return [
        Step(
            label=f"{one.asked.label} {one.device.name}",
            family=one.device.name,
            precision=one.asked.precision,
            seconds=one.seconds,
            workload=kept[one.asked.label],
            device=one.device,
            update=one.update,
        )
        for one in data_sheet.measured(folder)
        if one.asked.label in kept
    ]


def operations(step: Step) -> list[Operation]:
    """Those that were measured."""
    return [one for one in step.workload.operations if step.update or one.phase is not Phase.UPDATE]


def bound_s(step: Step) -> float:
    """The roofline: each operation as long as its computing or its moving, whichever takes longer."""
    return sum(
        max(_computing_s(one, step.device), _moving_s(one, step.device)) + LAUNCH_S
        for one in operations(step)
    )


def _computing_s(one: Operation, used: Device) -> float:
    cudnn = one.kind.startswith(("convolution", "recurrent")) and one.dtype == "float32"
    return one.flops / used.peak("tf32" if cudnn else TYPES.get(one.dtype, "fp32"))


def _moving_s(one: Operation, used: Device) -> float:
    return one.moved / used.memory_bandwidth


def roofline(steps: Sequence[Step]) -> Errors:
    """Bound over a utilisation, one for each precision, the median of all other families."""
    bounds = np.array([bound_s(one) for one in steps])
    shares = bounds / np.array([one.seconds for one in steps])
    found = []
    for at, one in enumerate(steps):
        others = [
            share
            for share, other in zip(shares, steps, strict=True)
            if other.precision == one.precision and other.family != one.family
        ]
        found.append((one.label, float(shares[at] / np.median(others)) - 1))
    return found


def linear(steps: Sequence[Step]) -> Errors:
    """Seconds as a sum over classes of FLOPs and bytes, none negative: each family from the others."""
    found: dict[int, float] = {}
    for precision in sorted({one.precision for one in steps}):
        mine = [at for at, one in enumerate(steps) if one.precision == precision]
        features = np.array([_features(steps[at]) for at in mine])
        relative = features / np.array([[steps[at].seconds] for at in mine])  # errors in per cent count
        families = np.array([steps[at].family for at in mine])
        for family in sorted(set(families)):
            held = families == family
            weights = _weights(relative[~held])
            found |= dict(
                zip(np.array(mine)[held].tolist(), (relative[held] @ weights - 1).tolist(), strict=True)
            )
    return [(one.label, found[at]) for at, one in enumerate(steps)]


def _weights(relative: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = relative.mean(axis=0)
    scale[scale == 0] = 1.0
    solve = import_module("scipy.optimize").nnls  # scipy has no types
    return np.asarray(solve(relative / scale, np.ones(len(relative)))[0] / scale)


def _features(step: Step) -> list[float]:
    flops, moved = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0.0)
    for one in operations(step):
        name = "convolution" if one.kind.startswith("convolution") else "matrix" if one.flops else "memory"
        flops[name] += one.flops
        moved[name] += one.moved
    return [*(flops[name] for name in CLASSES[:2]), *moved.values(), 1.0]


Run = tuple[str, Hashable, int, float]  # label, series, batch, seconds


def through_two(runs: Sequence[Run], within: int = 4) -> Errors:
    """a + b·batch through two other runs of a series, neither more than `within` times larger or smaller."""
    series = defaultdict(list)
    for one in runs:
        series[one[1]].append(one)
    found = []
    for here in series.values():
        for label, _, batch, seconds in here:
            near = [
                one for one in here if one[2] != batch and max(one[2], batch) <= within * min(one[2], batch)
            ]
            for first, second in combinations(near, 2):
                slope = (second[3] - first[3]) / (second[2] - first[2])
                line = first[3] + slope * (batch - first[2])
                found.append((f"{label} from b{first[2]} and b{second[2]}", line / seconds - 1))
    return found


def h200_runs(steps: Sequence[Step]) -> list[Run]:
    """The H200's steps by network and precision."""
    return [
        (one.label, (one.workload.network, one.precision), one.workload.batch, one.seconds) for one in steps
    ]


def mxnet_runs(folder: Path) -> list[Run]:
    """MXNet's rows on GPUs by network, device, mode and precision."""
    return [
        (
            f"{asked[0]} b{asked[1]} {asked[2]} {asked[3]} {name}",
            (name, asked[0], *asked[2:]),
            asked[1],
            seconds,
        )
        for name, asked, seconds in mxnet.published(folder)
        if name in mxnet.GPUS
    ]


def per_device(steps: Sequence[Step], errors: Errors) -> float:
    """Mean error over devices, in per cent, each device's mean counting once."""
    found = defaultdict(list)
    for one, (_, error) in zip(steps, errors, strict=True):
        found[one.device.name].append(abs(error))
    return float(np.mean([np.mean(here) for here in found.values()])) * 100


def summary(errors: Errors) -> str:
    """Mean, median, p90 and worst of the absolute errors in per cent."""
    sizes = np.abs([error for _, error in errors]) * 100
    figures = sizes.mean(), np.median(sizes), np.quantile(sizes, 0.9), sizes.max()
    return " | ".join([str(len(sizes)), *(f"{one:.1f}" for one in figures)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", type=Path)
    folder = parser.parse_args().reference
    print("| baseline | rows | mean % | median | p90 | worst |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    steps = h200(folder)
    ways: dict[str, Callable[[Sequence[Step]], Errors]] = {"roofline": roofline, "linear model": linear}
    for precision in ("fp32", "bf16"):
        mine = [one for one in steps if one.precision == precision]
        for name, way in ways.items():
            print(f"| H200, {precision}: {name} | {summary(way(mine))} |")
    print(f"| H200: a + b·batch through two runs | {summary(through_two(h200_runs(steps)))} |")
    print(f"| MXNet: a + b·batch through two runs | {summary(through_two(mxnet_runs(folder)))} |")
    others = other_devices(folder)
    errors = roofline(others)
    print(f"| data sheet: roofline | {summary(errors)} |")
    average = per_device(others, errors)
    print(f"\nData sheet, roofline, averaged per device and then over devices: {average:.1f} %.")


if __name__ == "__main__":
    main()
