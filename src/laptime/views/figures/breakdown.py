"""The step breakdown: accounts that add up to the step's wall time."""

from __future__ import annotations

from laptime.model import ACCOUNTS
from laptime.runs import AccountSummary
from laptime.views import palette
from laptime.views.figures.figure import Figure, axis
from laptime.views.run_view import RunView

_DUST = 1e-6  # share of a step: rounding error of sums


def books(view: RunView) -> Figure | None:
    """A bar for a training step and one for a validation step, in mean milliseconds."""
    parts = [part for part in (view.validation, view.train) if part is not None and part.accounted]
    if not parts:
        return None
    traces = []
    for account in ACCOUNTS:
        means = [_mean(part.accounts[account]) for part in parts]
        if any(mean > _DUST * part.wall_s.mean for mean, part in zip(means, parts, strict=True)):
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": account.value,
                    "y": [f"{part.noun or 'a'} step" for part in parts],
                    "x": [mean * 1e3 for mean in means],
                    "marker": {"color": palette.colour(account.value)},
                    "hovertemplate": "%{x:,.4~r} ms<extra>" + account.value + "</extra>",
                }
            )
    return Figure(
        name="books",
        title="The closed books of a step",
        caption="Mean milliseconds of every account. They add up to the wall time; what no account explains "
        "would be drawn as `unexplained`.",
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": axis("ms"),
            "yaxis": {"automargin": True},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        },
        height=160 + 60 * len(parts),
    )


def _mean(account: AccountSummary) -> float:
    """Seconds; idle time is left out where it is known from traced steps alone, beside the accounts."""
    return 0.0 if account.traced or not account.seconds.count else max(0.0, account.seconds.mean)
