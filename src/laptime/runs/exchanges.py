"""What the ranks of a run have exchanged: a small file of each, so that no rank waits to be asked.

Versions before these files kept it in the run's summary, of the first group of ranks alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from laptime.files.parse import build, count
from laptime.files.read import read_json
from laptime.model import Stage
from laptime.model.exchanges import Collective, RankExchanges
from laptime.runs.run import Run

_PREFIX = "exchanges-r"


def exchanges_path(directory: Path, rank: int) -> Path:
    """The file of a rank."""
    return directory / f"{_PREFIX}{rank}.json"


def read_exchanges(run: Run) -> dict[int, RankExchanges]:
    """By rank, what its last process has exchanged; whatever has another form is as if not there."""
    found: dict[int, RankExchanges] = {}
    for path in run.path.glob(f"{_PREFIX}*.json"):
        try:
            rank = count(int(path.stem.removeprefix(_PREFIX)))
            found[rank] = build(RankExchanges, read_json(path, inside=run.path))
        except (OSError, ValueError):
            continue
    if not found:
        found = _of_summary(run)
    return {rank: each for rank, each in sorted(found.items()) if each.steps and each.collectives}


def _of_summary(run: Run) -> dict[int, RankExchanges]:
    told = run.summary.get("communication")
    if not isinstance(told, Mapping):
        return {}
    every = run.tables.steps.stages[Stage.TRAIN]
    found = {}
    for key, totals in told.items():
        kinds = totals.get("collectives") if isinstance(totals, Mapping) else None
        if not str(key).isdecimal() or not isinstance(kinds, Mapping):
            continue
        mine = every.where(np.asarray(every["rank"] == int(key)))
        steps = int(np.count_nonzero(mine["attempt"] == mine["attempt"].max(initial=0)))
        found[int(key)] = RankExchanges(steps=steps, collectives=tuple(_collectives(kinds, totals)))
    return found


def _collectives(kinds: Mapping[str, Any], totals: Mapping[str, Any]) -> list[Collective]:
    known = []
    for kind, each in kinds.items():
        try:
            known.append(build(Collective, {"kind": str(kind), **each}))
        except (TypeError, ValueError):
            continue
    # Seconds were kept of the buckets of gradients alone, without a kind.
    seconds = totals.get("seconds")
    if isinstance(seconds, float) and [each.kind for each in known] == ["all_reduce"]:
        known = [replace(known[0], seconds=seconds)]
    return known
