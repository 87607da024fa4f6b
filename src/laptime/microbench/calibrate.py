"""A calibration from the rows of a sweep: fitted, judged on operations that it has not seen, and saved."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from laptime import hardware
from laptime.errors import AmbiguousDevice, CalibrationError, UnknownDevice
from laptime.estimate import device_speed
from laptime.estimate.calibration import Calibration, fit
from laptime.microbench.row import SweepRow, write_rows
from laptime.ops.registry import kind_named
from laptime.recorder.backends import device_facts, environment

_FOLDS = 3
_UNCACHED = 64e6  # bytes that most processors' caches do not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class KindError:
    """How well operations of a kind and type are predicted that its model has not seen."""

    kind: str
    dtype: str
    rows: int
    median_error: float | None
    model: bool  # False: too few rows for one of its own


def fitted(rows: Sequence[SweepRow], place: torch.device) -> Calibration:
    """The calibration of the device that the rows were timed on."""
    try:
        known = hardware.device(device_facts(place)["name"])
    except (UnknownDevice, AmbiguousDevice):
        known = None
    measured = figures(rows, place)
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "time": time.strftime("%H:%M:%S"),
        "type": place.type,
        "host": "host" if place.type == "cuda" else "device",  # who launches operations
        "rows": len(rows),
        "environment": environment(place),
    }
    if known is None or known.kind == "cpu":  # a virtual machine has a share of a catalog's processor
        facts["figures"] = measured
        name = known.name if known else "this-cpu" if place.type == "cpu" else "this-gpu"
        fp32, bf16 = (measured.get(key, measured["fp32"]) * 1e12 for key in ("fp32", "bf16"))
        peaks = {"float32": fp32, "tf32": fp32, "bfloat16": bf16}
        bandwidth = measured["memory_bandwidth_gbs"] * 1e9
    else:
        name, peaks, bandwidth = known.name, device_speed.peaks(known), known.memory_bandwidth
    return fit([row.timed() for row in rows], device=name, peaks=peaks, bandwidth=bandwidth, facts=facts)


def figures(rows: Sequence[SweepRow], place: torch.device) -> dict[str, Any]:
    """What the sweep itself reached: the fastest product, the fastest copy that no cache holds."""
    facts = environment(place)
    memory = facts["device"].get("memory_bytes") or facts["memory_bytes"]
    best: dict[str, float] = defaultdict(float)
    copies = []
    for row in rows:
        reaches = kind_named(row.operation.kind).reaches
        if reaches == "compute":
            reached = row.operation.flops / row.device_us / 1e6
            best[row.operation.dtype] = max(best[row.operation.dtype], reached)
        elif reaches == "bandwidth":
            copies.append(row)
    if not copies or not best["float32"]:
        raise CalibrationError("no product or no copy was timed; give more --seconds")
    uncached = min(_UNCACHED, max(row.operation.moved for row in copies))
    speeds = [row.operation.moved / row.device_us / 1e3 for row in copies if row.operation.moved >= uncached]
    reached_figures = {
        "title": device_facts(place)["name"],
        "kind": "cpu" if place.type == "cpu" else "gpu",
        "memory_bandwidth_gbs": max(speeds),
        "memory_gib": memory / 2**30 if memory else None,
        "fp32": best["float32"],
    }
    return reached_figures | ({"bf16": best["bfloat16"]} if best["bfloat16"] else {})


def errors(rows: Sequence[SweepRow], made: Calibration) -> list[KindError]:
    """The median error of each kind and type on rows that its model has not seen."""
    timed = [row.timed() for row in rows]
    missed: dict[tuple[str, str], list[float]] = defaultdict(list)
    for fold in range(_FOLDS):
        rest = [row for index, row in enumerate(timed) if index % _FOLDS != fold]
        model = fit(rest, device=made.device, peaks=made.peaks, bandwidth=made.bandwidth)
        unseen = [row for row in timed[fold::_FOLDS] if (row.work.kind, row.work.dtype) in model.forests]
        for row, guess in zip(unseen, model.times_us([row.work for row in unseen]), strict=True):
            missed[row.work.kind, row.work.dtype].append(abs(guess / row.device_us - 1))
    counts = Counter((row.work.kind, row.work.dtype) for row in timed)
    return [
        KindError(
            kind=kind,
            dtype=dtype,
            rows=count,
            median_error=float(np.median(missed[kind, dtype])) if missed[kind, dtype] else None,
            model=(kind, dtype) in made.forests,
        )
        for (kind, dtype), count in sorted(counts.items())
    ]


def save(made: Calibration, rows: Sequence[SweepRow], out: Path | None) -> Path:
    """The calibration where predictions look for it, or at `out`, and its rows beside it."""
    file = out or device_speed.calibrations() / f"{made.device}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_rows(rows, file.with_suffix(".csv"))
    part = file.with_name(f".{file.name}.part.npz")
    made.save(part)
    part.replace(file)
    return file
