"""Numbers and names as a terminal shows them: one line, a fixed number of digits, unknown as a dash."""

from __future__ import annotations

from laptime.store.files import one_line

UNKNOWN = "-"
_MIB = 1024.0**2


def name(text: str) -> str:
    """A name on one line, whatever it holds."""
    return one_line(text) or "''"


def digits(largest_s: float | None) -> int:
    """How many decimals the milliseconds of a column need, by its largest number."""
    largest = abs(largest_s or 0.0) * 1e3
    return 3 if largest < 100 else 2 if largest < 1000 else 1


def milliseconds(seconds: float | None, decimals: int | None = None) -> str:
    """Milliseconds; by themselves with about three digits that count: 0.012, 43.1, 128."""
    if seconds is None:
        return UNKNOWN
    value = seconds * 1e3
    if decimals is None:
        decimals = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{_unsigned_zero(value, decimals):,.{decimals}f}"


def percent(share: float | None, decimals: int = 1) -> str:
    """A share in per cent."""
    return UNKNOWN if share is None else f"{_unsigned_zero(share * 100, decimals):.{decimals}f} %"


def _unsigned_zero(value: float, decimals: int) -> float:
    return round(value, decimals) + 0.0  # -0.0 + 0.0 is 0.0


def mebibytes(size: float | None) -> str:
    """Bytes as MiB."""
    return UNKNOWN if size is None else f"{size / _MIB:,.1f}"


def plural(count: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def bar(share: float | None, width: int, *, ascii_only: bool = False) -> str:
    """A bar whose full width is 1, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share or 0.0)) * width * 8)
    if ascii_only:
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
