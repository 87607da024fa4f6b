"""Values of a trace that others wrote: what is not of the kind that is wanted counts as missing."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> float | None:
    """A finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def integer(value: Any, otherwise: int) -> int:
    """An integer, also one in quotes: threads were once written so."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    return value if isinstance(value, dict) else {}


def thread_id(value: Any) -> int | str:
    """What stands for a thread or a process: a number where it is one, else the text of it."""
    known = integer(value, -1)
    return known if known >= 0 else str(value)
