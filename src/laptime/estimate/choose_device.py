"""Choose among predictions: the cheapest within a time limit, the fastest within a budget.

Only configurations that fit in memory and have a price are candidates. Every batch size is assumed to need
the same number of epochs; large batches often need more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from laptime.errors import PredictionError
from laptime.model.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """The choice, the runner-up and the reason; if nothing qualifies, the closest miss."""

    wanted: str
    by: Literal["dollars", "hours"]  # what is minimized
    within_hours: float | None
    under_dollars: float | None
    chosen: Prediction | None
    runner_up: Prediction | None
    closest: Prediction | None  # only where none was chosen
    considered: int  # configurations that fit and have a price
    left_out: tuple[str, ...]  # why others were not considered, in words
    why: str

    @property
    def limits(self) -> str:
        """The limits as a sentence, such as `within 5 hours and under $20`."""
        return _limits(self.within_hours, self.under_dollars)

    def qualifies(self, one: Prediction) -> bool:
        """Whether it fits, has a price and keeps within every limit."""
        return _able(one) and _excess(one, self.within_hours, self.under_dollars) <= 1

    def rank(self, one: Prediction) -> tuple[float | str, ...]:
        """Sort key: qualifying predictions first, best first; then the smallest excess over the limits."""
        excess = as_shown(_excess(one, self.within_hours, self.under_dollars))
        best = _best(one, self.by)
        return (0.0, *best) if self.qualifies(one) else (1.0, float(not _able(one)), excess, *best)


def cheapest_within(found: Sequence[Prediction], hours: float) -> DeviceChoice:
    """The cheapest that finishes the whole training within so many hours."""
    return choose(found, within=hours)


def fastest_under(found: Sequence[Prediction], dollars: float) -> DeviceChoice:
    """The fastest whose whole training costs at most so many dollars."""
    return choose(found, under=dollars)


def choose(
    found: Sequence[Prediction], *, within: float | None = None, under: float | None = None
) -> DeviceChoice:
    """The cheapest within the hours, the fastest under the price; with both limits, the cheapest of both."""
    for name, limit in (("within", within), ("under", under)):
        if limit is not None:
            _above_0(name, limit)
    by: Literal["dollars", "hours"] = "hours" if within is None else "dollars"
    wanted = f"the {'cheapest' if by == 'dollars' else 'fastest'} {_limits(within, under)}"
    if any(prediction.training_s is None for prediction in found):
        raise PredictionError(f"{wanted} needs the whole training; give samples and epochs")
    able = [prediction for prediction in found if _able(prediction)]
    good = [prediction for prediction in able if _excess(prediction, within, under) <= 1]
    good.sort(key=lambda prediction: _best(prediction, by))
    chosen = good[0] if good else None
    closest = (
        None
        if good
        else min(able, key=lambda prediction: _nearest(prediction, within, under, by), default=None)
    )
    runner_up = None
    if chosen is not None:  # prefer another device over another batch of the same
        runner_up = next(
            (prediction for prediction in good if prediction.device != chosen.device),
            good[1] if good[1:] else None,
        )
    return DeviceChoice(
        wanted=wanted,
        by=by,
        within_hours=within,
        under_dollars=under,
        chosen=chosen,
        runner_up=runner_up,
        closest=closest,
        considered=len(able),
        left_out=_left_out(found),
        why=_why(chosen, runner_up, closest, within, under),
    )


def configuration(one: Prediction) -> str:
    """A prediction's configuration in words."""
    many = f"{one.gpus} × " if one.gpus > 1 else ""
    return f"{many}{one.device} with batch {one.batch}"


def as_shown(value: float) -> float:
    """Round to the four digits that tables show, so that rounding errors do not decide ranks."""
    return float(f"{value:.4g}")


def totals(one: Prediction) -> str:
    """The hours and dollars of its training."""
    return f"{duration(_hours(one))}, {money(_dollars(one))}"


def duration(hours: float) -> str:
    """Hours; minutes or seconds below one hour."""
    if hours >= 1:
        return f"{hours:,.2f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.2g} s"


def money(dollars: float) -> str:
    """Dollars and cents; below 10 cents, two significant digits."""
    return f"${dollars:,.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.{_decimals(dollars)}f}"


def _decimals(dollars: float) -> int:
    return 1 - math.floor(math.log10(dollars))


def _why(
    chosen: Prediction | None,
    runner_up: Prediction | None,
    closest: Prediction | None,
    within: float | None,
    under: float | None,
) -> str:
    if chosen is None:
        if closest is None:
            return "nothing that fits has a price; give other devices or batches, or a price"
        return f"none: {configuration(closest)} comes closest with {totals(closest)}"
    words = f"{configuration(chosen)}: {totals(chosen)}"
    words += (
        f"; next is {configuration(runner_up)}: {totals(runner_up)}" if runner_up else "; no other qualifies"
    )
    late = chosen.interval_s[1] / chosen.step_s
    beyond = []
    if within is not None and _hours(chosen) * late > within:
        beyond.append(duration(_hours(chosen) * late))
    if under is not None and _dollars(chosen) * late > under:
        beyond.append(money(_dollars(chosen) * late))
    if beyond:
        words += f"; at the end of its interval it would be {' and '.join(beyond)}, beyond the limit"
    return words


def _limits(within: float | None, under: float | None) -> str:
    told = [] if within is None else [f"within {within:g} h"]
    return " and ".join(told + ([] if under is None else [f"under ${under:g}"]))


def _able(one: Prediction) -> bool:
    return one.fits is True and one.dollars is not None


def _excess(one: Prediction, within: float | None, under: float | None) -> float:
    """Largest share of a limit that is used; above 1 the limit is exceeded."""
    used = [0.0 if within is None else _hours(one) / within, 0.0 if under is None else _dollars(one) / under]
    return max(used)


def _best(one: Prediction, by: Literal["dollars", "hours"]) -> tuple[float | str, ...]:
    """Of equal hours the cheaper comes first, of equal dollars the faster; then by name."""
    dollars, hours = as_shown(_dollars(one)), as_shown(_hours(one))
    return (*((dollars, hours) if by == "dollars" else (hours, dollars)), one.device)


def _nearest(
    one: Prediction, within: float | None, under: float | None, by: Literal["dollars", "hours"]
) -> tuple[float | str, ...]:
    return (as_shown(_excess(one, within, under)), *_best(one, by))


def _left_out(found: Sequence[Prediction]) -> tuple[str, ...]:
    small = [prediction for prediction in found if prediction.fits is False]
    unknown = [prediction for prediction in found if prediction.fits is None]
    unpriced = sorted(
        {prediction.device for prediction in found if prediction.fits and prediction.dollars is None}
    )
    told = []
    if small:
        least = min(
            small,
            key=lambda prediction: prediction.reserved_memory_bytes - (prediction.device_memory_bytes or 0),
        )
        told.append(
            f"{len(small)} that do not fit; the nearest, {configuration(least)}, needs "
            f"{least.reserved_memory_bytes / 2**30:.1f} of {(least.device_memory_bytes or 0) / 2**30:.1f} GiB"
        )
    if unknown:
        names = sorted({prediction.device for prediction in unknown})
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
