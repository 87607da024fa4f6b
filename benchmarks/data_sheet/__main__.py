"""Devices known by their data sheet only: `python -m benchmarks.data_sheet REFERENCE [--constants] [--rows]`.

Steps that others measured on GPUs and CPUs, listed in `rows.csv`. Each device is predicted with constants
fitted to the other devices' rows. Errors are averaged per device, and then over devices.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from pprint import pprint

import numpy as np
from numpy.typing import NDArray

from benchmarks.data_sheet.fitting import FULL, Fit, Variant, by_device, left_out, over_devices
from benchmarks.data_sheet.kernels import Table, table

Floats = NDArray[np.float64]
VARIANTS = (
    Variant(name="roofline, two constant shares", excess=False, excesses=False, own=False, shared=True),
    Variant(name="roofline, a share for each class of work", excess=False, excesses=False),
    Variant(name="bound and excess, nothing fitted", bounds=False, excesses=False, own=False),
    FULL,
)
CPU = Variant(name="roofline, a share for each class of work", excess=False, excesses=False, own=False)


def errors(folder: Path) -> dict[str, list[tuple[str, float]]]:
    """What and by how much, for each GPU, which was left out of the fit."""
    gpus = table(folder)
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row, seconds in zip(gpus.rows, left_out(Fit(gpus), gpus.devices), strict=True):
        found[row.device.name].append((row.asked.label, float(seconds / row.seconds - 1)))
    return found


def device_table(devices: Sequence[str], missed: Floats) -> list[str]:
    """Rows, mean, bias and p90 of each device."""
    made = ["| device | rows | mean % | bias % | p90 |", "| --- | ---: | ---: | ---: | ---: |"]
    names = np.array(devices)
    for name in dict.fromkeys(devices):
        mine = missed[names == name] * 100
        figures = f"{np.abs(mine).mean():.1f} | {mine.mean():+.1f} | {np.quantile(np.abs(mine), 0.9):.1f}"
        made.append(f"| {name} | {len(mine)} | {figures} |")
    mean, p90 = over_devices(devices, missed)
    made.append(
        f"| **over devices** (target 12, p90 30) | {len(missed)} | {mean * 100:.1f} | | {p90 * 100:.1f} |"
    )
    return made


def variants(gpus: Table) -> tuple[list[str], Floats]:
    """Every model, one device left out at a time; and the errors of the last."""
    devices = gpus.devices
    made = ["| model | constants | mean % | p90 |", "| --- | ---: | ---: | ---: |"]

    def line(name: str, count: int, missed: Floats) -> None:
        mean, p90 = over_devices(devices, missed)
        made.append(f"| {name} | {count} | {mean * 100:.1f} | {p90 * 100:.1f} |")

    straight = np.bincount(gpus.row, gpus.straight, len(gpus.rows)) + gpus.fixed
    line("every operation the H200's share of its bound", 0, straight / gpus.seconds - 1)
    found = []
    for one in VARIANTS:
        fit = Fit(gpus, one)
        found.append(left_out(fit, devices) / gpus.seconds - 1)
        line(one.name, int(fit.free.sum()), found[-1])
    line("… chosen by the other devices' errors", 0, _chosen(devices, found))
    last = Fit(gpus)
    architectures = [one.device.architecture for one in gpus.rows]
    count = int(last.free.sum())
    line("… the whole architecture left out", count, left_out(last, architectures) / gpus.seconds - 1)
    networks = [one.asked.network for one in gpus.rows]
    line("… half of the networks left out too", count, left_out(last, devices, networks) / gpus.seconds - 1)
    return made, found[-1]


def _chosen(devices: Sequence[str], found: Sequence[Floats]) -> Floats:
    """For each device the errors of the model that was best on the others, each left out in its turn."""
    names = np.array(devices)
    made = np.zeros(len(names))
    each = [by_device(devices, one, np.mean) for one in found]
    for name in dict.fromkeys(devices):
        scores = [np.mean([value for key, value in one.items() if key != name]) for one in each]
        made[names == name] = found[int(np.argmin(scores))][names == name]
    return made


def worst(rows: Table, missed: Floats) -> str:
    """The ten rows that were missed most."""
    order = np.argsort(-np.abs(missed))[:10]
    labels = (f"{rows.rows[one].label} {missed[one] * 100:+.0f} %" for one in order)
    return "Worst ten: " + ", ".join(labels) + "."


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument(
        "--constants", action="store_true", help="those of laptime.estimate.datasheet_transfer, and no table"
    )
    parser.add_argument("--rows", action="store_true", help="every row")
    options = parser.parse_args()
    gpus, cpus = table(options.reference), table(options.reference, "cpu")
    if options.constants:
        for rows, variant in ((gpus, FULL), (cpus, CPU)):
            fit = Fit(rows, variant)
            pprint(fit.constants(fit.fitted(np.ones(len(rows.rows), bool))))
        return
    models, missed = variants(gpus)
    if options.rows:
        for row, error in zip(gpus.rows, missed, strict=True):
            print(f"{row.label:90} {row.seconds * 1e3:9.2f} ms {error:+7.1%}")
    print("\n".join(device_table(gpus.devices, missed)))
    waiting = int(np.sum(gpus.host > gpus.seconds))
    print(f"\nRows whose measured time is below the predicted host's: {waiting}.\n{worst(gpus, missed)}\n")
    print("\n".join(models))
    print("\nCPUs, forward, batch 1, fp32, networks compiled by torch; each from the other:\n")
    missed = left_out(Fit(cpus, CPU), cpus.devices) / cpus.seconds - 1
    print("\n".join(device_table(cpus.devices, missed)))


if __name__ == "__main__":
    main()
