"""Constants fitted to measured steps, and the errors of devices that were left out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from benchmarks.data_sheet.kernels import Table
from laptime.estimate.datasheet_transfer import Constants

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Logarithms. A constant may be off by a factor of three; it starts from 1 and is held there by a spring as
# strong as one device's rows being 10 % off for every 30 % (bounds) or 50 % (excesses) that it moves.
LIMIT = np.log(3.0)
BOUND_SPREAD, EXCESS_SPREAD, FED_SPREAD, THROTTLE_SPREAD = 0.9, 1.5, 0.9, 0.9
ROW_ERROR = 0.1
# Where the springs pull: Kepler's four schedulers feed 128 of its 192 units; the clock's share by eye.
START_WIDE, START_THROTTLE = np.log(1.5), 0.5
OWN = 3  # constants that are not of a class: narrow, wide, throttle


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model: which constants are free, and whether it knows the H200's excess."""

    name: str
    bounds: bool = True
    excesses: bool = True
    own: bool = True
    excess: bool = True  # else the bound is all there is
    shared: bool = False  # two constants for all classes: one where computing takes longer, one for moving


FULL = Variant(name="bound and excess by class")


class Fit:
    """A model over a table of kernels."""

    def __init__(self, table: Table, variant: Variant = FULL) -> None:
        self.table, self.variant = table, variant
        self.classes = len(table.classes)
        self.index = table.index
        if variant.shared:
            self.classes = 2
            self.index = (table.memory > table.compute).astype(np.intp)
        size = 2 * self.classes + OWN
        self.free = np.zeros(size, bool)
        self.free[: self.classes] = variant.bounds
        self.free[self.classes : 2 * self.classes] = variant.excesses
        self.free[2 * self.classes :] = variant.own
        self.start = np.zeros(size)
        if variant.own:
            self.start[-2:] = START_WIDE, START_THROTTLE
        spread = [BOUND_SPREAD] * self.classes + [EXCESS_SPREAD] * self.classes
        self.spread = np.array([*spread, FED_SPREAD, FED_SPREAD, THROTTLE_SPREAD])

    def fitted(self, mask: Mask, start: Floats | None = None) -> Floats:
        """Constants for these rows; every device weighs the same."""
        rows = np.flatnonzero(mask)
        names = np.array(self.table.devices)[rows]
        weights = 1 / np.sqrt([np.sum(names == name) for name in names]) / ROW_ERROR
        whole = self.start.copy()

        def at(values: Floats) -> Floats:
            whole[self.free] = values
            return whole

        def residuals(values: Floats) -> Floats:
            seconds, _ = self._sums(at(values))
            off = np.log(seconds[rows] / self.table.seconds[rows]) * weights
            return np.concatenate([off, ((values - self.start[self.free]) / self.spread[self.free])])

        def slopes(values: Floats) -> Floats:
            seconds, by_class = self._sums(at(values))
            every = np.hstack([by_class / seconds[:, None], self._own_slopes(whole, seconds)])
            mine = every[rows][:, self.free] * weights[:, None]
            return np.vstack([mine, np.diag(1 / self.spread[self.free])])

        first = self.start if start is None else start
        found = least_squares(
            residuals, first[self.free], slopes, bounds=(-LIMIT, LIMIT), loss="soft_l1", max_nfev=30
        )
        made = self.start.copy()
        made[self.free] = found.x
        return made

    def seconds(self, constants: Floats) -> Floats:
        """Predicted, by row."""
        return self._sums(constants)[0]

    def _sums(self, constants: Floats) -> tuple[Floats, Floats]:
        """Seconds by row; and by row and class of the bound's and of the excess' part."""
        table, count = self.table, self.classes
        narrow, wide, throttle = constants[-OWN:]
        slowed = np.exp(-throttle * table.power)
        fed = np.exp(narrow * table.narrow + wide * table.wide)
        bound = np.maximum(table.compute * fed * slowed, table.memory)
        place = table.row * count + self.index
        size = len(table.rows) * count
        bounds = np.bincount(place, bound, size).reshape(-1, count) * np.exp(constants[:count])
        known = table.excess * slowed if self.variant.excess else np.zeros_like(bound)
        excesses = np.bincount(place, known, size).reshape(-1, count)
        excesses = excesses * np.exp(constants[count : 2 * count])
        parts = np.hstack([bounds, excesses])
        return parts.sum(1) + table.fixed, parts

    def _own_slopes(self, constants: Floats, seconds: Floats) -> Floats:
        made = []
        for place in range(-OWN, 0):
            moved = constants.copy()
            moved[place] += 1e-4
            made.append((self._sums(moved)[0] / seconds - 1) / 1e-4)
        return np.array(made).T

    def constants(self, values: Floats) -> Constants:
        """As `laptime.estimate.datasheet_transfer` takes them."""
        factors = [round(float(one), 2) for one in np.exp(values)]
        names, count = self.table.classes, self.classes
        return Constants(
            bound=dict(zip(names, factors[:count], strict=True)),
            excess=dict(zip(names, factors[count : 2 * count], strict=True)),
            narrow=factors[-3],
            wide=factors[-2],
            throttle=round(float(values[-1]), 2),
        )


def left_out(fit: Fit, groups: Sequence[str | None], networks: Sequence[str] | None = None) -> Floats:
    """Seconds of every row, fitted to the rows of other groups; given networks, to half of these."""
    group = np.array(groups)
    start = fit.fitted(np.ones(len(group), bool))
    made = np.zeros(len(group))
    order = sorted(set(networks or ()))
    half = np.array([order.index(one) % 2 for one in networks]) if networks else np.zeros(len(group))
    for name in dict.fromkeys(groups):
        for side in (0, 1) if networks else (0,):
            mine = (group == name) & (half == side)
            others = (group != name) & (half != side) if networks else group != name
            made[mine] = fit.seconds(fit.fitted(others, start))[mine]
    return made


def over_devices(devices: Sequence[str], errors: Floats) -> tuple[float, float]:
    """The mean of the devices' mean absolute errors, and the p90 of all rows."""
    return float(np.mean(list(by_device(devices, errors, np.mean).values()))), float(
        np.quantile(np.abs(errors), 0.9)
    )


def by_device(
    devices: Sequence[str], errors: Floats, figure: Callable[[Floats], np.floating]
) -> dict[str, float]:
    """A figure of each device's absolute errors."""
    names = np.array(devices)
    return {name: float(figure(np.abs(errors[names == name]))) for name in dict.fromkeys(devices)}
