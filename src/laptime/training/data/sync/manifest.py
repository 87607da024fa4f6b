"""What a folder holds already, and how that is known: `.laptime-sync.json`, and a journal while it is filled.

The journal gets a line per file, before the file gets its name: a killed process forgets nothing it finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.files.parse import parse_json
from laptime.files.read import GIB, read_bytes
from laptime.files.text import first_line
from laptime.files.write import write_json
from laptime.training.data.sync.remote import RemoteEntry

MANIFEST = ".laptime-sync.json"
JOURNAL = ".laptime-sync.journal"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedFile:
    """One finished file."""

    size: int
    sha256: str
    source: str  # `identity` of what it was read from
    mtime_ns: int  # of the file here: unchanged, it need not be read again
    checked: bool  # against a checksum from the remote folder


def identity(address: str, entry: RemoteEntry) -> str:
    """One content at one address: it changes with the file's size and version."""
    text = "\0".join((address, str(entry.size), entry.version))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


class Manifest:
    """The finished files of a folder. Threads share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = (folder / JOURNAL).exists()
        self._files = dict(_read(folder))
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self._journal = os.open(folder / JOURNAL, flags, 0o644)
        os.write(self._journal, b"\n")  # the last line may have been cut off

    def get(self, name: str) -> SyncedFile | None:
        """What is known of a file here."""
        return self._files.get(name)

    def add(self, name: str, file: SyncedFile) -> None:
        """Record a finished file in the journal at once, so that a killed process does not lose it."""
        line = json.dumps([name, asdict(file)]).encode() + b"\n"
        with self._lock:
            os.write(self._journal, line)
            self._files[name] = file
            self._changed = True

    def close(self, remote: str) -> None:
        """Write the manifest, which includes the journal, and delete the journal."""
        os.close(self._journal)
        if self._changed:
            files = {name: asdict(file) for name, file in sorted(self._files.items())}
            document = {"schema_version": _VERSION, "remote": remote, "files": files}
            write_json(self._folder / MANIFEST, document)
        (self._folder / JOURNAL).unlink()


@contextmanager
def holding(folder: Path, remote: str) -> Iterator[Manifest]:
    """The manifest of a folder, locked against other synchronisations."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            manifest = Manifest(folder)
            try:
                yield manifest
            finally:
                manifest.close(remote)
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({first_line(error)}); give another folder") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = None
    try:
        with suppress(ImportError):  # on Windows, two at a time are the user's own affair
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor or -1)
        raise DataError(
            f"another synchronisation is writing to {folder}; wait until it has finished"
        ) from None
    except OSError:
        pass  # some network file systems know no locks
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _read(folder: Path) -> Iterator[tuple[str, SyncedFile]]:
    """From the manifest, then the journal. What cannot be read is as if it were not there: such files are
    checked or brought again."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        yield from [_known(*item) for item in parse_json(_content(folder / MANIFEST))["files"].items()]
    with suppress(OSError):
        for line in _content(folder / JOURNAL).splitlines():
            with suppress(ValueError, TypeError):
                yield _known(*parse_json(line))


def _known(name: str, fields: dict[str, Any]) -> tuple[str, SyncedFile]:
    file = SyncedFile(**fields)
    if not isinstance(file.size, int) or not isinstance(file.sha256, str):
        raise TypeError("not written by laptime")
    return name, file


def _content(path: Path) -> bytes:
    return read_bytes(path, most=GIB, inside=path.parent)
