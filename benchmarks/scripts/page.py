"""The page that docs/ keeps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.scripts.outcome import Outcome, Recorded
from benchmarks.tables import NOTHING, Table, percent

HEADER = (
    "script",
    "same results",
    "steps",
    "epochs",
    "validation",
    "updates",
    "where training time went",
    "an update, bare",
    "slow-down",
    "whole process",
    "exit",
)
LARGEST = 4  # accounts in a cell
SMALL_SHARE = 0.01


def page(outcomes: Sequence[Outcome], left_out: Sequence[str], arguments: Sequence[str]) -> str:
    """The table, how each script was started, and what was said."""
    table = Table(title="Scripts", header=HEADER, rows=[_row(one) for one in outcomes])
    started = [
        f"- **{one.case.name}**: {one.case.repository}@{one.commit} `{one.case.folder}/{one.case.script}` "
        f"`{' '.join(one.case.arguments)}`. {one.case.note}"
        for one in outcomes
    ]
    said = [f"- **{one.case.name}**: {line}" for one in outcomes for line in _words(one)]
    return "\n".join([table.markdown(), "", *started, "", *said, "", *left_out, ""])


def _words(outcome: Outcome) -> list[str]:
    notes = outcome.recorded.notes if outcome.recorded else ()
    return [*outcome.said[:6], *notes]


def _row(one: Outcome) -> list[str]:
    work, recorded = one.case.work, one.recorded
    same = f"{one.same} ({one.results})"
    bare, status = one.statuses
    ended = f"{bare}" if bare == status else f"{bare}, recorded {status}"
    time = [_milliseconds(one.bare_update_s), _slowdown(one.slowdowns), _whole(one), ended]
    if recorded is None:
        return [one.case.name, same, *["nothing recorded"] * 4, NOTHING, *time]
    return [
        one.case.name,
        same,
        _against(recorded.steps, one.steps),
        _against(recorded.epochs, work.epochs),
        _against(recorded.validation, work.validation),
        _against(recorded.updates, one.updates),
        _accounts(recorded),
        *time,
    ]


def _against(recorded: int, known: int | None) -> str:
    if known is None:
        return f"{recorded}"
    return f"{recorded}" if recorded == known else f"**{recorded} of {known}**"


def _accounts(recorded: Recorded) -> str:
    named = [(name, share) for name, share in recorded.shares if share >= SMALL_SHARE]
    return ", ".join(f"{name} {share * 100:.0f} %" for name, share in named[:LARGEST]) or NOTHING


def _milliseconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1e3:.3g} ms"


def _slowdown(ratios: Sequence[float]) -> str:
    if not ratios:
        return NOTHING
    low, high = (percent(value - 1.0, 0).removesuffix(" %") for value in (min(ratios), max(ratios)))
    return f"{percent(statistics.median(ratios) - 1.0, 0)} [{low}, {high}]"


def _whole(one: Outcome) -> str:
    return f"{one.bare_seconds:.1f} s {one.added_seconds:+.1f} s".replace("-", "−")
