"""Where images are brought from: a folder that lists names and gives files, and how much it may send."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from laptime.errors import DataError, LaptimeError
from laptime.files.read import open_plain
from laptime.files.text import first_line, one_line

CHUNK = 8 << 20  # most images come in one piece; a stop is noticed between two pieces

Kind = Literal["file", "folder", "link", "other"]
Read = Callable[[], bytes]
"""The next piece of a file; empty at its end."""
Opened = tuple[int, Read, Callable[[], object]]
"""The byte that reading starts at, how to read on, and how to end."""
Reason = tuple[str, str, bool]
"""The words it is known by, what is said behind the address, and whether it may pass."""

_KINDS: dict[int, Kind] = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_KNOWN = "~/.ssh/known_hosts"
_UNREACHABLE = "ClientConnectorError NoValidConnectionsError ConnectTimeoutError TimeoutError gaierror"
# Known by an HTTP status, an error number or the name of an exception's class: no package is imported for it.
# The first that matches is told.
_REASONS: tuple[Reason, ...] = (
    ("BadHostKeyException", f"shows another key than {_KNOWN}; find out why, then ssh-keygen -R it", False),
    ("PasswordRequiredException", "needs the passphrase of the key; run ssh-add first", False),
    ("ProfileNotFound PartialCredentialsError NoRegionError", "was not asked ({line}); {login}", False),
    ("404 410 FileNotFoundError", "does not exist; check the address", False),
    ("NotADirectoryError", "is a file; give the folder above the class folders", False),
    ("401 403 407 AuthenticationException", "{refuses} ({line}); {login}", False),
    ("PermissionError", "may not be read with these rights ({line}); change them there", False),
    ("408 425 429 500 502 503 504", "answers {line}; try later", True),
    ("ClientResponseError", "answers {line}; try later", False),
    ("ClientSSLError", "has no certificate that this machine trusts ({line}); check the host", False),
    ("EndpointConnectionError", "cannot be reached ({line}); check AWS_ENDPOINT_URL", True),
    (_UNREACHABLE, "cannot be reached ({line}); check the address and the network", True),
    (f"{errno.EISDIR} {errno.ELOOP} {errno.ENAMETOOLONG}", "cannot be read ({line}); remove it there", False),
    ("Exception", "cannot be read ({line}); check the address and the network", True),
)
_REFUSED = re.compile(r"access ?denied|forbidden|signature|access ?key|token|authentication", re.I)


class RemoteError(Exception):
    """The remote folder did not do what was asked. `passing`: it may when asked again."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(one_line(reason))
        self.passing = passing


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLimits:
    """What one synchronisation may take."""

    files: int = 2_000_000  # names in all listings: ImageNet has 1.3 million
    folders: int = 100_000
    bytes: int = 10**12  # received
    seconds: float = 24 * 3600.0
    listing_bytes: int = 64 << 20  # of one page, or of one SHA256SUMS


_TOO_MUCH = {
    "files": "{:,} files; choose classes or raise --max-files",
    "folders": "{:,} folders; choose classes",
    "bytes": "{:,} bytes; choose classes or raise --max-gb",
    "listing_bytes": "{:,} bytes in one listing or SHA256SUMS; divide that folder",
}


class SyncBudget:
    """Counts what comes, and ends the synchronisation where it is more than the limits allow."""

    def __init__(self, limits: SyncLimits) -> None:
        self.limits = limits
        self._end = time.monotonic() + limits.seconds
        self._lock = threading.Lock()
        self._taken = dict.fromkeys(_TOO_MUCH, 0)

    def take(self, what: str, count: int = 1) -> None:
        """Count what was received, and raise beyond the limit."""
        with self._lock:
            self._taken[what] += count
        self.allow(what, self._taken[what])

    def allow(self, what: str, count: int) -> None:
        """Raise where a count or the time is beyond its limit."""
        limit = getattr(self.limits, what)
        if count > limit:
            raise DataError(f"the remote folder has more than {_TOO_MUCH[what].format(limit)}")
        if time.monotonic() > self._end:
            hours = self.limits.seconds / 3600
            raise DataError(f"it takes more than {hours:g} h; run it again to go on, or raise --max-hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEntry:
    """What a listing says of one name."""

    name: str
    path: str  # as the server wants to be asked for it
    kind: Kind
    size: int | None = None  # None: the listing does not say
    version: str = ""  # a modification time or an ETag: another one, another content
    md5: str | None = None

    @classmethod
    def of_stat(cls, name: str, path: str, about: Any) -> RemoteEntry:
        """From what `stat` says. A pipe is no file: reading it would wait for ever."""
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
        version = repr(0 if about.st_mtime is None else about.st_mtime)
        return cls(name=name, path=path, kind=kind, size=about.st_size, version=version)


class Remote(ABC):
    """A remote folder. Threads share it."""

    refuses, login = "refuses access", "check the rights there"  # said where nobody is let in, and the remedy

    def __init__(self, shown: str, root: str, budget: SyncBudget) -> None:
        self.shown = shown  # the address as people see it: no password
        self.root = root
        self.budget = budget

    @abstractmethod
    def _list(self, path: str) -> Iterable[RemoteEntry]: ...

    @abstractmethod
    def _facts(self, entry: RemoteEntry) -> RemoteEntry: ...

    @abstractmethod
    def _open(self, entry: RemoteEntry, offset: int) -> Opened: ...

    def close(self) -> None:  # noqa: B027 -- a local folder has nothing to end
        """End the connections."""

    def reconnect(self) -> None:  # noqa: B027
        """Drop what a failure may have left unusable."""

    def entries(self, path: str) -> list[RemoteEntry]:
        """What a folder holds, by name."""
        self.budget.take("folders")
        listed = []
        with self._errors(path):
            for entry in self._list(path):
                self.budget.take("files")
                listed.append(entry)
        return sorted(listed, key=lambda entry: entry.name)

    def facts(self, entry: RemoteEntry) -> RemoteEntry:
        """The same entry, links followed, with size and version as they are now."""
        with self._errors(entry.path):
            return self._facts(entry)

    @contextmanager
    def reading(self, entry: RemoteEntry, offset: int) -> Iterator[tuple[int, Read]]:
        """The byte that reading starts at, `offset` or 0 where the server cannot skip, and how to read on.

        Errors of whoever uses it are not taken for the server's.
        """
        with self._errors(entry.path):
            start, read, close = self._open(entry, offset)

        def piece() -> bytes:
            with self._errors(entry.path):
                content = read()
            self.budget.take("bytes", len(content))
            return content

        try:
            yield start, piece
        finally:
            with suppress(Exception):  # what was wanted has come, or an error tells why not
                close()

    def page(self, entry: RemoteEntry) -> str:
        """A listing or SHA256SUMS, no larger than the limits allow."""
        page = bytearray()
        with self.reading(entry, 0) as (_, read):
            while piece := read():
                page += piece
                self.budget.allow("listing_bytes", len(page))
        return page.decode("utf-8", "replace")

    def address(self, path: str) -> str:
        """A path of this folder as people see it."""
        return self.shown + path.removeprefix(self.root)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Whatever botocore, aiohttp, paramiko or socket raise leaves as a `RemoteError` of one line."""
        try:
            yield
        except (LaptimeError, RemoteError):
            raise
        except Exception as error:
            status = getattr(error, "status", None)
            line = str(status) if status else first_line(error)
            known = {str(status), str(getattr(error, "errno", None))}
            known |= {kind.__name__ for kind in type(error).__mro__}
            if _REFUSED.search(line):
                known.add("AuthenticationException")
            text, passing = next(reason[1:] for reason in _REASONS if known & set(reason[0].split()))
            if passing:
                self.reconnect()
            told = text.format(line=line, refuses=self.refuses, login=self.login)
            raise RemoteError(f"{self.address(path)} {told}", passing=passing) from error


class LocalRemote(Remote):
    """A folder of this machine, or of a mounted one."""

    def __init__(self, address: str, budget: SyncBudget) -> None:
        path = os.path.abspath(os.path.expanduser(address.removeprefix("file://")))
        super().__init__(path, path, budget)

    def _list(self, path: str) -> Iterator[RemoteEntry]:
        with os.scandir(path) as names:
            for name in names:
                yield RemoteEntry.of_stat(name.name, name.path, name.stat(follow_symlinks=False))

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        return RemoteEntry.of_stat(entry.name, entry.path, os.stat(entry.path))

    def _open(self, entry: RemoteEntry, offset: int) -> Opened:
        file = open_plain(entry.path)  # which `reading` closes
        file.seek(offset)
        return offset, lambda: file.read(CHUNK), file.close
