"""A run's page, made once for each state that the run was in, however many ask and however often."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from laptime.render.server import assets
from laptime.render.server.index import RunEntry
from laptime.runs.run import NETWORK_FILE, WORKLOAD_FILE
from laptime.runs.schema import TABLES

KEPT = 32  # pages, of some hundred kilobytes each


@dataclass(slots=True)
class _Busy:
    lock: Lock = field(default_factory=Lock)
    waiting: int = 0


class Kept:
    """The last few pages by what they are of. Whoever asks for one that is being made waits for it."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._made: OrderedDict[str, bytes] = OrderedDict()
        self._busy: dict[str, _Busy] = {}
        self._lock = Lock()

    def get(self, tag: str, subject: str, make: Callable[[], bytes]) -> bytes:
        """The page with that tag; only one of a subject is made at a time."""
        with self._turn(subject):
            with self._lock:
                if tag in self._made:
                    self._made.move_to_end(tag)
                    return self._made[tag]
            page = make()
            with self._lock:
                self._made[tag] = page
                while len(self._made) > self._most:
                    self._made.popitem(last=False)
            return page

    @contextmanager
    def _turn(self, subject: str) -> Iterator[None]:
        with self._lock:
            busy = self._busy.setdefault(subject, _Busy())
            busy.waiting += 1
        try:
            with busy.lock:
                yield
        finally:
            with self._lock:
                busy.waiting -= 1
                if not busy.waiting:
                    del self._busy[subject]


def tag(kind: str, entries: Sequence[RunEntry]) -> str:
    """An ETag that changes with anything a page shows of these runs; reads no rows."""
    seen: list[object] = [kind, assets.edition()]
    for entry in entries:
        run = entry.run()
        # A run whose process died shows as interrupted, and no file changes.
        seen += [entry.name, entry.seal, run.status if run is not None else entry.reason]
        seen += [_seal(entry.path / name) for name in (NETWORK_FILE, WORKLOAD_FILE)]
        seen += [part for name in TABLES for part in _parts(entry.path / name)]
    return f'"{hashlib.sha256(repr(seen).encode()).hexdigest()[:24]}"'


def _seal(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _parts(folder: Path) -> list[tuple[str, int, int]]:
    parts = []
    try:
        with os.scandir(folder) as files:
            for file in files:
                if file.name.endswith(".parquet") and not file.name.startswith("."):
                    facts = file.stat()
                    parts.append((file.name, facts.st_mtime_ns, facts.st_size))
    except OSError:  # no such table, or a part that was merged away just now
        pass
    return sorted(parts)
