"""What a folder holds already, and how that is known: `.laptime-sync.json`, and a journal while it is filled.

The journal gets a line per file, before the file gets its name: a killed process forgets nothing it finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laptime.errors import DataError
from laptime.files.text import first_line
from laptime.files.write import write_json
from laptime.training.data.sync_places import CHUNK, Entry

__all__ = ["JOURNAL", "MANIFEST", "Manifest", "Record", "digest", "holding", "identity"]

MANIFEST = ".laptime-sync.json"
JOURNAL = ".laptime-sync.journal"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished file."""

    size: int
    sha256: str
    source: str  # `identity` of what it was read from
    mtime_ns: int  # of the file here: unchanged, it need not be read again
    checked: bool  # against a checksum from the remote place


def identity(address: str, entry: Entry) -> str:
    """One content at one address: it changes with the file's size and version."""
    text = "\0".join((address, str(entry.size), entry.version))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def digest(path: Path) -> tuple[str, str]:
    """SHA-256 and MD5 of a file of ours."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(CHUNK):
            sha256.update(piece)
            md5.update(piece)
    return sha256.hexdigest(), md5.hexdigest()


class Manifest:
    """The finished files of a folder. Threads share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _read_manifest(folder / MANIFEST) | dict(_read_journal(folder / JOURNAL))
        self._lock = threading.Lock()
        self._changed = (folder / JOURNAL).exists()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self._journal = os.open(folder / JOURNAL, flags, 0o644)
        os.write(self._journal, b"\n")  # the last line may have been cut off

    def get(self, name: str) -> Record | None:
        """What is known of a file here."""
        return self._files.get(name)

    def add(self, name: str, record: Record) -> None:
        """Remember a finished file, even if the next moment is the last."""
        line = json.dumps([name, asdict(record)]).encode() + b"\n"
        with self._lock:
            os.write(self._journal, line)
            self._files[name] = record
            self._changed = True

    def close(self, remote: str) -> None:
        """Write the manifest; the journal is in it then."""
        os.close(self._journal)
        if self._changed:
            files = {name: asdict(record) for name, record in sorted(self._files.items())}
            write_json(
                self._folder / MANIFEST, {"schema_version": _VERSION, "remote": remote, "files": files}
            )
        (self._folder / JOURNAL).unlink()


@contextmanager
def holding(folder: Path, remote: str) -> Iterator[Manifest]:
    """The manifest of a folder that no other synchronisation writes to meanwhile."""
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
    try:
        import fcntl
    except ImportError:  # Windows: two at a time are the user's own affair
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _unless_unsupported():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(
            f"another synchronisation is writing to {folder}; wait until it has finished"
        ) from None
    finally:
        os.close(descriptor)


@contextmanager
def _unless_unsupported() -> Iterator[None]:
    """Some network file systems know no locks."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        pass


def _record(fields: dict[str, Any]) -> Record:
    record = Record(**fields)
    if not isinstance(record.size, int) or not isinstance(record.sha256, str):
        raise TypeError("no record of ours")
    return record


def _read_manifest(path: Path) -> dict[str, Record]:
    """An unreadable manifest is none: every file is then checked or brought again."""
    try:
        document = json.loads(_regular(path))
        return {name: _record(fields) for name, fields in document["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read_journal(path: Path) -> Iterator[tuple[str, Record]]:
    lines: list[bytes] = []
    with suppress(OSError):
        lines = _regular(path).splitlines()
    for line in lines:
        with suppress(ValueError, TypeError):
            name, fields = json.loads(line)
            yield name, _record(fields)


def _regular(path: Path) -> bytes:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path} is no file")
    return path.read_bytes()
