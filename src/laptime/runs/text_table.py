"""Plain-text tables for `repr`: what a notebook or a REPL shows of a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence

from laptime.files.text import one_line
from laptime.model import Statistics

_WIDEST = 48


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Rows under a header; the first `left` columns are words, the rest are numbers."""
    lines = [header, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def name(text: str) -> str:
    """A name on one line; its middle is left out where it is too long."""
    shown = one_line(text)
    half = _WIDEST // 2
    return shown if len(shown) <= _WIDEST else f"{shown[: half - 1]}…{shown[-half:]}"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None or math.isnan(seconds) else f"{seconds * 1e3:.3f}"


def spread(statistics: Statistics | None) -> str:
    """A median with half its interquartile range: `1.234 ±3%`."""
    if statistics is None or not statistics.count:
        return "-"
    return f"{milliseconds(statistics.median)} ±{statistics.spread / 2:.0%}"


def share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
