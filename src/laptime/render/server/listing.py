"""The list of runs: what `run.json` tells of each, searched, filtered and sorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, urlencode

from laptime.files.text import first_line, one_line
from laptime.render.server.index import RunEntry, Seal
from laptime.runs import Run
from laptime.views import format
from laptime.views.time_units import long_duration

DAMAGED = "damaged"
PAGE = 200  # rows of one page: a thousand take a browser half a second to lay out
_LONGEST = 20_000  # letters of a configuration that are searched
_DEEPEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the list. Numbers are for sorting; None where the run does not tell."""

    name: str
    status: str
    reason: str = ""
    incomplete: bool = False  # rows were lost, or wait for the disk
    started: str = ""
    device: str = ""
    network: str = ""
    steps: int | None = None
    step_s: float | None = None
    wall_s: float | None = None
    predictable: bool = False
    text: str = ""  # all that a search looks through, in small letters

    @property
    def link(self) -> str:
        """Its page."""
        return f"/runs/{quote(self.name)}"

    @property
    def shown(self) -> dict[str, str]:
        """Its numbers as text."""
        return {
            "steps": format.UNKNOWN if self.steps is None else f"{self.steps:,}",
            "step": format.milliseconds(self.step_s),
            "wall": format.UNKNOWN if not self.wall_s else long_duration(self.wall_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """Which runs to list, and in which order."""

    search: str = ""
    status: str = ""
    device: str = ""
    network: str = ""
    sort: str = "started"
    order: str = "desc"
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ListRequest:
        """From a URL; what is not understood is as if it were not there."""
        sort = query.get("sort", "")
        sort = sort if sort in SORTS else "started"
        order = query.get("order", "")
        page = query.get("page", "")
        return cls(
            search=query.get("q", "")[:400],
            status=query.get("status", ""),
            device=query.get("device", ""),
            network=query.get("network", ""),
            sort=sort,
            order=order if order in ("asc", "desc") else _first_order(sort),
            page=int(page) if page.isascii() and page.isdecimal() and 0 < len(page) < 7 else 1,
        )

    def address(self, **other: str | int) -> str:
        """The list as it is wanted, but for `other`; a filter that is not set is left out."""
        given = {
            "q": self.search,
            "status": self.status,
            "device": self.device,
            "network": self.network,
            "sort": self.sort,
            "order": self.order,
        }
        return "/?" + urlencode({key: value for key, value in (given | other).items() if value})

    def turned(self, sort: str) -> str:
        """The link of a column's head: sort by it, or reverse the order."""
        other = {"asc": "desc", "desc": "asc"}[self.order] if sort == self.sort else _first_order(sort)
        return self.address(sort=sort, order=other)

    def has(self, row: Row) -> bool:
        """Whether a run is wanted: every word of the search is somewhere in it."""
        chosen = (("status", self.status), ("device", self.device), ("network", self.network))
        return all(not value or getattr(row, key) == value for key, value in chosen) and all(
            word in row.text for word in self.search.lower().split()
        )


SORTS: Mapping[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name.lower(),
    "status": lambda row: row.status,
    "started": lambda row: row.started,
    "device": lambda row: row.device.lower(),
    "network": lambda row: row.network.lower(),
    "steps": lambda row: row.steps,
    "step_s": lambda row: row.step_s,
    "wall_s": lambda row: row.wall_s,
}
"""By column; what a run does not tell comes last either way."""


def _first_order(sort: str) -> str:
    return "desc" if sort == "started" else "asc"


def choices(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What each filter can be set to."""
    keys = ("status", "device", "network")
    return {key: sorted({getattr(row, key) for row in rows} - {""}, key=str.lower) for key in keys}


def chosen(rows: Sequence[Row], wanted: ListRequest) -> list[Row]:
    """The rows that match, in the requested order; rows without the sort key come last."""
    key = SORTS[wanted.sort]
    matching = sorted((row for row in rows if wanted.has(row)), key=lambda row: row.name.lower())
    known = [row for row in matching if key(row) not in (None, "")]
    unknown = [row for row in matching if key(row) in (None, "")]
    return [*sorted(known, key=key, reverse=wanted.order == "desc"), *unknown]


class Listing:
    """The lines of runs; one is made anew only when its run changed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Seal, str], Row] = {}

    def rows(self, entries: Sequence[RunEntry]) -> list[Row]:
        """A line for each run."""
        by_key = {}
        for entry in entries:
            run = entry.run()
            key = (entry.name, entry.seal, run.status if run is not None else DAMAGED)
            by_key[key] = self._kept.get(key) or _row_of(entry, run)
        self._kept = by_key
        return list(by_key.values())


def _row_of(entry: RunEntry, run: Run | None) -> Row:
    if run is None:
        return _damaged(entry, entry.reason)
    try:
        return _row(entry, run)
    except Exception as error:  # whatever is in one run, the list has the others
        return _damaged(entry, f"its run.json cannot be understood ({first_line(error)})")


def _damaged(entry: RunEntry, reason: str) -> Row:
    text = f"{entry.name} {DAMAGED} {reason}".lower()
    return Row(name=entry.name, status=DAMAGED, reason=reason, text=text)


def _row(entry: RunEntry, run: Run) -> Row:
    device = one_line(_mapping(run.environment.get("device")).get("name") or "")
    network = network_of(run.config)
    text = " ".join([entry.name, run.status, device, network, run.id, *_flat("", run.config)])
    return Row(
        name=entry.name,
        status=run.status,
        incomplete=any(run.health.lost_rows.values()) or any(run.health.waiting_rows.values()),
        started=run.created.isoformat()[:16].replace("T", " "),
        device=device,
        network=network,
        steps=_steps(run.summary.get("steps")),
        step_s=_number(_mapping(run.summary.get("step_s")).get("median")),
        wall_s=_number(run.summary.get("wall_s")),
        predictable=predictable(run),
        text=text[:_LONGEST].lower(),
    )


def created_s(run: Run) -> float:
    """When it began, in seconds since 1970. Years 1 and 9999 have no such number where time zones count."""
    try:
        return run.created.timestamp()
    except (ValueError, OverflowError, OSError):
        return math.copysign(math.inf, run.created.year - 1970)


def predictable(run: Run) -> bool:
    """Whether the workload of a step was read and stored."""
    return _mapping(run.summary.get("workload")).get("read") is True


def network_of(config: Mapping[str, Any]) -> str:
    """The name of the network in a configuration, else of its target, script or run."""
    network = config.get("network")
    if isinstance(network, Mapping):
        network = network.get("name")
    script = config.get("script")
    script = PurePath(script).name if isinstance(script, str) else None
    for candidate in (network, config.get("target"), script, config.get("name")):
        if isinstance(candidate, str) and candidate:
            return one_line(candidate)
    collected = _mapping(config.get("collected")).get("source")
    return f"from a {one_line(collected)}" if isinstance(collected, str) else ""


def _flat(prefix: str, values: Any, depth: int = 0) -> Iterator[str]:
    """`train.batch=32`, so that a search finds values with and without their keys."""
    if depth > _DEEPEST:
        return
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), value, depth + 1)
    elif isinstance(values, list):
        for value in values:
            yield from _flat(prefix, value, depth + 1)
    else:
        yield f"{prefix}={values}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    """A summary may hold anything: someone else's program can have written it."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _steps(told: Any) -> int | None:
    count = told.get("train") or told.get("validation") if isinstance(told, Mapping) else told
    return count if isinstance(count, int) and not isinstance(count, bool) else None
