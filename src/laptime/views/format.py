"""Numbers and names as they are shown: one line, a fixed number of digits, unknown as a dash.

Times of predictions are in a unit that suits all of a column: never 0.00, never 4.4e+04.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from laptime.files.text import one_line
from laptime.model.target import TargetTime

UNKNOWN = "-"
_MIB = 1024.0**2
_FULL = "█"
_EIGHTHS = "▏▎▍▌▋▊▉"
THIN = _EIGHTHS[0]
_LONG_S = 10.0  # from here on seconds are read more easily than milliseconds
_MOST_DECIMALS = 6
_MOST_NAMES = 8
# The eight heights of a line over time are darker the higher, the shades of a bar lighter.
_PLAIN: dict[str, str] = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
    **dict(zip(_EIGHTHS, "   ####", strict=True)),
    **dict(zip("▒░─·…±×→–—", "=--|~~x>--", strict=True)),
}


def name(text: str) -> str:
    """A name on one line, whatever it holds."""
    return one_line(text) or "''"


def listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Names in a row, those beyond the first few counted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(name, names[:most])) + more


def distinct(names: Sequence[str]) -> list[str]:
    """The names, those that are the same numbered: a run beside itself, or beside its copy."""
    seen: dict[str, int] = {}
    numbered = []
    for text in names:
        seen[text] = seen.get(text, 0) + 1
        numbered.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return numbered


def called(layer: str, unit: str) -> str:
    """A layer within a sentence: one that has a number for a name is `layer 0`, not `0`."""
    return f"{unit} {name(layer)}" if not re.search(r"[^\W\d_]", layer) else name(layer)


def digits(largest_s: float | None) -> int:
    """How many decimals the milliseconds of a column need, by its largest number."""
    largest = abs(largest_s or 0.0) * 1e3
    return 3 if largest < 100 else 2 if largest < 1000 else 1


def milliseconds(seconds: float | None, decimals: int | None = None) -> str:
    """Milliseconds; by themselves with about three digits that count: 0.012, 43.1, 128, 45,130."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    value = seconds * 1e3
    if decimals is None:
        decimals = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{_unsigned_zero(value, decimals):,.{decimals}f}"


def percent(share: float | None, decimals: int = 1) -> str:
    """A share in per cent."""
    if share is None or math.isnan(share):
        return UNKNOWN
    return f"{_unsigned_zero(share * 100, decimals):.{decimals}f} %"


def rate(a_second: float | None) -> str:
    """Samples a second with about three digits that count: 0.021, 4.31, 4,140."""
    return UNKNOWN if a_second is None or math.isnan(a_second) else figures(a_second, 3)


def _unsigned_zero(value: float, decimals: int) -> float:
    return round(value, decimals) + 0.0  # -0.0 + 0.0 is 0.0


def mebibytes(size: float | None) -> str:
    """Bytes as MiB; a little with two digits that count, since 0.0 would be nothing."""
    if size is None:
        return UNKNOWN
    return f"{size / _MIB:,.1f}" if not size or size >= 0.1 * _MIB else f"{size / _MIB:.2g}"


def memory(size: float | None) -> str:
    """Bytes with the unit that suits them: `3.0 MiB`, `12.5 KiB`."""
    if size is None:
        return UNKNOWN
    return f"{size / _MIB:,.1f} MiB" if not size or size >= 0.1 * _MIB else f"{size / 1024:,.1f} KiB"


def plural(count: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def step_of(noun: str) -> str:
    """`training step`, or just `step` where there is no noun."""
    return f"{noun} step".strip()


def loss(value: float | None) -> str:
    """A loss with four digits that count."""
    return "not finite" if value is None else f"{value:.4g}"


def goal(metric: str, value: float) -> str:
    """A target: `loss 0.5`, `top-1 90.0 %`."""
    return f"top-1 {percent(value)}" if metric == "top1" else f"{metric} {loss(value)}"


def target(told: TargetTime) -> str:
    """Whether and when a training reached its target, in one line."""
    how = "reached after" if told.reached else "not reached in"
    took = f"{plural(told.step, 'step')} and {plural(told.epoch, 'epoch')}"
    return f"target {goal(told.metric, told.value)} {how} {long_duration(told.seconds)}, {took}"


def bar(share: float | None, width: int) -> str:
    """A bar whose full width is 1, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share or 0.0)) * width * 8)
    return _FULL * (eighths // 8) + _EIGHTHS[: eighths % 8][-1:]


def in_ascii(text: str) -> str:
    """`text` for a terminal without Unicode, each character as wide as it was: columns stay columns."""
    return "".join(
        letter if letter.isascii() else _PLAIN.get(letter, "?" * int(cell_len(letter))) for letter in text
    )


# -- predictions -----------------------------------------------------------------------------------


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
