"""Recording overhead in sentences: of a marked step, of the whole run, and of a kernel trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from laptime.model import Account
from laptime.views import format
from laptime.views.run_view import RunView

_COMPARABLE = 0.5  # beyond, the traced and the untraced steps were not the same work on the same machine
_WIDEST = 0.2  # an interval of ±10 points, as recorder/budget.py has it; older runs call wider ones measured
_DUST = 1e-9


def recorder(view: RunView) -> Iterator[str]:
    """What recording cost, how that is known, and whether the kernel trace agrees with the marks."""
    overhead = view.recorder.overhead
    if view.source is not None:
        return  # collected: nothing was recorded
    if overhead is None:
        yield "What recording cost is not known for this run."
    else:
        yield _cost(overhead)
        yield from _paid(view.recorder.budget or {})
        if overhead["how"] == "estimated" and (share := _instrument_share(view)) >= 0.001:
            yield f"The recorder's other work (instrument) takes {format.percent(share)} of a step more."
    kernels = view.kernels
    apart = kernels.get("reconciliation")
    if apart and kernels.get("steps") and None not in apart.values():
        traced, far = format.plural(len(kernels["steps"]), "step"), format.percent(apart["spans_apart"])
        busy = f"busy {format.percent(apart['busy_share'])} of them"
        verdict = busy if apart["spans_apart"] <= _COMPARABLE else "too far to compare them"
        yield f"Kernel trace of {traced}: layer times {far} apart from the untraced steps, {verdict}."
    if kernels.get("detach") and not kernels["detach"]["clean"]:
        yield f"After the kernel trace, bare steps stayed slower by {signed(kernels['detach']['ratio'])}."


def _instrument_share(view: RunView) -> float:
    """The recorder's own account in a typical step, which an estimate from the marks does not hold."""
    part = view.main
    if part is None or not part.wall_s.median:
        return 0.0
    return part.accounts[Account.INSTRUMENT].seconds.median / part.wall_s.median


def known_cost(overhead: Mapping[str, Any]) -> str:
    """How the overhead of marks is known: measured, estimated, or unknown: interval too wide or below 1."""
    how, low, high = str(overhead["how"]), overhead["low"], overhead["high"]
    if how != "measured":
        return how
    told = None not in (overhead["ratio"], low, high) and high >= 1.0 and high - low <= _WIDEST + _DUST
    return how if told else "unknown"


def _cost(overhead: Mapping[str, Any]) -> str:
    ratio, low, high = (signed(overhead[key]) for key in ("ratio", "low", "high"))
    how = known_cost(overhead)
    if how == "estimated":
        few = "too few steps could be compared" if overhead["bare_steps"] else "no step went without them"
        return f"Layer marks cost about {ratio} of a step: {how} from their number, since {few}."
    pairs = overhead.get("pairs")
    steps = format.plural(overhead["instrumented_steps"], "step")
    compared = (
        f"{format.plural(pairs, 'time')} beside bare neighbours"
        if isinstance(pairs, int)
        else f"{steps} with marks against {overhead['bare_steps']:,} without"
    )
    if how == "measured":
        interval = f"95 % interval {low} to {high}"
        return f"Layer marks cost {ratio} of a step that has them, {interval}: measured, {compared}."
    by_number = overhead.get("estimated")
    about = f" By their number it is about {signed(by_number)}." if isinstance(by_number, float) else ""
    return (
        f"What layer marks cost is not known: the steps are too noisy ({compared}, "
        f"95 % interval {low} to {high}).{about}"
    )


def _paid(budget: Mapping[str, Any]) -> Iterator[str]:
    """The overhead of the whole run, which is what the budget limits."""
    paid, marked, how = (budget.get(key) for key in ("paid", "marked_share", "paid_how"))
    if isinstance(paid, float) and isinstance(marked, float):
        yield (
            f"The whole run paid {format.percent(paid, 2)} for them ({how}): {format.percent(marked)} of its "
            "training steps have marks."
        )


def signed(ratio: float | None) -> str:
    """A ratio as what it adds: `+0.8 %`."""
    return format.UNKNOWN if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
