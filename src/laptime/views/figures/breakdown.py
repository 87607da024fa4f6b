"""The closed books of a step: its accounts side by side, adding up to its wall time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laptime.model import ACCOUNTS
from laptime.views import palette
from laptime.views.figures.figure import Figure, axis

_DUST = 1e-6  # of a step: what rounding leaves of sums


def books(found: Mapping[str, Any]) -> Figure | None:
    """A bar for a training step and one for a validation step, in mean milliseconds."""
    parts = {
        name: found[name] for name in ("validation", "train") if found[name] and found[name]["accounted"]
    }
    if not parts:
        return None
    traces = []
    for account in ACCOUNTS:
        means = [_mean(part, account.value) for part in parts.values()]
        if any(
            mean > _DUST * part["wall_s"]["mean"] for mean, part in zip(means, parts.values(), strict=True)
        ):
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": account.value,
                    "y": [f"{part['noun'] or 'a'} step" for part in parts.values()],
                    "x": [mean * 1e3 for mean in means],
                    "marker": {"color": palette.colour(account.value)},
                    "hovertemplate": "%{x:.4g} ms<extra>" + account.value + "</extra>",
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


def _mean(part: Mapping[str, Any], account: str) -> float:
    """Seconds; idle time is left out where it is known from traced steps alone, beside the books."""
    row = next(one for one in part["accounts"] if one["account"] == account)
    return 0.0 if row["traced"] or not row["seconds"] else max(0.0, float(row["seconds"]["mean"]))
