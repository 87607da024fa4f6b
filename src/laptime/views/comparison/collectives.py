"""What a rank exchanges in a step, by kind of collective, on two sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laptime.model.exchanges import Collective
from laptime.runs.exchanges import read_exchanges
from laptime.views.run_view import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedInStep:
    """Of one kind, the mean over ranks and training steps."""

    calls: float
    bytes: float
    seconds: float | None  # under way; None where it was not kept
    exposed_s: float  # the training waited


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveComparison:
    """A kind of collective on both sides; None where a side has none."""

    kind: str
    a: ExchangedInStep | None
    b: ExchangedInStep | None


def compare_collectives(a: Sequence[RunView], b: Sequence[RunView]) -> tuple[CollectiveComparison, ...]:
    """By kind, the most bytes first; nothing where one side has no collectives at all."""
    sides = [_by_kind(side) for side in (a, b)]
    if not all(sides):
        return ()
    kinds = dict.fromkeys(kind for side in sides for kind in side)
    rows = [CollectiveComparison(kind=kind, a=sides[0].get(kind), b=sides[1].get(kind)) for kind in kinds]
    return tuple(sorted(rows, key=lambda row: -max(each.bytes for each in (row.a, row.b) if each)))


def _by_kind(side: Sequence[RunView]) -> dict[str, ExchangedInStep]:
    ranks = [rank for run in side for rank in read_exchanges(run.run).values()]
    kinds: dict[str, list[tuple[int, Collective]]] = {}
    for rank in ranks:
        for each in rank.collectives:
            kinds.setdefault(each.kind, []).append((rank.steps, each))
    return {kind: _mean(found, len(ranks)) for kind, found in kinds.items()}


def _mean(found: Sequence[tuple[int, Collective]], ranks: int) -> ExchangedInStep:
    """Ranks without that kind count as well."""
    known = [(steps, each.seconds) for steps, each in found if each.seconds is not None]
    return ExchangedInStep(
        calls=sum(each.calls / steps for steps, each in found) / ranks,
        bytes=sum(each.bytes / steps for steps, each in found) / ranks,
        seconds=sum(seconds / steps for steps, seconds in known) / ranks
        if len(known) == len(found)
        else None,
        exposed_s=sum(each.exposed_s / steps for steps, each in found) / ranks,
    )
