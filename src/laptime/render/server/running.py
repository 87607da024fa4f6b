"""The server: one process on one port, until Ctrl-C."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from threading import Thread
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp

from laptime.errors import ServeError
from laptime.files.text import first_line
from laptime.render.server.connections import LimitedConnection
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
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((bare, port))
        taken.listen(512)
    except OSError as error:
        taken.close()
        raise ServeError(_refused(error, bare, port)) from error
    return Place(socket=taken, host=bare, port=taken.getsockname()[1])


def _refused(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken; --port gives another, and --port 0 any free one"
    if error.errno == errno.EACCES:
        return f"port {port} is for the administrator alone; --port gives another"
    return f"{host}:{port} cannot be served ({first_line(error)}); --host and --port give another place"


def server(app: ASGIApp, connection: type[LimitedConnection] = LimitedConnection) -> uvicorn.Server:
    """What answers; it logs no addresses, since one may hold a token."""
    config = uvicorn.Config(
        app,
        http=connection,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, place: Place) -> None:
    """Answers until it is interrupted."""
    Thread(target=_warm, daemon=True).start()
    with suppress(KeyboardInterrupt):  # uvicorn ends well, and then passes the signal on
        server(app).run(sockets=[place.socket])


def _warm() -> None:
    """Import what the first page needs before it is requested."""
    import duckdb  # noqa: F401

    from laptime.render.html import comparison_page, run_page  # noqa: F401
    from laptime.render.server import assets

    assets.served()
