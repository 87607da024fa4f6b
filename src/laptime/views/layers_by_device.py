"""Layer time per device: a column for each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laptime.runs.select import LayerPhase
from laptime.views.step_series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeconds:
    """Median seconds of a layer in a phase on each device; None where it never ran there."""

    layer: str
    phase: str
    seconds: Mapping[str, float | None]


def by_device(side: Sequence[Series]) -> list[DeviceSeconds]:
    """Each layer and phase on each device, over the runs of one side."""
    keys: dict[LayerPhase, None] = dict.fromkeys(key for series in side for key in series.layers)
    devices = {rank: device for series in side for rank, device in series.devices.items()}
    rows = []
    for layer, phase in keys:
        seconds = {}
        for rank, device in sorted(devices.items()):
            cells = [
                (series.ranks.get(rank, {}) if len(series.devices) > 1 else series.layers).get((layer, phase))
                for series in side
            ]
            medians = [float(np.median(cell)) for cell in cells if cell is not None]
            seconds[f"{device} rank {rank}"] = float(np.median(medians)) if medians else None
        rows.append(DeviceSeconds(layer=layer, phase=phase, seconds=seconds))
    return rows
