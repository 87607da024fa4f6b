"""Where the time of the steps went, account by account."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, Account, Statistics, summarize
from laptime.runs import text_table
from laptime.runs.select import Columns, Mask, SelectedSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSummary:
    """One account over many steps. `total_s` and `share` are NaN where the account is unknown."""

    account: Account
    seconds: Statistics
    total_s: float
    share: float
    half_in: int  # the fewest steps that hold half of it
    traced: bool = False  # from the kernel-traced steps: a share of their wall time, outside the sum of 1


class AccountSummaries(Mapping[Account, AccountSummary]):
    """Every account, in the order of the columns. The shares add up to 1, those marked `traced` left out.

    Kernel-traced steps do not count where there are others, since the tracer slows them; only `idle` comes
    from them, as nothing else can tell it.
    """

    def __init__(self, summaries: Mapping[Account, AccountSummary], wall: Statistics, skipped: int) -> None:
        self._summaries = dict(summaries)
        self.wall = wall
        self.skipped = skipped  # first steps left out of each attempt; 0 where no others were left

    def __getitem__(self, account: Account | str) -> AccountSummary:
        return self._summaries[account]  # type: ignore[index]  # an Account is its name

    def __iter__(self) -> Iterator[Account]:
        return iter(self._summaries)

    def __len__(self) -> int:
        return len(self._summaries)

    def __repr__(self) -> str:
        rows = [
            (
                account.account.value + (" (traced)" if account.traced else ""),
                text_table.spread(account.seconds),
                "-" if math.isnan(account.total_s) else f"{account.total_s:.3f}",
                text_table.share(account.share),
            )
            for account in self.values()
        ]
        rows.append(
            ("wall", text_table.spread(self.wall), f"{self.wall.mean * self.wall.count:.3f}", "100.0%")
        )
        if not self.wall.count:
            return "no steps"
        return text_table.table(("account", "median ms", "total s", "share"), rows, left=1)


def summarize_accounts(steps: SelectedSteps) -> AccountSummaries:
    """Account summaries of the steps that count."""
    summaries = {account: _summary(account, steps.every, steps.counted) for account in ACCOUNTS}
    if steps.traced.any() and not steps.all_traced:
        idle = _summary(Account.IDLE, steps.every, steps.traced)
        summaries[Account.IDLE] = replace(idle, traced=True)
    return AccountSummaries(summaries, summarize(steps["wall_s"]), steps.skipped)


def _summary(account: Account, every: Columns, mask: Mask) -> AccountSummary:
    seconds = every[account.column][mask]
    known = seconds[~np.isnan(seconds)]
    wall = float(every["wall_s"][mask].sum())
    total = float(known.sum()) if known.size else math.nan
    return AccountSummary(
        account=account,
        seconds=summarize(seconds),
        total_s=total,
        share=total / wall if wall else math.nan,
        half_in=_half_in(known),
    )


def _half_in(seconds: NDArray[np.float64]) -> int:
    """How many of the largest are half of the sum."""
    largest_first = np.cumsum(np.sort(seconds)[::-1])
    return int(np.searchsorted(largest_first, largest_first[-1] / 2)) + 1 if seconds.size else 0
