"""A predicted step in the shape of a measured one, and what follows from it: hours, memory, money, energy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from laptime.files.parse import build
from laptime.model.accounts import Account
from laptime.model.constants import Source
from laptime.model.layers import LOSS_LAYER, LayerSeconds

LIBRARY_BYTES: Annotated[
    int,
    Source(
        "What steps measured on an H200 took beyond their tensors and workspaces: two of cuBLAS's (32 MiB "
        "for each of the threads that run forward and backward), and 16 MiB that a fully connected network "
        "took, which nothing here explains."
    ),
] = 80 * 2**20
ROUNDING: Annotated[
    float,
    Source(
        "Reserved over allocated memory on an H200: 1.23 in the median, 1.62 at the ninth decile, 1.88 at "
        "most. It depends on the order of sizes, so what is said to fit may not."
    ),
] = 1.23


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a step takes on a device, and what it needs. All of it is predicted, nothing measured."""

    network: str
    device: str
    batch: int
    precision: str
    mode: str
    step_s: float
    interval_s: tuple[float, float]  # nine in ten predictions of this kind were inside
    busy_s: float  # of the device
    host_s: float  # of the host, to hand the step's operations over
    phases: Mapping[Account, float]  # forward, loss, backward and update
    layer_times: tuple[LayerSeconds, ...]
    bottleneck: str
    uncovered: Mapping[str, float]  # operations without a formula, and their share of the bytes
    peak_memory_bytes: int  # what tensors allocate
    reserved_memory_bytes: int  # with the allocator's rounding: what must fit
    device_memory_bytes: float | None
    basis: str  # what the times rest on
    notes: tuple[str, ...] = ()  # what had to be assumed
    gpus: int = 1  # of one node, each with its own batch
    communication_s: float = 0.0  # what their exchange of gradients adds to the step
    samples: int | None = None
    epochs: int | None = None
    price_per_hour: float | None = None
    watts: float | None = None

    @classmethod
    def of(cls, document: Any) -> Prediction:
        """From its fields as JSON has them; what only another laptime keeps is passed over."""
        if not isinstance(document, Mapping):
            raise ValueError("it is no object")
        rows = document.get("layer_times")
        if isinstance(rows, list):  # an earlier laptime left the loss without a name
            rows = [
                row | {"layer": LOSS_LAYER} if isinstance(row, dict) and row.get("layer") == "" else row
                for row in rows
            ]
        made = build(cls, {**document, "layer_times": rows})
        low, high = made.interval_s
        if min(made.batch, made.gpus) < 1 or not made.step_s > 0 or not low <= high:
            raise ValueError("batch, gpus and step_s must be above 0, and the interval in order")
        if made.device_memory_bytes is not None and not made.device_memory_bytes > 0:
            raise ValueError("device_memory_bytes must be above 0")
        return made

    def layers(self) -> tuple[LayerSeconds, ...]:
        """In the order of their first calls."""
        return self.layer_times

    @property
    def samples_per_s(self) -> float:
        """Throughput."""
        return self.gpus * self.batch / self.step_s

    @property
    def fits(self) -> bool | None:
        """Whether the device has the memory; None where its memory is not known."""
        room = self.device_memory_bytes
        return None if room is None else self.reserved_memory_bytes <= room

    @property
    def epoch_s(self) -> float | None:
        """One pass over all samples."""
        return None if self.samples is None else -(-self.samples // (self.gpus * self.batch)) * self.step_s

    @property
    def training_s(self) -> float | None:
        """All epochs."""
        return None if self.epoch_s is None or self.epochs is None else self.epoch_s * self.epochs

    @property
    def dollars(self) -> float | None:
        """For the whole training; the price is that of one GPU."""
        if self.training_s is None or self.price_per_hour is None:
            return None
        return self.training_s / 3600 * self.price_per_hour * self.gpus

    @property
    def kilowatt_hours(self) -> float | None:
        """At the devices' full power, for the whole training."""
        if self.training_s is None or self.watts is None:
            return None
        return self.training_s / 3600 * self.watts * self.gpus / 1000


def account_times(layers: Iterable[LayerSeconds]) -> dict[Account, float]:
    """Seconds of a step's layers by account: forward, loss, backward and update, as far as there are any."""
    seconds = dict.fromkeys((Account.FORWARD, Account.LOSS, Account.BACKWARD, Account.UPDATE), 0.0)
    for layer in layers:
        seconds[Account.LOSS if layer.layer == LOSS_LAYER else Account.FORWARD] += layer.forward_s
        seconds[Account.BACKWARD] += layer.backward_s
        seconds[Account.UPDATE] += layer.update_s
    return {account: total for account, total in seconds.items() if total}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTime:
    """Measured and predicted seconds of the same thing; None where a side has none."""

    measured: float | None
    predicted: float | None
    same_device: bool | None  # False: the ratio is no error; None where it cannot be told

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return self.predicted / self.measured if self.measured and self.predicted is not None else None

    @property
    def error(self) -> float | None:
        """How far the prediction is off; None where that cannot be told."""
        return None if self.ratio is None or self.same_device is False else self.ratio - 1

    @property
    def largest(self) -> float:
        """Of the larger side."""
        return max(self.measured or 0.0, self.predicted or 0.0)

    def document(self) -> dict[str, float | None]:
        """As `--json` has it."""
        sides = {"measured": self.measured, "predicted": self.predicted}
        return {**sides, "ratio": self.ratio, "error": self.error}
