"""The kernels of every measured step on its device, before any constant, as arrays that a fit can work on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data_sheet.keep import kept
from benchmarks.data_sheet.rows import Measured, measured
from laptime.estimate.calibration import Work
from laptime.estimate.datasheet_transfer import NARROW, VECTOR, WIDE, Traits, parts, traits
from laptime.estimate.device_speed import shipped
from laptime.estimate.op_times import UPDATE_SHARE, UPDATE_TENSOR_US, prepare
from laptime.model import Account, Phase, Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The distinct kernels of a step, as an H200 runs them."""

    sorts: tuple[str, ...]
    works: tuple[Work, ...]
    measured_us: Floats
    counts: Floats
    forward: NDArray[np.bool_]
    moved: int  # by the optimizer
    tensors: int
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Kernels of many steps, each with the number of its row; times in seconds, counts included."""

    rows: tuple[Measured, ...]
    seconds: Floats  # measured, by row
    fixed: Floats  # the update, by row: nothing is fitted to it
    host: Floats  # what the host needs to hand over, by row
    row: NDArray[np.intp]
    classes: tuple[str, ...]  # names
    index: NDArray[np.intp]  # of the class of each kernel
    compute: Floats
    memory: Floats
    excess: Floats
    straight: Floats  # the H200's share of the bound, as it was done before
    narrow: NDArray[np.bool_]
    wide: NDArray[np.bool_]
    power: Floats  # logarithm

    @property
    def devices(self) -> list[str]:
        """Of the rows."""
        return [one.device.name for one in self.rows]


def table(folder: Path, kind: str = "gpu") -> Table:
    """All steps of the list on GPUs, or on CPUs."""
    chosen = [one for one in measured(folder) if one.device.kind == kind]
    wanted = {_label(one) for one in chosen}
    steps = {label: _step(workload) for label, workload in kept() if label in wanted}
    known: dict[str, Traits] = {one.device.name: traits(one.device) for one in chosen}
    found: dict[str, list[NDArray[Any]]] = defaultdict(list)
    names: list[str] = []
    fixed, host = np.zeros(len(chosen)), np.zeros(len(chosen))
    for number, one in enumerate(chosen):
        step, mine = steps[_label(one)], known[one.device.name]
        here = parts(one.device, mine, step.sorts, step.works, step.measured_us)
        counts = step.counts * 1e-6 * (step.forward if one.forward else 1.0)
        size = len(counts)
        bound = np.maximum(here.compute_us, here.memory_us)
        on_h200 = step.measured_us / _h200_bound(step.works)
        vector = np.array([name.endswith(VECTOR) for name in here.classes])
        names += here.classes
        for key, values in (
            ("row", np.full(size, number)),
            ("compute", here.compute_us * counts),
            ("memory", here.memory_us * counts),
            ("excess", here.excess_us * counts),
            ("straight", bound * on_h200 * counts),
            ("narrow", vector & (mine.units == NARROW)),
            ("wide", vector & (mine.units == WIDE)),
            ("power", np.full(size, np.log(mine.power))),
        ):
            found[key].append(values)
        host[number] = step.host_s
        if one.update:
            fixed[number] = step.moved / (one.device.memory_bandwidth * UPDATE_SHARE)
            fixed[number] += step.tensors * UPDATE_TENSOR_US * 1e-6
    classes = sorted(set(names))
    places = {name: place for place, name in enumerate(classes)}
    joined = {key: np.concatenate(values) for key, values in found.items()}
    return Table(
        rows=tuple(chosen),
        seconds=np.array([one.seconds for one in chosen]),
        fixed=fixed,
        host=host,
        row=joined["row"].astype(np.intp),
        classes=tuple(classes),
        index=np.array([places[name] for name in names], np.intp),
        compute=joined["compute"],
        memory=joined["memory"],
        excess=joined["excess"],
        straight=joined["straight"],
        narrow=joined["narrow"].astype(bool),
        wide=joined["wide"].astype(bool),
        power=joined["power"],
    )


def _label(one: Measured) -> str:
    asked = replace(one.asked, mode="training") if one.forward else one.asked
    return asked.label


def _step(workload: Workload) -> Step:
    prepared = prepare(workload, shipped("h200"))
    operations = (one for one, count in prepared.kernels for _ in range(count))
    counts: dict[tuple[str, Work, bool], int] = defaultdict(int)
    places: dict[tuple[str, Work, bool], int] = {}
    for place, (operation, work, sort) in enumerate(
        zip(operations, prepared.works, prepared.work_classes, strict=True)
    ):
        if operation.account is Account.LOSS and workload.network.startswith("torch7"):
            continue  # there was none
        key = sort, work, operation.phase is Phase.FORWARD
        counts[key] += 1
        places.setdefault(key, place)
    updates = workload.phase(Phase.UPDATE)
    chosen = list(places.values())
    return Step(
        sorts=tuple(sort for sort, *_ in counts),
        works=tuple(work for _, work, _ in counts),
        measured_us=prepared.times_us[chosen],
        counts=np.array(list(counts.values()), float),
        forward=np.array([forward for *_, forward in counts]),
        moved=sum(one.moved for one in updates),
        tensors=sum(one.sizes["tensors"] for one in updates),
        host_s=sum(prepared.host_us) * 1e-6,
    )


def _h200_bound(works: Sequence[Work]) -> Floats:
    calibration = shipped("h200")
    return np.array([calibration.bound_us(one) for one in works])
