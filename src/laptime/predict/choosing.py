"""Which of many predictions to take: the cheapest within some hours, the fastest under a price.

Only what is known to fit and has a price is chosen from. Batch sizes are taken to need the same number of
epochs, which large ones often do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from laptime.errors import PredictionError
from laptime.predict.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, what came second, and why; or what comes closest where nothing qualifies."""

    wanted: str
    by: Literal["dollars", "hours"]  # what is to be least
    chosen: Prediction | None
    runner_up: Prediction | None
    closest: Prediction | None  # only where none was chosen
    considered: int  # configurations that fit and have a price
    left_out: tuple[str, ...]  # why others were not considered, in words
    why: str


def cheapest_within(found: Sequence[Prediction], hours: float) -> Choice:
    """The cheapest that finishes the whole training within so many hours."""
    _above_0("within", hours)
    return _choose(
        found, f"the cheapest within {hours:g} h", limited=_hours, limit=hours, unit="h", ranked=_dollars
    )


def fastest_under(found: Sequence[Prediction], dollars: float) -> Choice:
    """The fastest whose whole training costs at most so many dollars."""
    _above_0("under", dollars)
    return _choose(
        found, f"the fastest under ${dollars:g}", limited=_dollars, limit=dollars, unit="$", ranked=_hours
    )


def configuration(one: Prediction) -> str:
    """A prediction's configuration in words."""
    many = f"{one.gpus} × " if one.gpus > 1 else ""
    return f"{many}{one.device} with batch {one.batch}"


def totals(one: Prediction) -> str:
    """The hours and dollars of its training."""
    return f"{_hours(one):,.2f} h, ${_dollars(one):,.2f}"


def _choose(
    found: Sequence[Prediction],
    wanted: str,
    *,
    limited: Callable[[Prediction], float],
    limit: float,
    unit: str,
    ranked: Callable[[Prediction], float],
) -> Choice:
    if any(one.training_s is None for one in found):
        raise PredictionError(f"{wanted} needs the whole training; give samples and epochs")
    able = [one for one in found if one.fits and one.dollars is not None]
    good = sorted((one for one in able if limited(one) <= limit), key=lambda one: (ranked(one), limited(one)))
    chosen = good[0] if good else None
    closest = None if good else min(able, key=limited, default=None)
    runner_up = None
    if chosen is not None:  # another device tells more than the batch next to it
        runner_up = next((one for one in good if one.device != chosen.device), good[1] if good[1:] else None)
    return Choice(
        wanted=wanted,
        by="dollars" if unit == "h" else "hours",
        chosen=chosen,
        runner_up=runner_up,
        closest=closest,
        considered=len(able),
        left_out=_left_out(found),
        why=_why(chosen, runner_up, closest, limited, limit, unit),
    )


def _why(
    chosen: Prediction | None,
    runner_up: Prediction | None,
    closest: Prediction | None,
    limited: Callable[[Prediction], float],
    limit: float,
    unit: str,
) -> str:
    if chosen is None:
        if closest is None:
            return "nothing that fits has a price; give other devices or batches, or a price"
        return f"none: {configuration(closest)} comes closest with {totals(closest)}"
    words = f"{configuration(chosen)}: {totals(chosen)}"
    words += (
        f"; next is {configuration(runner_up)}: {totals(runner_up)}" if runner_up else "; no other qualifies"
    )
    latest = limited(chosen) * chosen.interval_s[1] / chosen.step_s
    if latest > limit:
        at = f"{latest:,.2f} h" if unit == "h" else f"${latest:,.2f}"
        words += f"; at the end of its interval it would be {at}, beyond the limit"
    return words


def _left_out(found: Sequence[Prediction]) -> tuple[str, ...]:
    small = [one for one in found if one.fits is False]
    unknown = [one for one in found if one.fits is None]
    unpriced = sorted({one.device for one in found if one.fits and one.dollars is None})
    told = []
    if small:
        least = min(small, key=lambda one: one.reserved_memory_bytes - (one.device_memory_bytes or 0))
        told.append(
            f"{len(small)} that do not fit; the nearest, {configuration(least)}, needs "
            f"{least.reserved_memory_bytes / 2**30:.1f} of {(least.device_memory_bytes or 0) / 2**30:.1f} GiB"
        )
    if unknown:
        names = sorted({one.device for one in unknown})
        told.append(f"{len(unknown)} whose memory is not known ({_few(names)})")
    if unpriced:
        told.append(f"without a price: {_few(unpriced)}")
    return tuple(told)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _hours(one: Prediction) -> float:
    return math.inf if one.training_s is None else one.training_s / 3600


def _dollars(one: Prediction) -> float:
    return math.inf if one.dollars is None else one.dollars


def _above_0(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise PredictionError(f"{name} is {value:g}; give a number above 0")
