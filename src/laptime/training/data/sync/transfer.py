"""One file: brought under a hidden name, checked, and only then given its own."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from laptime.errors import DataError, LaptimeError
from laptime.files.text import first_line
from laptime.training.data.sync.manifest import Manifest, SyncedFile, identity
from laptime.training.data.sync.plan import Refused, WantedFile
from laptime.training.data.sync.remote import CHUNK, Remote, RemoteEntry, RemoteError

PART = ".{}.part"
_TRIES = 4
_PAUSE_S = 0.25


class Stopped(LaptimeError):
    """Another file has ended the synchronisation. Nobody sees this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A file that is where it should be."""

    read_bytes: int  # from the remote folder, this time
    checked: bool  # against a checksum from the remote folder
    was_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A file that could not be brought; the others go on."""

    reason: str


class Hashes:
    """SHA-256 and MD5 of what is taken in."""

    def __init__(self) -> None:
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def take(self, file: FileIO, size: int) -> None:
        """The next `size` bytes of a file of ours."""
        while size > 0 and (piece := file.read(min(CHUNK, size))):
            self.add(piece)
            size -= len(piece)

    def add(self, piece: bytes) -> None:
        """These bytes."""
        self._sha256.update(piece)
        self._md5.update(piece)

    def agree(self, sha256: str | None, md5: str | None) -> bool | None:
        """Whether they are what they should be; None: nobody says."""
        if sha256 is not None:
            return self.sha256 == sha256
        return None if md5 is None else self._md5.hexdigest() == md5

    @property
    def sha256(self) -> str:
        """As `sha256sum` writes it."""
        return self._sha256.hexdigest()


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Brings one file, or finds that it is here."""

    remote: Remote
    wanted: WantedFile
    folder: Path
    manifest: Manifest
    stop: threading.Event
    pause: Callable[[float], None]
    read_bytes: int = 0

    @property
    def target(self) -> Path:
        """Where it goes."""
        return self.folder / self.wanted.name

    def run(self) -> Brought | Failed | Refused:
        """The outcome; a failure that may pass is tried again a few times."""
        if in_the_way := _in_the_way(self.folder, self.wanted.name):
            return Refused(name=self.wanted.name, reason=in_the_way)
        for attempt in range(_TRIES):
            if self.stop.is_set():
                raise Stopped
            try:
                return self._bring()
            except RemoteError as error:
                if not error.passing or attempt == _TRIES - 1:
                    return Failed(reason=str(error))
                self.remote.reconnect()
                self.pause(_PAUSE_S * 2**attempt)
            except OSError as error:  # of this machine's disk: the remote folder's are RemoteErrors
                raise DataError(_disk(self.target, error)) from error
        raise AssertionError("the last attempt returns")

    def _bring(self) -> Brought:
        name, entry = self.wanted.name, self.wanted.entry
        if not self.remote.lists_sizes:
            entry = replace(self.remote.facts(entry), md5=entry.md5)
        source = identity(self.remote.address(entry.path), entry)
        known = self.manifest.get(name)
        here = self._already_here(entry, source, known)
        if here is not None:
            if here != known:
                self.manifest.add(name, here)
            return Brought(read_bytes=0, checked=here.checked, was_here=True)
        part = hashlib.blake2b(f"{name}\0{source}".encode(), digest_size=8).hexdigest()
        path = self.target.with_name(PART.format(part))
        path.parent.mkdir(parents=True, exist_ok=True)
        hashes = self._fill(entry, path)
        checked = self._check(entry, path, hashes)
        about = path.lstat()
        self.manifest.add(name, _synced(about, hashes.sha256, source, checked=checked))
        os.replace(path, self.target)
        return Brought(read_bytes=self.read_bytes, checked=checked, was_here=False)

    def _already_here(self, entry: RemoteEntry, source: str, known: SyncedFile | None) -> SyncedFile | None:
        """A file that need not be brought. Its content is read only where its date has changed."""
        try:
            about = self.target.lstat()
        except OSError:
            return None
        sha256 = self.wanted.sha256
        if entry.size is not None and about.st_size != entry.size:
            return None
        if known is not None and (known.source != source or sha256 not in (None, known.sha256)):
            known = None
        if known is not None and (about.st_size, about.st_mtime_ns) == (known.size, known.mtime_ns):
            return replace(known, checked=known.checked or sha256 is not None)
        if known is None and sha256 is None and entry.md5 is None:
            return None
        hashes = Hashes()
        with FileIO(self.target) as file:
            hashes.take(file, about.st_size)
        agreed = hashes.agree(sha256, entry.md5)
        if agreed or (known is not None and hashes.sha256 == known.sha256):
            return _synced(about, hashes.sha256, source, checked=bool(agreed))
        return None

    def _fill(self, entry: RemoteEntry, part: Path) -> Hashes:
        """Write what is still missing of the part file; the hashes of all of it."""
        hashes = Hashes()
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        with FileIO(descriptor, "r+b") as file:
            offset = os.fstat(descriptor).st_size
            if entry.size is None or offset > entry.size:
                offset = 0
            if offset == entry.size:
                hashes.take(file, offset)
                return hashes
            with self.remote.reading(entry, offset) as (size, read):
                file.truncate(size)
                hashes.take(file, size)
                while piece := read():
                    self.read_bytes += len(piece)
                    size += len(piece)
                    if entry.size is not None and size > entry.size:
                        file.truncate(0)
                        raise RemoteError(
                            f"{self.remote.address(entry.path)} sends more than its {entry.size} bytes;"
                            " run it again when nobody writes there",
                            passing=True,
                        )
                    hashes.add(piece)
                    _write_all(file, piece)
                    if self.stop.is_set():
                        raise Stopped
        return hashes

    def _check(self, entry: RemoteEntry, part: Path, hashes: Hashes) -> bool:
        """Whether a checksum was there to agree with; a disagreement is tried again from the first byte."""
        address = self.remote.address(entry.path)
        size = part.lstat().st_size
        if entry.size is not None and size < entry.size:
            raise RemoteError(
                f"{address} broke off after {size} of {entry.size} bytes; check the network", passing=True
            )
        agreed = hashes.agree(self.wanted.sha256, entry.md5)
        if agreed:
            return True
        if agreed is None:
            if size <= CHUNK:
                return False
            now = self.remote.facts(entry)  # it took a while
            if (now.size, now.version) == (entry.size, entry.version):
                return False
            reason = "has changed while it was read; run it again when nobody writes there"
        elif self.wanted.sha256 is not None:
            reason = "is not what SHA256SUMS says; repair it there"
        elif self.remote.facts(entry).md5 is None:
            return False  # the tag of an encrypted object is no checksum
        else:
            reason = "is not what its ETag says; repair it there"
        part.unlink()
        raise RemoteError(f"{address} {reason}", passing=True)


def _synced(about: os.stat_result, sha256: str, source: str, *, checked: bool) -> SyncedFile:
    return SyncedFile(
        size=about.st_size, sha256=sha256, source=source, mtime_ns=about.st_mtime_ns, checked=checked
    )


def _in_the_way(folder: Path, name: str) -> str | None:
    """A link or anything else on the way to `name` that would lead a file elsewhere."""
    path = folder
    parts = name.split("/")
    for depth, part in enumerate(parts, start=1):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except OSError:
            return None  # nothing there yet
        if stat.S_ISLNK(mode):
            return f"{path} is a symbolic link here"
        expected = stat.S_ISREG if depth == len(parts) else stat.S_ISDIR
        if not expected(mode):
            return f"{path} is something else here"
    return None


def _write_all(file: FileIO, piece: bytes) -> None:
    view = memoryview(piece)
    while view:  # an unbuffered write may take only a part, for example when the disk is nearly full
        view = view[file.write(view) :]


def _disk(target: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no room for {target} ({first_line(error)}); make some and run it again to go on"
    return f"{target} cannot be written ({first_line(error)}); check its rights"
