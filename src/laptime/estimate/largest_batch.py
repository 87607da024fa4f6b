"""The largest batch that fits in a device's memory.

Memory is nearly affine in the batch, and convex: it is the most of several moments' needs, each of which
grows with every sample. So a line through two batches that fit never overestimates what a larger one needs,
and a line between one that fits and one that does not never underestimates it. Two readings give the line, a
third verifies what it says; a few more settle the rest where the line has a bend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from laptime.errors import PredictionError, WorkloadError
from laptime.estimate.predict import predict_all
from laptime.hardware import Device
from laptime.model import Workload
from laptime.model.prediction import Prediction

READINGS = 6  # of the network, for one device
MOST = 2**20  # samples: upper end of the search
START = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest batch for a device, and the prediction of its step."""

    device: str
    batch: int | None  # 0: not even one sample fits; None: the device's memory is not known
    prediction: Prediction | None  # of that batch
    readings: int  # of the network
    exact: bool  # False: one more sample might fit as well

    @property
    def samples_per_s(self) -> float | None:
        """Throughput at that batch."""
        return None if self.prediction is None else self.prediction.samples_per_s


@dataclass(slots=True)
class _Search:
    """Search state of one device: bytes needed, by batch."""

    device: Device
    limit: float
    needs: dict[int, float]
    made: dict[int, Prediction]

    @property
    def fitting(self) -> list[int]:
        return sorted(batch for batch, size in self.needs.items() if size <= self.limit)

    @property
    def too_large(self) -> list[int]:
        return sorted(batch for batch, size in self.needs.items() if size > self.limit)

    def next(self, start: int) -> int | None:
        """The next batch to try; None when the search is complete."""
        if len(self.needs) < 2:
            return start if not self.needs else 2 * start
        low, high = max(self.fitting, default=0), min(self.too_large, default=MOST + 1)
        if high <= low + 1:
            return None
        first, second = self._line()
        slope = (self.needs[second] - self.needs[first]) / (second - first)
        if not math.isfinite(slope):  # a batch that could not be read
            return low + 1
        if slope <= 0:  # parameters dominate: memory does not grow with the batch yet
            return min(16 * second, high - 1) if high > 16 * second else (low + high) // 2
        guess = math.floor(first + (self.limit - self.needs[first]) / slope)
        return min(max(guess, low + 1), high - 1)

    def _line(self) -> tuple[int, int]:
        """Two batches next to the limit: around it, or else both on one side."""
        fitting, too_large = self.fitting, self.too_large
        if fitting and too_large:
            return fitting[-1], too_large[0]
        known = fitting[-2:] or too_large[:2]
        return known[0], known[1]

    def settled(self) -> bool:
        """Whether the line through those that fit leaves no room for one more sample."""
        fitting = self.fitting
        if len(fitting) < 2:
            return False
        first, second = fitting[-2:]
        slope = (self.needs[second] - self.needs[first]) / (second - first)
        return self.needs[second] + slope > self.limit


def largest(
    read: Callable[[int], Workload],
    devices: Sequence[Device],
    *,
    start: int = START,
    step: Callable[..., list[Prediction]] = predict_all,
    **training: Any,
) -> list[Largest]:
    """The largest batch of each device. `read` gives the workload of a batch; `training` goes to `step`.

    Devices share readings. A batch that cannot be read, as batch norms of one sample cannot, does not fit.
    """
    if start < 1:
        raise PredictionError(f"start is {start}; give a batch of at least 1 to begin with")
    reading = cache(read)
    searches = {
        device.name: _Search(device, device.memory_bytes, {}, {})
        for device in devices
        if device.memory_bytes is not None
    }
    open_ = dict(searches)
    for _ in range(READINGS):
        wanted: dict[int, list[_Search]] = {}
        for name, search in list(open_.items()):
            batch = None if search.settled() else search.next(start)
            if batch is None:
                del open_[name]
            else:
                wanted.setdefault(batch, []).append(search)
        for batch, group in wanted.items():
            _look(reading, batch, group, partial(step, **training))
    return [_answer(device, searches.get(device.name), device.name not in open_) for device in devices]


def _look(
    read: Callable[[int], Workload],
    batch: int,
    group: Sequence[_Search],
    step: Callable[..., list[Prediction]],
) -> None:
    try:
        workload = read(batch)
    except WorkloadError:
        if batch > 1:
            raise
        for search in group:
            search.needs[batch] = math.inf
        return
    made = step(workload, [search.device for search in group])
    for search, prediction in zip(group, made, strict=True):
        search.needs[batch] = prediction.reserved_memory_bytes
        search.made[batch] = prediction


def _answer(device: Device, search: _Search | None, closed: bool) -> Largest:
    if search is None:
        return Largest(device=device.name, batch=None, prediction=None, readings=0, exact=False)
    batch = max(search.fitting, default=0)
    bounded = batch + 1 in search.needs or (closed and batch < MOST)  # at MOST the search ends
    return Largest(
        device=device.name,
        batch=batch,
        prediction=search.made.get(batch),
        readings=len(search.needs),
        exact=bounded or search.settled(),
    )
