"""Values of a trace that others wrote: what is not of the kind that is wanted counts as missing."""

from __future__ import annotations

from typing import Any

from laptime.files.parse import WHOLE

_LARGEST_US = 1e18  # 30,000 years: times since 1970 in microseconds are near 2e15
_LONGEST_NAME = 10_000  # of a kernel's template arguments


def finite(value: Any) -> float | None:
    """A number that can be a time in microseconds."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST_US else None


def integer(value: Any, otherwise: int) -> int:
    """An integer that a table can hold, also one in quotes: threads were once written so."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if -WHOLE <= number < WHOLE else otherwise


def name(value: Any) -> str:
    """A name, also one that is a number; anything else has none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)[:_LONGEST_NAME]


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    return value if isinstance(value, dict) else {}


def thread_id(value: Any) -> int | str:
    """What stands for a thread or a process: a number where it is one, else the text of it."""
    known = integer(value, -1)
    return known if known >= 0 else name(value)
