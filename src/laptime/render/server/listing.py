"""The list of runs: what `run.json` tells of each, searched, filtered and sorted; and their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from laptime.files.text import first_line, one_line
from laptime.model import Stage
from laptime.render.server.index import FileState, RunEntry
from laptime.runs import Run
from laptime.runs.document import read_document
from laptime.views import format
from laptime.views.format import long_duration
from laptime.views.run_view import last_epoch
from laptime.views.step_series import series

DAMAGED = "damaged"
PAGE = 200  # rows of one page: a thousand take a browser half a second to lay out
MOST = 50  # runs of one comparison, or whose results are asked for at once
_LONGEST = 20_000  # letters of a configuration that are searched
_KEPT_RESULTS = 4000
_FILTERS = ("status", "device", "network")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the list. Numbers are for sorting; None where the run does not tell."""

    name: str
    status: str
    reason: str = ""
    incomplete: bool = False  # rows were lost, or wait for the disk
    started: datetime | None = None
    device: str = ""
    network: str = ""
    steps: int | None = None
    step_s: float | None = None
    wall_s: float | None = None
    text: str = ""  # all that a search looks through, in small letters

    @property
    def link(self) -> str:
        """Its page."""
        return f"/runs/{quote(self.name)}"

    @property
    def shown(self) -> dict[str, str]:
        """Its numbers as text."""
        return {
            "started": self.started.isoformat(" ")[:16] if self.started else "",
            "steps": format.UNKNOWN if self.steps is None else f"{self.steps:,}",
            "step": format.milliseconds(self.step_s),
            "wall": long_duration(self.wall_s) if self.wall_s else format.UNKNOWN,
        }


SORTS = ("name", "status", "started", "device", "network", "steps", "step_s", "wall_s")
"""The columns that the list is sorted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """Which runs to list, and in which order."""

    q: str = ""
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
            q=query.get("q", "")[:400],
            **{key: query.get(key, "") for key in _FILTERS},
            sort=sort,
            order=order if order in ("asc", "desc") else _first_order(sort),
            page=int(page) if page.isascii() and page.isdecimal() and 0 < len(page) < 7 else 1,
        )

    def address(self, **other: str | int) -> str:
        """The list as it is wanted, but for `other`; a filter that is not set is left out."""
        given = asdict(self) | {"page": 0} | other
        return "/?" + urlencode({key: value for key, value in given.items() if value})

    def turned(self, sort: str) -> str:
        """The link of a column's head: sort by it, or reverse the order."""
        other = {"asc": "desc", "desc": "asc"}[self.order] if sort == self.sort else _first_order(sort)
        return self.address(sort=sort, order=other)

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that match, in the requested order; rows without the sort key come last."""
        filters = {key: value for key in _FILTERS if (value := getattr(self, key))}
        words = self.q.lower().split()
        matching = [
            row
            for row in sorted(rows, key=lambda row: row.name.lower())
            if all(getattr(row, key) == value for key, value in filters.items())
            and all(word in row.text for word in words)
        ]

        def key(row: Row) -> Any:
            value = getattr(row, self.sort)
            return value.lower() if isinstance(value, str) else value

        known = [row for row in matching if key(row) not in (None, "")]
        unknown = [row for row in matching if key(row) in (None, "")]
        return [*sorted(known, key=key, reverse=self.order == "desc"), *unknown]


def _first_order(sort: str) -> str:
    return "desc" if sort == "started" else "asc"


def choices(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What each filter can be set to."""
    return {key: sorted({getattr(row, key) for row in rows} - {""}, key=str.lower) for key in _FILTERS}


class Listing:
    """The lines of runs; one is made anew only when its run changed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, FileState, str], Row] = {}

    def rows(self, entries: Sequence[RunEntry]) -> list[Row]:
        """A line for each run."""
        by_key = {}
        for entry in entries:
            run = entry.run()
            key = (entry.name, entry.state, run.status if run is not None else DAMAGED)
            try:
                by_key[key] = self._kept.get(key) or _row(entry, run)
            except Exception as error:  # whatever is in one run, the list has the others
                by_key[key] = _damaged(entry.name, f"its run.json cannot be understood ({first_line(error)})")
        self._kept = by_key
        return list(by_key.values())


def _damaged(name: str, reason: str) -> Row:
    return Row(name=name, status=DAMAGED, reason=reason, text=f"{name} {DAMAGED} {reason}".lower())


def _row(entry: RunEntry, run: Run | None) -> Row:
    if run is None:
        return _damaged(entry.name, entry.reason)
    device = one_line((run.environment.get("device") or {}).get("name") or "")
    network = network_of(run.config)
    steps = run.summary.get("steps") or {}
    status = "simulated" if run.simulated else run.status
    text = " ".join([entry.name, status, device, network, run.id, *_flat("", run.config)])
    return Row(
        name=entry.name,
        status=status,
        incomplete=any(run.health.lost_rows.values()) or any(run.health.waiting_rows.values()),
        started=run.created,
        device=device,
        network=network,
        steps=steps.get("train") or steps.get("validation"),
        step_s=(run.summary.get("step_s") or {}).get("median"),
        wall_s=run.summary.get("wall_s"),
        text=text[:_LONGEST].lower(),
    )


def predictable(run: Run) -> bool:
    """Whether the workload of a step was read and stored."""
    return (run.summary.get("workload") or {}).get("read") is True


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
    collected = config.get("collected")
    source = collected.get("source") if isinstance(collected, Mapping) else None
    return f"from a {one_line(source)}" if isinstance(source, str) else ""


def _flat(prefix: str, values: Any) -> Iterator[str]:
    """`train.batch=32`, so that a search finds values with and without their keys."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), value)
    elif isinstance(values, list):
        for value in values:
            yield from _flat(prefix, value)
    else:
        yield f"{prefix}={values}"


@lru_cache(_KEPT_RESULTS)
def results(path: Path, _state: str) -> dict[str, str]:
    """The texts of the cells that need a run's steps, by its state; none where it cannot be read."""
    try:
        return cells(Run(path, read_document(path)))
    except Exception:  # its own page says what is wrong; the other rows have their numbers
        return {}


def cells(run: Run) -> dict[str, str]:
    """Steps, step time, samples a second; loss and accuracy of the last epoch, validation before training."""
    texts: dict[str, str] = {}
    for stage in Stage:  # training first: validation fills what it left, and has the last word on learning
        steps = run.selected(stage)
        timed = series(run, stage)
        if timed is None:
            continue
        texts.setdefault("steps", f"{int(np.count_nonzero(steps.of_first_rank)):,}")
        texts.setdefault("step", format.milliseconds(float(np.median(timed.wall_s))))
        if timed.samples_per_s is not None:
            texts.setdefault("rate", format.rate(timed.samples_per_s))
        epoch = last_epoch(steps.every)
        learned = epoch.values if epoch else {}
        if "loss" in learned:
            texts["loss"] = format.loss(learned["loss"])
        if "top1" in learned:
            texts["top1"] = format.percent(learned["top1"])
    return texts
