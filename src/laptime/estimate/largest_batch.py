"""The largest batch that fits in a device's memory.

Memory is nearly affine in the batch, and convex: it is the most of several moments' needs, each of which
grows with every sample. So a line through two batches that fit never overestimates what a larger one needs,
and a line between one that fits and one that does not never underestimates it. Two readings give the line, a
third verifies what it says; a few more settle the rest where the line has a bend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from laptime.errors import PredictionError, WorkloadError
from laptime.hardware import Device
from laptime.model.prediction import Prediction

READINGS = 6  # of the network, for one device
_BEND = 0.998  # the line overshoots: AlexNet on a T4 3,251 for 3,246, the only case that it was fitted to
MOST = 2**20  # samples: upper end of the search
START = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest batch for a device, and the prediction of its step."""

    device: str
    batch: int | None  # 0: not even one sample fits; None: the device's memory is not known
    prediction: Prediction | None  # of that batch
    readings: int = 0  # of the network
    exact: bool = True  # False: one more sample might fit as well

    @property
    def samples_per_s(self) -> float | None:
        """Throughput at that batch."""
        return None if self.prediction is None else self.prediction.samples_per_s


@dataclass(slots=True)
class _Search:
    """Search state of one device: bytes needed, by batch."""

    device: Device
    limit: float
    needs: dict[int, float] = field(default_factory=dict)
    made: dict[int, Prediction] = field(default_factory=dict)

    @property
    def fitting(self) -> list[int]:
        return sorted(batch for batch, size in self.needs.items() if size <= self.limit)

    @property
    def settled(self) -> bool:
        """Whether the line through those that fit leaves no room for one more sample."""
        fitting = self.fitting
        return len(fitting) > 1 and self.needs[fitting[-1]] + self._slope(*fitting[-2:]) > self.limit

    def next(self, start: int) -> int | None:
        """The next batch to try; None when the search is complete."""
        if self.settled:
            return None
        if len(self.needs) < 2:
            return start if not self.needs else 2 * start
        fitting = self.fitting
        too_large = sorted(batch for batch in self.needs if batch not in fitting)
        low, high = max(fitting, default=0), min(too_large, default=MOST + 1)
        if high <= low + 1:
            return None
        # The line through two batches next to the limit: around it, or else both on one side.
        around = fitting and too_large
        first, second = (low, high) if around else (fitting[-2:] or too_large[:2])
        slope = self._slope(first, second)
        if not math.isfinite(slope):  # a batch that could not be read
            return low + 1
        if slope <= 0:  # parameters dominate: memory does not grow with the batch yet
            return min(16 * second, high - 1) if high > 16 * second else (low + high) // 2
        guess = math.floor(first + (self.limit - self.needs[first]) / slope)
        return min(max(guess, low + 1), high - 1)

    def answer(self, start: int) -> Largest:
        batch = max(self.fitting, default=0)
        # At MOST the search ends.
        bounded = batch + 1 in self.needs or (self.next(start) is None and batch < MOST)
        return Largest(
            device=self.device.name,
            batch=batch,
            prediction=self.made.get(batch),
            readings=len(self.needs),
            exact=bounded or self.settled,
        )

    def _slope(self, first: int, second: int) -> float:
        return (self.needs[second] - self.needs[first]) / (second - first)


def largest(
    predict: Callable[[int, Sequence[Device]], list[Prediction]],
    devices: Sequence[Device],
    *,
    start: int = START,
) -> list[Largest]:
    """The largest batch of each device. `predict` gives the predictions of a batch on some of them.

    Devices share readings. A batch that cannot be read, as batch norms of one sample cannot, does not fit.
    """
    if start < 1:
        raise PredictionError(f"start is {start}; give a batch of at least 1 to begin with")
    searches = {
        device.name: _Search(device, device.memory_bytes)
        for device in devices
        if device.memory_bytes is not None
    }
    for _ in range(READINGS):
        wanted: dict[int, list[_Search]] = {}
        for search in searches.values():
            if (batch := search.next(start)) is not None:
                wanted.setdefault(batch, []).append(search)
        for batch, group in wanted.items():
            try:
                predictions = predict(batch, [search.device for search in group])
            except WorkloadError:
                if batch > 1:
                    raise
                for search in group:
                    search.needs[batch] = math.inf
                continue
            for search, prediction in zip(group, predictions, strict=True):
                search.needs[batch] = prediction.reserved_memory_bytes
                search.made[batch] = prediction
    return [
        searches[device.name].answer(start)
        if device.name in searches
        else Largest(device=device.name, batch=None, prediction=None, exact=False)
        for device in devices
    ]


def bracketed(
    needs: dict[int, float], limits: Sequence[float], need: Callable[[int], float]
) -> dict[int, float]:
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


def interpolated(needs: Mapping[int, float], limit: float | None) -> int | None:
    """The most samples that fit, on the line between two batches; 0: not even one; None: nobody can say.

    What the line says does fit; the workspaces of libraries bend it by a thousandth or two the other way.
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
