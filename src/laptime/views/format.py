"""Numbers and names as a terminal shows them: one line, a fixed number of digits, unknown as a dash."""

from __future__ import annotations

import math
import re

from rich.cells import cell_len

from laptime.files.text import one_line
from laptime.views.time_units import figures

UNKNOWN = "-"
_MIB = 1024.0**2
_FULL = "█"
_EIGHTHS = "▏▎▍▌▋▊▉"
THIN = _EIGHTHS[0]
# The eight heights of a line over time are darker the higher, the shades of a bar lighter.
_PLAIN: dict[str, str] = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
    **dict(zip(_EIGHTHS, "   ####", strict=True)),
    **dict(zip("▒░─·…±×→–—", "=--|~~x>--", strict=True)),
}


def name(text: str) -> str:
    """A name on one line, whatever it holds."""
    return one_line(text) or "''"


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
    return (
        UNKNOWN
        if share is None or math.isnan(share)
        else f"{_unsigned_zero(share * 100, decimals):.{decimals}f} %"
    )


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


def memory(size: float) -> str:
    """Bytes with the unit that suits them: `3.0 MiB`, `12.5 KiB`."""
    return f"{size / _MIB:,.1f} MiB" if not size or size >= 0.1 * _MIB else f"{size / 1024:,.1f} KiB"


def plural(count: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def loss(value: float | None) -> str:
    """A loss with four digits that count."""
    return "not finite" if value is None else f"{value:.4g}"


def bar(share: float | None, width: int) -> str:
    """A bar whose full width is 1, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share or 0.0)) * width * 8)
    return _FULL * (eighths // 8) + _EIGHTHS[: eighths % 8][-1:]


def in_ascii(text: str) -> str:
    """`text` for a terminal without Unicode, each character as wide as it was: columns stay columns."""
    return "".join(letter if letter.isascii() else _ascii(letter) for letter in text)


def _ascii(letter: str) -> str:
    return _PLAIN.get(letter, "?" * int(cell_len(letter)))
