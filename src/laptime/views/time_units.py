"""Numbers of predictions, in a unit that suits all of a column: never 0.00, never 4.4e+04."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_LONG_S = 10.0  # from here on seconds are read more easily than milliseconds
_MOST_DECIMALS = 6


class TimeUnit(NamedTuple):
    """A unit of time, and its seconds."""

    name: str
    seconds: float


_MS, _S = TimeUnit("ms", 1e-3), TimeUnit("s", 1.0)


def step_unit(seconds: Sequence[float]) -> TimeUnit:
    """The unit for steps and their parts."""
    return _S if max(seconds, default=0.0) >= _LONG_S else _MS


def training_unit(seconds: Sequence[float]) -> TimeUnit:
    """The unit for whole trainings, by the longest."""
    longest = max(seconds, default=0.0)
    if longest >= 3600:
        return TimeUnit("hours", 3600.0)
    return TimeUnit("minutes", 60.0) if longest >= 60 else TimeUnit("seconds", 1.0)


def duration(seconds: float) -> str:
    """A step time with its unit."""
    unit = step_unit([seconds])
    return f"{figures(seconds / unit.seconds)} {unit.name}"


def long_duration(seconds: float) -> str:
    """A training time with its unit."""
    unit = training_unit([seconds])
    short = {"hours": "h", "minutes": "min", "seconds": "s"}[unit.name]
    return f"{seconds / unit.seconds:,.{decimals([seconds / unit.seconds], 2)}f} {short}"


def figures(value: float, count: int = 4) -> str:
    """A number with that many significant digits, without trailing zeros or an exponent."""
    if not value:
        return "0"
    if not math.isfinite(value):
        return f"{value:g}"
    places = min(max(count - 1 - math.floor(math.log10(abs(value))), 0), 9)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals(values: Sequence[float], least: int) -> int:
    """How many a column needs so that its smallest number has two digits that count."""
    smallest = min((value for value in values if 0 < value < math.inf), default=1.0)
    return min(max(least, 1 - math.floor(math.log10(smallest))), _MOST_DECIMALS)


def cells(values: Sequence[float | None], least: int, *, over: float = 1.0) -> list[str]:
    """A column of numbers with as many decimals in each; what is not known is left blank."""
    known = [value / over for value in values if value is not None]
    places = decimals(known, least)
    return ["" if value is None else f"{value / over:,.{places}f}" for value in values]
