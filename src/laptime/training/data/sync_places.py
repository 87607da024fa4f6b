"""Where data is brought from. A kind of place is one class: it lists folders and reads files.

fsspec speaks to all of them; what differs is how names, versions, checksums and errors come back.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from laptime.errors import DataError, LaptimeError, MissingExtra
from laptime.files.text import first_line, one_line

__all__ = ["CHUNK", "Entry", "Place", "Read", "Trouble", "open_place", "package"]

CHUNK = 8 << 20  # most images come in one piece; a stop is noticed between two pieces

Kind = Literal["file", "folder", "link", "other"]
Read = Callable[[], bytes]
"""The next piece of a file; empty at its end."""


class Trouble(Exception):
    """Something at the remote place did not work. `passing`: it may work when tried again."""

    def __init__(self, words: str, *, passing: bool = False) -> None:
        super().__init__(one_line(words))
        self.passing = passing


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a listing says of one name."""

    name: str
    path: str  # as the place wants to be asked for it
    kind: Kind
    size: int | None = None  # None: the listing does not say
    version: str = ""  # a modification time or an ETag: another one, another content
    md5: str | None = None


class Place(ABC):
    """A remote folder. Threads share it."""

    wants_facts = False  # listings leave out sizes and versions

    def __init__(self, shown: str, root: str) -> None:
        self.shown = shown  # the address as people see it: no password
        self.root = root

    @abstractmethod
    def _entries(self, path: str) -> list[Entry]: ...

    @abstractmethod
    def _facts(self, entry: Entry) -> Entry: ...

    @abstractmethod
    def _reading(self, entry: Entry, offset: int) -> Any: ...

    def _words(self, error: Exception, where: str) -> Trouble | None:
        """What this kind of place makes of an error of its own; None: nothing special."""
        return None

    def close(self) -> None:  # noqa: B027 -- most have nothing to end
        """End the connections."""

    def forget(self) -> None:  # noqa: B027
        """Drop what a failure may have left unusable."""

    def entries(self, path: str) -> list[Entry]:
        """What a folder holds, by name."""
        with self.troubles(path):
            return sorted(self._entries(path), key=lambda entry: entry.name)

    def facts(self, entry: Entry) -> Entry:
        """The same entry, links followed, with size and version as they are now."""
        with self.troubles(entry.path):
            return self._facts(entry)

    @contextmanager
    def reading(self, entry: Entry, offset: int) -> Iterator[tuple[int, Read]]:
        """The byte that reading starts at, `offset` or 0 where the place cannot skip, and how to read on."""
        with self.troubles(entry.path), self._reading(entry, offset) as (start, read):
            yield start, read

    def address(self, path: str) -> str:
        """A path of this place as people see it."""
        return self.shown + path.removeprefix(self.root)

    @contextmanager
    def troubles(self, path: str) -> Iterator[None]:
        """Whatever a library raises leaves as `Trouble` with one line of words."""
        try:
            yield
        except (LaptimeError, Trouble):
            raise
        except (
            Exception
        ) as error:  # backends raise what their libraries raise: botocore, aiohttp, paramiko, socket
            where = self.address(path)
            trouble = self._words(error, where) or _usual_words(error, where)
            if trouble.passing:
                self.forget()
            raise trouble from error


def _usual_words(error: Exception, where: str) -> Trouble:
    if isinstance(error, FileNotFoundError):
        return Trouble(f"{where} does not exist; check the address")
    if isinstance(error, NotADirectoryError):
        return Trouble(f"{where} is a file; give the folder that holds the class folders")
    if isinstance(error, PermissionError):
        return Trouble(f"{where} may not be read with these rights ({first_line(error)}); change them there")
    if isinstance(error, OSError) and error.errno in (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return Trouble(f"{where} cannot be read ({first_line(error)}); remove it there")
    return Trouble(
        f"{where} cannot be read ({first_line(error)}); check the address and the network", passing=True
    )


# -- a folder of this machine -----------------------------------------------------------------------------


class LocalPlace(Place):
    """A folder of this machine, or of a mounted one."""

    def __init__(self, address: str) -> None:
        from fsspec.implementations.local import LocalFileSystem

        path = os.path.abspath(os.path.expanduser(address.removeprefix("file://")))
        super().__init__(path, path)
        self._fs = LocalFileSystem(skip_instance_cache=True)

    def _entries(self, path: str) -> list[Entry]:
        if not os.path.isdir(path):
            os.scandir(path).close()  # raises what is wrong with it
        return [_local_entry(info) for info in self._fs.ls(path, detail=True)]

    def _facts(self, entry: Entry) -> Entry:
        return _local_entry({**self._fs.info(entry.path), "islink": False})

    @contextmanager
    def _reading(self, entry: Entry, offset: int) -> Iterator[tuple[int, Read]]:
        with self._fs.open(entry.path, "rb") as file:
            file.seek(offset)
            yield offset, lambda: bytes(file.read(CHUNK))


def _local_entry(info: dict[str, Any]) -> Entry:
    kinds: dict[str, Kind] = {"file": "file", "directory": "folder"}
    kind = "link" if info.get("islink") else kinds.get(info["type"], "other")
    path = info["name"]
    version = repr(info["mtime"])
    return Entry(name=os.path.basename(path), path=path, kind=kind, size=info["size"], version=version)


# -- opening -------------------------------------------------------------------------------------------------

_KINDS = {
    "file": "sync_places:LocalPlace",
    "sftp": "sync_sftp:SftpPlace",
    "ssh": "sync_sftp:SftpPlace",
    "s3": "sync_s3:S3Place",
    "http": "sync_http:HttpPlace",
    "https": "sync_http:HttpPlace",
}


@contextmanager
def open_place(address: str) -> Iterator[Place]:
    """The place that an address names; a path without `…://` is a folder of this machine."""
    kind, found, _ = address.partition("://")
    where = _KINDS.get(kind.lower()) if found else _KINDS["file"]
    if where is None:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise DataError(
            f"{kind}:// is no kind of address that laptime knows; it knows {known} and plain paths"
        )
    module, _, name = where.partition(":")
    place: Place = getattr(import_module(f"laptime.training.data.{module}"), name)(address)
    try:
        yield place
    finally:
        place.close()


def package(name: str) -> Any:
    """An optional package, or the line that says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise
        raise MissingExtra(name.partition(".")[0], "remote") from error
