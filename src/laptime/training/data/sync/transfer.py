"""One file: brought under a hidden name, checked, and only then given its own.

What a folder holds already, and how that is known, is in `.laptime-sync.json`, and in a journal while it is
filled. The journal gets a line per file, before the file gets its name: a killed process forgets nothing it
finished.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path

from laptime.errors import DataError, LaptimeError
from laptime.files.parse import build, mapping, parse_json, sequence, text
from laptime.files.read import GIB, read_bytes
from laptime.files.text import first_line
from laptime.files.write import locked, write_json
from laptime.training.data.sync.remote import CHUNK, Remote, RemoteEntry, RemoteError

MANIFEST = ".laptime-sync.json"
JOURNAL = ".laptime-sync.journal"
PART = ".{}.part"
_VERSION = 1
_TRIES = 4
_PAUSE_S = 0.25
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


class Stopped(LaptimeError):
    """Another file has ended the synchronisation. Nobody sees this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A name that is not brought, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedFile:
    """One finished file, as the manifest has it."""

    size: int
    sha256: str
    source: str  # one content at one address: it changes with the file's size and version there
    mtime_ns: int  # of the file here: unchanged, it need not be read again
    checked: bool  # against a checksum from the remote folder

    @classmethod
    def of(cls, about: os.stat_result, sha256: str, source: str, *, checked: bool) -> SyncedFile:
        """A file here."""
        mtime = about.st_mtime_ns
        return cls(size=about.st_size, sha256=sha256, source=source, mtime_ns=mtime, checked=checked)


class Hashes:
    """SHA-256 and MD5 of what is added."""

    def __init__(self) -> None:
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def add_file(self, file: FileIO) -> None:
        """The rest of a file of ours."""
        while piece := file.read(CHUNK):
            self.add(piece)

    def add(self, piece: bytes) -> None:
        self._sha256.update(piece)
        self._md5.update(piece)

    def agree(self, sha256: str | None, md5: str | None) -> bool | None:
        """Whether they are what they should be; None: nobody says."""
        if sha256 is not None:
            return self.sha256 == sha256
        return None if md5 is None else self._md5.hexdigest() == md5

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Brings one file, or finds that it is here. The last three fields tell how it went."""

    name: str  # below the folder
    entry: RemoteEntry
    sha256: str | None
    remote: Remote
    folder: Path
    manifest: Manifest
    stop: threading.Event
    pause: Callable[[float], None]
    read_bytes: int = 0  # from the remote folder
    checked: bool = False  # against a checksum from the remote folder
    was_here: bool = False

    def run(self) -> Transfer | Refused | RemoteError:
        """Itself once the file is here, else why not. A failure that may pass is tried again a few times."""
        if in_the_way := _in_the_way(self.folder, self.name):
            return Refused(name=self.name, reason=in_the_way)
        for attempt in range(_TRIES):
            if self.stop.is_set():
                raise Stopped
            try:
                self._bring()
                return self
            except RemoteError as error:
                if not error.passing or attempt == _TRIES - 1:
                    return error
                self.remote.reconnect()
                self.pause(_PAUSE_S * 2**attempt)
            except OSError as error:  # of this machine's disk: the remote folder's are RemoteErrors
                target, why = self.folder / self.name, first_line(error)
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    reason = f"no room for {target} ({why}); make some and run it again to go on"
                else:
                    reason = f"{target} cannot be written ({why}); check its rights"
                raise DataError(reason) from error
        raise AssertionError("the last attempt returns")

    def _bring(self) -> None:
        # A web server's listing has no sizes: they come file by file.
        entry = self.entry if self.entry.size is not None else self.remote.facts(self.entry)
        target = self.folder / self.name
        source = _hash(self.remote.address(entry.path), str(entry.size), entry.version)
        file = self._already_here(target, entry, source)
        self.was_here = file is not None
        part = target.with_name(PART.format(_hash(self.name, source)))
        if file is None:
            part.parent.mkdir(parents=True, exist_ok=True)
            hashes = self._fill(entry, part)
            checked = self._check(entry, part, hashes)
            file = SyncedFile.of(part.lstat(), hashes.sha256, source, checked=checked)
        self.checked = file.checked
        if file != self.manifest.files.get(self.name):
            self.manifest.add(self.name, file)
        if not self.was_here:
            os.replace(part, target)

    def _already_here(self, target: Path, entry: RemoteEntry, source: str) -> SyncedFile | None:
        """What is known of a file that need not be brought. It is read only where its date has changed."""
        try:
            about = target.lstat()
        except OSError:
            return None
        if entry.size is not None and about.st_size != entry.size:
            return None
        known = self.manifest.files.get(self.name)
        if known is not None and (known.source != source or self.sha256 not in (None, known.sha256)):
            known = None
        if known is not None and (about.st_size, about.st_mtime_ns) == (known.size, known.mtime_ns):
            return replace(known, checked=known.checked or self.sha256 is not None)
        if known is None and self.sha256 is None and entry.md5 is None:
            return None
        hashes = Hashes()
        with FileIO(target) as file:
            hashes.add_file(file)
        agreed = hashes.agree(self.sha256, entry.md5)
        if agreed or (known is not None and hashes.sha256 == known.sha256):
            return SyncedFile.of(about, hashes.sha256, source, checked=bool(agreed))
        return None

    def _fill(self, entry: RemoteEntry, part: Path) -> Hashes:
        """Write what is still missing of the part file; the hashes of all of it."""
        hashes = Hashes()
        with FileIO(os.open(part, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o644), "r+b") as file:
            offset = os.fstat(file.fileno()).st_size
            if entry.size is None or offset > entry.size:
                offset = 0
            if offset == entry.size:
                hashes.add_file(file)
                return hashes
            with self.remote.reading(entry, offset) as (start, read):
                file.truncate(start)
                hashes.add_file(file)
                while piece := read():
                    self.read_bytes += len(piece)
                    if entry.size is not None and file.tell() + len(piece) > entry.size:
                        file.truncate(0)
                        size = f"its {entry.size} bytes"
                        raise self._failure(f"sends more than {size}; run it again when nobody writes there")
                    hashes.add(piece)
                    _write_all(file, piece)
                    if self.stop.is_set():
                        raise Stopped
        return hashes

    def _check(self, entry: RemoteEntry, part: Path, hashes: Hashes) -> bool:
        """Whether a checksum was there to agree with; a disagreement is tried again from the first byte."""
        size = part.lstat().st_size
        if entry.size is not None and size < entry.size:
            raise self._failure(f"broke off after {size} of {entry.size} bytes; check the network")
        agreed = hashes.agree(self.sha256, entry.md5)
        if agreed or (agreed is None and size <= CHUNK):
            return bool(agreed)
        reason = "is not what SHA256SUMS says; repair it there"
        if self.sha256 is None:
            now = self.remote.facts(entry)  # it took a while
            if agreed is None and (now.size, now.version) == (entry.size, entry.version):
                return False
            if agreed is not None and now.md5 is None:
                return False  # the tag of an encrypted object is no checksum
            changed = "has changed while it was read; run it again when nobody writes there"
            reason = changed if agreed is None else "is not what its ETag says; repair it there"
        part.unlink()
        raise self._failure(reason)

    def _failure(self, reason: str) -> RemoteError:
        return RemoteError(f"{self.remote.address(self.entry.path)} {reason}", passing=True)


def _hash(*parts: str) -> str:
    text = "\0".join(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


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


# -- what a folder holds ----------------------------------------------------------------------------------


class Manifest:
    """The finished files of a folder. Threads share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = (folder / JOURNAL).exists()
        self.files = dict(_read(folder))
        self._lock = threading.Lock()
        self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_FOLLOW, 0o644)
        os.write(self._journal, b"\n")  # the last line may have been cut off

    def add(self, name: str, file: SyncedFile) -> None:
        """Record a finished file in the journal at once, so that a killed process does not lose it."""
        line = json.dumps([name, asdict(file)]).encode() + b"\n"
        with self._lock:
            os.write(self._journal, line)
            self.files[name] = file
            self._changed = True

    def close(self, remote: str) -> None:
        """Write the manifest, which includes the journal, and delete the journal."""
        os.close(self._journal)
        if self._changed:
            files = dict(sorted(self.files.items()))
            write_json(
                self._folder / MANIFEST, {"schema_version": _VERSION, "remote": remote, "files": files}
            )
        (self._folder / JOURNAL).unlink()


@contextmanager
def holding(folder: Path, remote: str) -> Iterator[Manifest]:
    """The manifest of a folder, locked against other synchronisations."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, wait=False):
            manifest = Manifest(folder)
            try:
                yield manifest
            finally:
                manifest.close(remote)
    except BlockingIOError:
        raise DataError(
            f"another synchronisation is writing to {folder}; wait until it has finished"
        ) from None
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({first_line(error)}); give another folder") from error


def _read(folder: Path) -> Iterator[tuple[str, SyncedFile]]:
    """From the manifest, then the journal. What cannot be read is as if it were not there: such files are
    checked or brought again."""
    with suppress(OSError, ValueError):
        document = mapping(parse_json(read_bytes(folder / MANIFEST, most=GIB, inside=folder)))
        files = mapping(document.get("files")).items()
        yield from [(name, build(SyncedFile, fields)) for name, fields in files]
    with suppress(OSError):
        for line in read_bytes(folder / JOURNAL, most=GIB, inside=folder).splitlines():
            with suppress(ValueError):
                name, fields = sequence(parse_json(line))
                yield text(name), build(SyncedFile, fields)
