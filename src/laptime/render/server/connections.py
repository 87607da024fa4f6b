"""The server: one process on one port until Ctrl-C, with limits on its connections."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from laptime.errors import ServeError
from laptime.files.text import first_line
from laptime.render.server.guard import Token

_GRACE_S = 1  # of requests that are under way when it ends; a tab keeps its connection open for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A port that is already bound."""

    socket: socket.socket
    host: str
    port: int

    def url(self, token: Token | None = None) -> str:
        """The address to open; with a token it is a secret itself."""
        reached = _reached(self.host)
        host = f"[{reached}]" if ":" in reached else reached
        ending = f"?token={quote(token.secret, safe='')}" if token is not None else ""
        return f"http://{host}:{self.port}/{ending}"


def _reached(host: str) -> str:
    """By what others reach a host; every address at once (0.0.0.0) is none that a browser opens."""
    try:
        if not ip_address(host).is_unspecified:
            return host
    except ValueError:  # a name
        return host
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect((elsewhere, 9))  # sends nothing; it only chooses the way there, and so our address
        return str(asked.getsockname()[0])
    return socket.gethostname()


def open_place(host: str, port: int) -> Place:
    """Takes a port, any free one for 0."""
    bare = host.strip("[]")
    taken = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((bare, port))
        taken.listen(512)
    except OSError as error:
        taken.close()
        why = f"{bare}:{port} cannot be served ({first_line(error)}); --host and --port give another place"
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} is taken; --port gives another, and --port 0 any free one"
        elif error.errno == errno.EACCES:
            why = f"port {port} is for the administrator alone; --port gives another"
        raise ServeError(why) from error
    return Place(socket=taken, host=bare, port=taken.getsockname()[1])


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
        most = self.limits.most
        with suppress(ImportError):  # Windows has no such limit
            import resource

            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if files != resource.RLIM_INFINITY:
                most = min(most, max(16, files // 2))
        if len(held) > most:  # no answer is being made for some of them; this one is among those
            idle = (other for other in held if other.cycle is None or other.cycle.response_complete)
            min(idle, key=lambda other: other._opened_s).transport.abort()


def server(app: ASGIApp, connection: type[LimitedConnection] = LimitedConnection) -> uvicorn.Server:
    """What answers; it logs no addresses, since one may hold a token."""
    config = uvicorn.Config(
        app,
        http=connection,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, place: Place) -> None:
    """Answers until it is interrupted."""
    with suppress(KeyboardInterrupt):  # uvicorn ends well, and then passes the signal on
        server(app).run(sockets=[place.socket])
