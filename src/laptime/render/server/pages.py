"""The dashboard's pages as HTML, their styles and scripts, and the threads that make answers.

A page is made once for each state of its runs, however many ask. A style or script has an address with a hash
of its content, so that a browser asks for it once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.responses import HTMLResponse, Response

from laptime.render.html.page import plotly, render, static
from laptime.render.server.index import RunEntry
from laptime.runs.schema import TABLES

Made = TypeVar("Made")

_KEPT = 32  # pages, of some hundred kilobytes each
_NAMES = (
    "page.js",
    "live.js",
    "runs.js",
    "predict_answer.js",
    "predict.js",
    "plan.js",
    "page.css",
    "serve.css",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is made once and sent often; a browser can read each piece before the next has come."""

    plain: tuple[bytes, ...]
    packed: tuple[bytes, ...]  # gzip: Plotly is 4.5 MB, and someone may sit at the other end of a slow line
    kind: str

    @classmethod
    def of(cls, *pieces: bytes, kind: str = "text/html") -> Content:
        """Packs the pieces into one gzip file."""
        packer = zlib.compressobj(5, wbits=31)
        packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces[:-1]]
        return cls(plain=pieces, packed=(*packed, packer.compress(pieces[-1]) + packer.flush()), kind=kind)


@cache
def assets() -> Mapping[str, Content]:
    """Every style and script, by address: a request is looked up here, never joined to a path."""
    by_address = {}
    for name, text in [*((name, static(name)) for name in _NAMES), ("plotly.min.js", plotly())]:
        body = text.encode()
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        by_address[f"/static/{hashlib.sha256(body).hexdigest()[:12]}/{name}"] = Content.of(body, kind=kind)
    return MappingProxyType(by_address)


@cache
def _address(name: str) -> str:
    return next(address for address in assets() if address.endswith(f"/{name}"))


def draw(template: str, **values: Any) -> bytes:
    """A page from its template."""
    return render(template, asset=_address, **values).encode("utf-8", "replace")


def told(status: int, title: str, reason: str) -> Response:
    """A page that says in one line what is wrong and what to do."""
    return HTMLResponse(draw("error.html", title=title, reason=reason), status_code=status)


class Workers:
    """A few threads for one kind of work. Requests that wait for the same answer get one.

    Python runs one thread at a time: 40 of them answer no sooner than four, and everyone waits longer.
    """

    def __init__(self, threads: int, kept: int = _KEPT) -> None:
        self._pool = ThreadPoolExecutor(threads, "laptime-answers")
        self._waiting: dict[Hashable, Future[Any]] = {}
        self._of_states: OrderedDict[str, Future[Any]] = OrderedDict()
        self._kept = kept
        self._lock = Lock()

    async def now(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, or what it gives to another who waits with the same key.

        A request joins an answer only before its making has begun: what it gets is never older than itself.
        """

        def begun() -> Made:
            with self._lock:
                del self._waiting[key]
            return make()

        with self._lock:
            future = self._waiting.get(key)
            if future is None:
                future = self._waiting[key] = self._pool.submit(begun)
        return await _shared(future)

    async def once(self, state: str, make: Callable[[], Made]) -> Made:
        """What `make` gives for a state: made once, also for those who ask meanwhile, and kept."""
        with self._lock:
            future = self._of_states.get(state)
            if future is None or (future.done() and future.exception()):
                future = self._of_states[state] = self._pool.submit(make)
            self._of_states.move_to_end(state)
            while len(self._of_states) > self._kept:
                self._of_states.popitem(last=False)
        return await _shared(future)

    def has(self, state: str) -> bool:
        """Whether the answer for a state is made."""
        future = self._of_states.get(state)
        return future is not None and future.done() and not future.exception()


async def _shared(future: Future[Made]) -> Made:
    return await asyncio.shield(asyncio.wrap_future(future))  # who asked may leave; the others stay


def tag(kind: str, entries: Sequence[RunEntry]) -> str:
    """An ETag that changes with anything a page shows of these runs; reads no rows."""
    seen: list[object] = [kind, *assets()]  # a page of other styles and scripts is another page
    for entry in entries:
        run = entry.run()
        # A run whose process died shows as interrupted, and no file changes.
        seen += [entry.name, entry.state, run.status if run is not None else entry.reason]
        for name in ("", *TABLES):
            parts = []
            with (
                suppress(OSError),
                os.scandir(entry.path / name) as files,
            ):  # no such table, or merged just now
                for file in files:
                    if file.name.endswith((".json", ".parquet")) and not file.name.startswith("."):
                        facts = file.stat()
                        parts.append((file.name, facts.st_mtime_ns, facts.st_size))
            seen.append(sorted(parts))
    return f'"{hashlib.sha256(repr(seen).encode()).hexdigest()[:24]}"'
