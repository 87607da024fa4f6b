"""Choose among predictions: the cheapest within a time limit, the fastest within a budget.

Only configurations that fit in memory and have a price are candidates. Every batch size is assumed to need
the same number of epochs; large batches often need more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from laptime.errors import PredictionError
from laptime.model.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """The choice, the runner-up and the reason; if nothing qualifies, the closest miss."""

    wanted: str
    by: Literal["dollars", "hours"] = "dollars"  # what is minimized
    within_hours: float | None = None
    under_dollars: float | None = None
    chosen: Prediction | None = None
    runner_up: Prediction | None = None
    closest: Prediction | None = None  # only where none was chosen
    considered: int = 0  # configurations that fit and have a price
    left_out: tuple[str, ...] = ()  # why others were not considered, in words
    why: str

    @property
    def limits(self) -> str:
        """The limits as a sentence, such as `within 5 hours and under $20`."""
        return _limits(self.within_hours, self.under_dollars)

    def qualifies(self, made: Prediction) -> bool:
        """Whether it fits, has a price and keeps within every limit."""
        return _able(made) and self._excess(made) <= 1

    def rank(self, made: Prediction) -> tuple[float | str, ...]:
        """Sort key: qualifying predictions first, best first; then the smallest excess over the limits.

        Of equal hours the cheaper comes first, of equal dollars the faster; then by name.
        """
        dollars, hours = as_shown(_dollars(made)), as_shown(_hours(made))
        best = (*((dollars, hours) if self.by == "dollars" else (hours, dollars)), made.device)
        if self.qualifies(made):
            return (0.0, *best)
        return (1.0, float(not _able(made)), as_shown(self._excess(made)), *best)

    def _excess(self, made: Prediction) -> float:
        """Largest share of a limit that is used; above 1 the limit is exceeded."""
        hours = 0.0 if self.within_hours is None else _hours(made) / self.within_hours
        return max(hours, 0.0 if self.under_dollars is None else _dollars(made) / self.under_dollars)


def choose(
    predictions: Sequence[Prediction], *, within: float | None = None, under: float | None = None
) -> DeviceChoice:
    """The cheapest within the hours, the fastest under the price; with both limits, the cheapest of both."""
    for name, limit in (("within", within), ("under", under)):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise PredictionError(f"{name} is {limit:g}; give a number above 0")
    by: Literal["dollars", "hours"] = "hours" if within is None else "dollars"
    wanted = f"the {'cheapest' if by == 'dollars' else 'fastest'} {_limits(within, under)}"
    if any(prediction.training_s is None for prediction in predictions):
        raise PredictionError(f"{wanted} needs the whole training; give samples and epochs")
    none = "nothing that fits has a price; give other devices or batches, or a price"
    choice = DeviceChoice(wanted=wanted, by=by, within_hours=within, under_dollars=under, why=none)
    able = sorted((prediction for prediction in predictions if _able(prediction)), key=choice.rank)
    choice = replace(choice, considered=len(able), left_out=_left_out(predictions))
    if not able:
        return choice
    chosen, *others = able
    if not choice.qualifies(chosen):
        why = f"none: {_configuration(chosen)} comes closest with {_totals(chosen)}"
        return replace(choice, closest=chosen, why=why)
    others = [other for other in others if choice.qualifies(other)]
    # Another device is preferred over another batch of the same.
    runner_up = next((other for other in others if other.device != chosen.device), (*others, None)[0])
    why = f"{_configuration(chosen)}: {_totals(chosen)}"
    if runner_up is None:
        why += "; no other qualifies"
    else:
        why += f"; next is {_configuration(runner_up)}: {_totals(runner_up)}"
    late = chosen.interval_s[1] / chosen.step_s
    beyond = []
    if within is not None and _hours(chosen) * late > within:
        beyond.append(duration(_hours(chosen) * late))
    if under is not None and _dollars(chosen) * late > under:
        beyond.append(money(_dollars(chosen) * late))
    if beyond:
        why += f"; at the end of its interval it would be {' and '.join(beyond)}, beyond the limit"
    return replace(choice, chosen=chosen, runner_up=runner_up, why=why)


def as_shown(value: float) -> float:
    """Round to the four digits that tables show, so that rounding errors do not decide ranks."""
    return float(f"{value:.4g}")


def duration(hours: float) -> str:
    """Hours; minutes or seconds below one hour."""
    if hours >= 1:
        return f"{hours:,.2f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.2g} s"


def money(dollars: float) -> str:
    """Dollars and cents; below 10 cents, two significant digits."""
    if not 0 < dollars < 0.1:  # a damaged prediction may cost less than nothing
        return f"${dollars:,.2f}"
    return f"${dollars:.{1 - math.floor(math.log10(dollars))}f}"


def _configuration(made: Prediction) -> str:
    many = f"{made.gpus} × " if made.gpus > 1 else ""
    return f"{many}{made.device} with batch {made.batch}"


def _totals(made: Prediction) -> str:
    return f"{duration(_hours(made))}, {money(_dollars(made))}"


def _limits(within: float | None, under: float | None) -> str:
    told = [] if within is None else [f"within {within:g} h"]
    return " and ".join(told + ([] if under is None else [f"under ${under:g}"]))


def _able(made: Prediction) -> bool:
    return made.fits is True and made.dollars is not None


def _left_out(predictions: Sequence[Prediction]) -> tuple[str, ...]:
    def missing(made: Prediction) -> float:
        return made.reserved_memory_bytes - (made.device_memory_bytes or 0)

    def names(left: Sequence[Prediction]) -> str:
        every = sorted({made.device for made in left})
        return ", ".join(every[:4]) + (f" and {len(every) - 4} more" if len(every) > 4 else "")

    small = [made for made in predictions if made.fits is False]
    unknown = [made for made in predictions if made.fits is None]
    unpriced = [made for made in predictions if made.fits and made.dollars is None]
    told = []
    if small:
        least = min(small, key=missing)
        told.append(
            f"{len(small)} that do not fit; the nearest, {_configuration(least)}, needs "
            f"{least.reserved_memory_bytes / 2**30:.1f} of {(least.device_memory_bytes or 0) / 2**30:.1f} GiB"
        )
    if unknown:
        told.append(f"{len(unknown)} whose memory is not known ({names(unknown)})")
    if unpriced:
        told.append(f"without a price: {names(unpriced)}")
    return tuple(told)


def _hours(made: Prediction) -> float:
    return math.inf if made.training_s is None else made.training_s / 3600


def _dollars(made: Prediction) -> float:
    return math.inf if made.dollars is None else made.dollars
