"""Where images are brought from: a folder that lists names and gives files, and how much it may send."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from laptime.errors import DataError, LaptimeError, MissingExtra
from laptime.files.text import first_line, one_line

CHUNK = 8 << 20  # most images come in one piece; a stop is noticed between two pieces

Kind = Literal["file", "folder", "link", "other"]
Read = Callable[[], bytes]
"""The next piece of a file; empty at its end."""
Reason = tuple[bool, str, bool]
"""Whether it holds, what is said behind the address, and whether it may pass."""


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

    def page(self, read: Read) -> bytes:
        """All of a listing's page, or of a small file."""
        page = bytearray()
        while piece := read():
            page += piece
            self.allow("listing_bytes", len(page))
        return bytes(page)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEntry:
    """What a listing says of one name."""

    name: str
    path: str  # as the server wants to be asked for it
    kind: Kind
    size: int | None = None  # None: the listing does not say
    version: str = ""  # a modification time or an ETag: another one, another content
    md5: str | None = None


class Remote(ABC):
    """A remote folder. Threads share it."""

    lists_sizes = True

    def __init__(self, shown: str, root: str, budget: SyncBudget) -> None:
        self.shown = shown  # the address as people see it: no password
        self.root = root
        self.budget = budget

    @abstractmethod
    def _list(self, path: str) -> Iterable[RemoteEntry]: ...

    @abstractmethod
    def _facts(self, entry: RemoteEntry) -> RemoteEntry: ...

    @abstractmethod
    def _open(self, entry: RemoteEntry, offset: int) -> tuple[int, Read, Callable[[], object]]:
        """The byte that reading starts at, how to read on, and how to end."""

    def _reasons(self, error: Exception) -> Iterable[Reason]:
        """What an error of this kind of server means; the first that holds is told."""
        return ()

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
            reasons = (*self._reasons(error), *_usual(error))
            text, passing = next((text, passing) for holds, text, passing in reasons if holds)
            if passing:
                self.reconnect()
            raise RemoteError(f"{self.address(path)} {text}", passing=passing) from error


def _usual(error: Exception) -> list[Reason]:
    line, number = first_line(error), getattr(error, "errno", None)
    rights = f"may not be read with these rights ({line}); change them there"
    odd = number in (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
    return [
        (isinstance(error, FileNotFoundError), "does not exist; check the address", False),
        (isinstance(error, NotADirectoryError), "is a file; give the folder above the class folders", False),
        (isinstance(error, PermissionError), rights, False),
        (odd, f"cannot be read ({line}); remove it there", False),
        (True, f"cannot be read ({line}); check the address and the network", True),
    ]


def kind_of(mode: int) -> Kind:
    """What a file mode says. Not a pipe: reading it would wait for ever."""
    kinds: dict[int, Kind] = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(mode), "other")


class LocalRemote(Remote):
    """A folder of this machine, or of a mounted one."""

    def __init__(self, address: str, budget: SyncBudget) -> None:
        path = os.path.abspath(os.path.expanduser(address.removeprefix("file://")))
        super().__init__(path, path, budget)

    def _list(self, path: str) -> Iterator[RemoteEntry]:
        with os.scandir(path) as names:
            for name in names:
                yield _local_entry(name.name, name.path, name.stat(follow_symlinks=False))

    def _facts(self, entry: RemoteEntry) -> RemoteEntry:
        return _local_entry(entry.name, entry.path, os.stat(entry.path))

    def _open(self, entry: RemoteEntry, offset: int) -> tuple[int, Read, Callable[[], object]]:
        file = open(entry.path, "rb")  # noqa: SIM115 -- `reading` closes it
        file.seek(offset)
        return offset, lambda: file.read(CHUNK), file.close


def _local_entry(name: str, path: str, about: os.stat_result) -> RemoteEntry:
    kind = kind_of(about.st_mode)
    return RemoteEntry(name=name, path=path, kind=kind, size=about.st_size, version=repr(about.st_mtime))


_KINDS = {
    "file": "remote:LocalRemote",
    "sftp": "servers:SftpRemote",
    "ssh": "servers:SftpRemote",
    "s3": "servers:S3Remote",
    "http": "servers:HttpRemote",
    "https": "servers:HttpRemote",
}


@contextmanager
def open_remote(address: str, limits: SyncLimits) -> Iterator[Remote]:
    """The folder that an address names; a path without `…://` is a folder of this machine."""
    scheme, separator, _ = address.partition("://")
    place = _KINDS.get(scheme.lower()) if separator else _KINDS["file"]
    if place is None:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise DataError(
            f"{scheme}:// is no kind of address that laptime knows; it knows {known} and plain paths"
        )
    module, _, name = place.partition(":")
    made = getattr(import_module(f"laptime.training.data.sync.{module}"), name)
    remote: Remote = made(address, SyncBudget(limits))
    try:
        yield remote
    finally:
        remote.close()


def package(name: str) -> Any:
    """An optional package, or the line that says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise
        raise MissingExtra(name.partition(".")[0], "remote") from error
