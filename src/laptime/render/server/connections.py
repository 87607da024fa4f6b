"""Limits on connections: time to send a request, time to take an answer, and how many at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Seconds and number of connections."""

    header_s: float = 10.0  # from opening, or from the last answer, until a whole request has come
    answer_s: float = 300.0  # until an answer is made and taken
    most: int = 512  # a process may often open 1,024 files, and pages open some too


class LimitedConnection(H11Protocol):
    """uvicorn's connection, which by itself waits for ever for the first request."""

    limits = ConnectionLimits()
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._opened_s = self.loop.time()
        self._end_after(self.limits.header_s)
        self._make_room()

    def handle_events(self) -> None:
        """Something has come; perhaps it completes a request."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._end_after(self.limits.answer_s)

    def on_response_complete(self) -> None:
        """The answer is written; another request may follow."""
        self._end_after(self.limits.header_s)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Either side has closed it."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What has come is not HTTP. If that is a request's body, its answer may have begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.transport.abort()
        else:
            super().send_400_response(msg)

    @property
    def is_idle(self) -> bool:
        """Whether no answer is being made for it."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _end_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _make_room(self) -> None:
        """Close the oldest idle connection, so that half-open ones do not block new clients."""
        held = [
            other
            for other in self.connections
            if isinstance(other, LimitedConnection) and not other.transport.is_closing()
        ]
        if len(held) > _most(self.limits.most):
            idle = (other for other in held if other.is_idle)  # this one is among them
            min(idle, key=lambda other: other._opened_s).transport.abort()


def _most(wanted: int) -> int:
    """Half of the files that this process may open, where that is less."""
    with suppress(ImportError):  # Windows has no such limit
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return min(wanted, max(16, soft // 2))
    return wanted
