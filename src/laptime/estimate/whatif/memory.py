"""The memory of a step: over time, operation by operation; and the largest batch that a device holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from laptime.estimate.largest_batch import MOST
from laptime.estimate.whatif.steps import DeviceStep, workspaces
from laptime.model import Phase
from laptime.model.layers import LayerSeconds
from laptime.model.prediction import LIBRARY_BYTES, Prediction
from laptime.ops.optimizers import temporaries

POINTS = 2000  # of a timeline: more than a screen is wide
_BEND = 0.998  # the line overshoots: AlexNet on a T4 3,251 for 3,246, the only case that it was fitted to


def memory_timeline(timed: DeviceStep, made: Prediction) -> dict[str, Any] | None:
    """Bytes alive at each moment of one GPU's step, and whose they are; None where no one counted them.

    Where a run corrects a layer's time its moments are as much longer. Points lie where operations begin.
    """
    workload = timed.prepared.workload
    if not any(operation.alive for operation in workload.operations):
        return None
    stretched = _stretched(timed.prediction, made)
    begins, at = [], 0.0
    for timed_operation in timed.step.operations:
        begins.append(at)
        at += timed_operation.span_s * stretched.get(
            (timed_operation.operation.layer, timed_operation.operation.phase), 1.0
        )
    sizes = _bytes(timed)
    kept = _thinned(sizes)
    operations = [timed.step.operations[place].operation for place in kept]
    return {
        "seconds": [begins[place] for place in kept],
        "bytes": [sizes[place] for place in kept],
        "phase": [operation.account.value for operation in operations],
        "layer": [operation.layer for operation in operations],
        "end_s": at,
        "static_bytes": workload.memory.static + workload.memory.inputs + _library(timed),
    }


def _bytes(timed: DeviceStep) -> list[int]:
    """Parameters, state and inputs stay; gradients wait for the update, with what it computes in."""
    workload = timed.prepared.workload
    memory = workload.memory
    always = memory.static + memory.inputs + _library(timed)
    gradients = memory.gradients * (1 + temporaries(workload))
    on_cpu = timed.speed.device.kind == "cpu"
    spaces = iter([0.0] * len(timed.prepared.kernels) if on_cpu else workspaces(timed).tolist())
    sizes = [always]  # the host between steps: gradients are gone
    for timed_operation in timed.step.operations[1:]:
        update = timed_operation.operation.phase is Phase.UPDATE
        sizes.append(always + (gradients if update else timed_operation.operation.alive + int(next(spaces))))
    return sizes


def _library(timed: DeviceStep) -> int:
    return 0 if timed.speed.device.kind == "cpu" else LIBRARY_BYTES


def _thinned(sizes: list[int]) -> list[int]:
    """The places of at most POINTS sizes: of neighbours the largest, so that no peak is lost."""
    if len(sizes) <= POINTS:
        return list(range(len(sizes)))
    groups = np.array_split(np.arange(len(sizes)), POINTS)
    return [int(max(group, key=lambda place: sizes[place])) for group in groups]


def _stretched(plain: Prediction, made: Prediction) -> dict[tuple[str, Phase], float]:
    if plain.layer_times == made.layer_times:
        return {}
    factors: dict[tuple[str, Phase], float] = {}
    for before, after in zip(plain.layers(), made.layers(), strict=True):
        for phase in Phase:
            old, new = _of(before, phase), _of(after, phase)
            factors[before.layer, phase] = new / old if old else 1.0
    return factors


def _of(layer: LayerSeconds, phase: Phase) -> float:
    times = {Phase.BACKWARD: layer.backward_s, Phase.UPDATE: layer.update_s}
    return times.get(phase, layer.forward_s)


def largest_batch(needs: Mapping[int, float], limit: float | None) -> int | None:
    """The most samples that fit, on the line between two batches; 0: not even one; None: nobody can say.

    Tensors are convex in the batch (see `largest_batch.largest`), so what the line says does fit; the
    workspaces of libraries bend it by a thousandth or two the other way (AlexNet: 3,251 for 3,246 samples).
    """
    if limit is None or not needs:
        return None
    low = max((batch for batch, size in needs.items() if size <= limit), default=None)
    high = min((batch for batch, size in needs.items() if size > limit), default=None)
    if low is None:
        return 0 if high == 1 else None
    if high is None:
        return low if low == MOST else None
    slope = (needs[high] - needs[low]) / (high - low)
    return min(high - 1, max(low, math.floor((low + (limit - needs[low]) / slope) * _BEND)))


def around(needs: dict[int, float], limits: list[float], need: Callable[[int], float]) -> dict[int, float]:
    """`needs` of two batches or more, with as many others that every limit lies between two of them."""
    known = dict(sorted(needs.items()))
    if limits and min(limits) < min(known.values()) and 1 not in known:
        known[1] = need(1)
    while limits and (top := max(known)) < MOST and known[top] <= max(limits):
        below = max(batch for batch in known if batch < top)
        slope = (known[top] - known[below]) / (top - below)
        guess = top + (max(limits) - known[top]) / slope if slope > 0 else MOST
        wanted = 2 ** math.ceil(math.log2(max(2.0 * top, min(guess, MOST))))
        known[min(wanted, MOST)] = need(min(wanted, MOST))
    return known
