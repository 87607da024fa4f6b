"""Who may ask, for what, and what every answer carries. It stands around the whole application.

On a loopback address the name that a browser asked for must be a loopback one: otherwise any site could point
its own name here and read on (DNS rebinding). On any other address a token is asked for.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laptime.render.server.pages import told

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_METHODS = ("GET", "HEAD")
_OPEN = "/healthz"  # whoever watches over servers asks there; it tells nothing but that it answers
SHORTEST = 16  # letters of a token that someone chose


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own and no one else's."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret. A browser keeps its hash, so that it stands in no file; it is never shown."""

    secret: str = field(repr=False)

    @property
    def kept(self) -> str:
        """The hash that the cookie holds."""
        return hashlib.sha256(self.secret.encode("utf-8", "surrogateescape")).hexdigest()

    def is_given(self, given: bytes) -> bool:
        """Whether this is the secret, compared in constant time."""
        return secrets.compare_digest(given, self.secret.encode("utf-8", "surrogateescape"))

    def opens(self, headers: Headers, cookie: str) -> bool:
        """Whether a request has it, as a cookie or as `Authorization: Bearer`."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_given(given.strip().encode("latin-1")):
            return True
        held = cookie_parser(headers.get("cookie", "")).get(cookie, "")
        return secrets.compare_digest(held.encode(), self.kept.encode())


class Guard:
    """Lets a request through to `app`, or says why not; puts HEADERS on every answer."""

    def __init__(self, app: ASGIApp, token: Token | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":  # a start or a stop; nothing here speaks over web sockets
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, sealed)

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _METHODS:
            answer = told(405, "Only for reading", "This server only answers GET and HEAD.")
            answer.headers["Allow"] = ", ".join(_METHODS)
            return answer
        if self._token is None:
            if _LOOPBACK_HOST.fullmatch(headers.get("host", "")):
                return None
            return told(400, "Another name", "This server answers to localhost alone; open it by that name.")
        return None if scope["path"] == _OPEN else self._without_token(scope, headers, self._token)

    def _without_token(self, scope: Scope, headers: Headers, token: Token) -> Response | None:
        port = (scope.get("server") or ("", 0))[1]
        cookie = f"laptime-{port}"  # a browser does not tell ports apart
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for key, value in query if key == "token"]
        known = token.opens(headers, cookie)
        if given and (known or token.is_given(given[0].encode("utf-8", "replace"))):
            # Known already: a bookmark may hold the token of an earlier server.
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            place = "/" + quote(scope["path"].lstrip("/"))  # two slashes would name another machine
            answer: Response = RedirectResponse(place + (f"?{rest}" if rest else ""), status_code=303)
            # Not strict: it would stay behind where the link was clicked on another site. A click changes
            # nothing here, and no other site can read an answer.
            answer.set_cookie(cookie, token.kept, httponly=True, samesite="lax", path="/")
            return answer
        if known:
            return None
        answer = told(
            401,
            "A token is needed",
            "Open the whole address that `laptime serve` printed; where LAPTIME_TOKEN was set, put ?token= "
            "and its value after the address, or ask whoever started it.",
        )
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
