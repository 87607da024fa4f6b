"""Web servers that list their folders as pages of links. Sizes come file by file, with a HEAD request."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from laptime.errors import DataError
from laptime.files.text import first_line
from laptime.training.data.sync_places import CHUNK, Entry, Place, Read, Trouble, package

_BUSY = {408, 425, 429, 500, 502, 503, 504}


class HttpPlace(Place):
    """A folder of a web server. `user:password@` in the address, or .netrc, is basic authentication."""

    wants_facts = True

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            place = host and f"{host}:{parts.port}" if parts.port else host
        except ValueError as error:
            raise DataError(
                f"the address cannot be understood ({first_line(error)}); write http://host:port/path"
            ) from None
        if not place:
            raise DataError(f"{address} names no host; write {parts.scheme}://host/path")
        path = quote(unquote(parts.path.rstrip("/")))
        root = urlunsplit((parts.scheme, place, path, "", ""))
        super().__init__(root, root)
        self._aiohttp = package("aiohttp")
        settings: dict[str, Any] = {
            "trust_env": True,  # proxies and .netrc
            # A file may take hours; only silence is a failure.
            "timeout": self._aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=60),
            "headers": {"Accept-Encoding": "identity"},  # sizes are of what is stored
        }
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            settings["headers"]["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._fs = package("fsspec.implementations.http").HTTPFileSystem(
            client_kwargs=settings, encoded=True, simple_links=False, skip_instance_cache=True
        )

    def _entries(self, path: str) -> list[Entry]:
        # Without the slash, some servers answer with a file of that name, and all others with a detour.
        links = {info["name"].removeprefix(f"{path}/") for info in self._fs.ls(f"{path}/", detail=True)}
        return [_entry(path, link) for link in links if link.strip("/") and not link.startswith(("?", "#"))]

    def _facts(self, entry: Entry) -> Entry:
        info = self._fs.info(entry.path)
        version = info.get("ETag") or info.get("Last-Modified") or ""
        return Entry(name=entry.name, path=entry.path, kind="file", size=info["size"], version=version)

    @contextmanager
    def _reading(self, entry: Entry, offset: int) -> Iterator[tuple[int, Read]]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and entry.version and not entry.version.startswith("W/"):
            headers["If-Range"] = entry.version
        with self._fs.open(entry.path, "rb", block_size=0, size=entry.size or 1, headers=headers) as file:
            start = offset if file.r.status == 206 else 0
            yield start, lambda: bytes(file.read(CHUNK))

    def _words(self, error: Exception, where: str) -> Trouble | None:
        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # fsspec calls every failure of a HEAD request a missing file
        status = getattr(error, "status", None)
        if status in (401, 403, 407):
            return Trouble(
                f"{where} refuses access ({status}); write http(s)://user:password@host/… or use .netrc"
            )
        if status in (404, 410):
            return Trouble(f"{where} does not exist; check the address")
        if isinstance(status, int) and status:
            return Trouble(
                f"{where} answers {status} ({first_line(error)}); try later", passing=status in _BUSY
            )
        if isinstance(error, self._aiohttp.ClientSSLError):
            return Trouble(
                f"{where} has no certificate that this machine trusts ({first_line(error)}); check the host"
            )
        if isinstance(error, (self._aiohttp.ClientConnectorError, TimeoutError)):
            return Trouble(
                f"{where} cannot be reached ({first_line(error)}); check the address and the network",
                passing=True,
            )
        return None

    def close(self) -> None:
        """End the connections."""
        if self._fs._session is not None:
            self._fs.close_session(self._fs.loop, self._fs._session)


def _entry(parent: str, link: str) -> Entry:
    """A link as a name: `%20` and `&amp;` undone once. What it decodes to is judged later, like any name."""
    text = html.unescape(link).removeprefix("./")
    is_folder = text.endswith("/")
    name = unquote(text[:-1] if is_folder else text, errors="surrogateescape")
    return Entry(
        name=name,
        path=f"{parent}/{quote(name, errors='surrogateescape')}",
        kind="folder" if is_folder else "file",
    )
