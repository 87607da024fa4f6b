"""The threads that make answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

Made = TypeVar("Made")


class Workers:
    """A few threads for one kind of work. Requests that wait for the same answer get one.

    Python runs one thread at a time: 40 of them answer no sooner than four, and everyone waits longer. A
    request joins an answer only before its making has begun, so what it gets is never older than itself.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "laptime-answers")
        self._waiting: dict[Hashable, Future[Any]] = {}
        self._lock = Lock()

    async def run(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, or what it gives to another who waits with the same key."""
        with self._lock:
            future = self._waiting.get(key)
            if future is None:
                future = self._waiting[key] = self._pool.submit(self._make, key, make)
        made: Made = await asyncio.shield(asyncio.wrap_future(future))  # one may leave, the others stay
        return made

    def _make(self, key: Hashable, make: Callable[[], Made]) -> Made:
        with self._lock:
            del self._waiting[key]
        return make()
