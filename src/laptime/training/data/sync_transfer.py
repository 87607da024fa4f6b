"""One file: brought under a hidden name, checked, and only then given its own."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

from laptime.errors import DataError, LaptimeError
from laptime.files.text import first_line
from laptime.training.data.sync_manifest import Manifest, Record, digest, identity
from laptime.training.data.sync_places import CHUNK, Entry, Place, Trouble
from laptime.training.data.sync_plan import Refused, Wanted

__all__ = ["PART", "Brought", "Failed", "bring"]

PART = ".{}.part"
_TRIES = 4
_PAUSE_S = 0.25


class Stopped(LaptimeError):
    """Another file has ended the synchronisation. Nobody sees this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A file that is where it should be."""

    name: str
    size: int
    read_bytes: int  # from the remote place, this time
    checked: bool  # against a checksum from the remote place
    was_here: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A file that could not be brought; the others go on."""

    name: str
    reason: str


@dataclass(slots=True, kw_only=True)
class _Job:
    place: Place
    wanted: Wanted
    target: Path
    stop: threading.Event
    read_bytes: int = 0


def bring(
    place: Place,
    wanted: Wanted,
    folder: Path,
    manifest: Manifest,
    stop: threading.Event,
    pause: Callable[[float], None],
) -> Brought | Failed | Refused:
    """Bring one file, or find that it is here; a passing trouble is tried again a few times."""
    if in_the_way := _in_the_way(folder, wanted.name):
        return Refused(name=wanted.name, reason=in_the_way)
    job = _Job(place=place, wanted=wanted, target=folder / wanted.name, stop=stop)
    for attempt in range(_TRIES):
        try:
            return _bring(job, manifest)
        except Trouble as trouble:
            if not trouble.passing or attempt == _TRIES - 1:
                return Failed(name=wanted.name, reason=str(trouble))
            place.forget()
            pause(_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns")


def _bring(job: _Job, manifest: Manifest) -> Brought:
    if job.stop.is_set():
        raise Stopped
    name, entry = job.wanted.name, job.wanted.entry
    if job.place.wants_facts:
        entry = replace(job.place.facts(entry), md5=entry.md5)
    source = identity(job.place.address(entry.path), entry)
    with _writing(job.target):
        here = _already_here(job, entry, source, manifest.get(name))
    if here is not None:
        if here != manifest.get(name):
            with _writing(job.target):
                manifest.add(name, here)
        return Brought(name=name, size=here.size, read_bytes=0, checked=here.checked, was_here=True)
    part = job.target.with_name(PART.format(_part_name(name, source)))
    with _writing(job.target):
        job.target.parent.mkdir(parents=True, exist_ok=True)
    sha256, md5 = _fill(job, entry, part)
    checked = _check(job, entry, part, sha256, md5)
    with _writing(job.target):
        about = part.lstat()
        size = about.st_size
        record = Record(size=size, sha256=sha256, source=source, mtime_ns=about.st_mtime_ns, checked=checked)
        manifest.add(name, record)
        os.replace(part, job.target)
    return Brought(name=name, size=size, read_bytes=job.read_bytes, checked=checked, was_here=False)


def _part_name(name: str, source: str) -> str:
    return hashlib.blake2b(f"{name}\0{source}".encode(), digest_size=8).hexdigest()


def _in_the_way(folder: Path, name: str) -> str | None:
    """A link or anything else on the way to `name` that would lead a file elsewhere."""
    path = folder
    parts = name.split("/")
    for place, part in enumerate(parts):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except OSError:
            return None  # nothing there yet
        if stat.S_ISLNK(mode):
            return f"{path} is a symbolic link here"
        expected = stat.S_ISREG if place == len(parts) - 1 else stat.S_ISDIR
        if not expected(mode):
            return f"{path} is something else here"
    return None


def _already_here(job: _Job, entry: Entry, source: str, record: Record | None) -> Record | None:
    """The record of a file that need not be brought. Its content is read only where its date has changed."""
    try:
        about = job.target.lstat()
    except OSError:
        return None
    wanted_sha = job.wanted.sha256
    if entry.size is not None and about.st_size != entry.size:
        return None
    same_source = record is not None and record.source == source and wanted_sha in (None, record.sha256)
    if (
        record is not None
        and same_source
        and (about.st_size, about.st_mtime_ns) == (record.size, record.mtime_ns)
    ):
        return replace(record, checked=record.checked or wanted_sha is not None)
    if not (same_source or wanted_sha or entry.md5):
        return None
    sha256, md5 = digest(job.target)
    known = sha256 == wanted_sha if wanted_sha else md5 == entry.md5 if entry.md5 else False
    if known or (record is not None and same_source and sha256 == record.sha256):
        size, mtime_ns = about.st_size, about.st_mtime_ns
        return Record(size=size, sha256=sha256, source=source, mtime_ns=mtime_ns, checked=known)
    return None


def _fill(job: _Job, entry: Entry, part: Path) -> tuple[str, str]:
    """Write what is still missing of the part file; the SHA-256 and MD5 of all of it."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def take(piece: bytes) -> None:
        sha256.update(piece)
        md5.update(piece)

    with _writing(job.target):
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    with FileIO(descriptor, "r+b") as file:
        with _writing(job.target):
            offset = os.fstat(descriptor).st_size
            if entry.size is None or offset > entry.size:
                offset = 0
        if offset != entry.size:
            with job.place.reading(entry, offset) as (start, read):
                with _writing(job.target):
                    file.truncate(start)
                    _reread(file, take, start)
                while piece := read():
                    job.read_bytes += len(piece)
                    take(piece)
                    with _writing(job.target):
                        _write_all(file, piece)
                    if job.stop.is_set():
                        raise Stopped
        else:
            with _writing(job.target):
                _reread(file, take, offset)
    return sha256.hexdigest(), md5.hexdigest()


def _reread(file: FileIO, take: Callable[[bytes], None], until: int) -> None:
    """Hash what an earlier attempt has left."""
    left = until
    while left > 0 and (piece := file.read(min(CHUNK, left))):
        take(piece)
        left -= len(piece)


def _write_all(file: FileIO, piece: bytes) -> None:
    view = memoryview(piece)
    while view:  # an unbuffered write may take only a part, for example when the disk is nearly full
        view = view[file.write(view) :]


def _check(job: _Job, entry: Entry, part: Path, sha256: str, md5: str) -> bool:
    """Whether a checksum was there to agree with; a disagreement is tried again from the first byte."""
    address = job.place.address(entry.path)
    with _writing(job.target):
        size = part.lstat().st_size
    if entry.size is not None and size < entry.size:
        raise Trouble(
            f"{address} broke off after {size} of {entry.size} bytes; check the network", passing=True
        )
    reason = None
    if entry.size is not None and size > entry.size:
        reason = f"{address} has grown while it was read; run it again when nobody writes there"
    elif job.wanted.sha256 is not None and sha256 != job.wanted.sha256:
        reason = f"{address} is not what SHA256SUMS says; repair it there"
    elif job.wanted.sha256 is None and entry.md5 is not None and md5 != entry.md5:
        if job.place.facts(entry).md5 is None:
            return False  # the tag of an encrypted object is no checksum
        reason = f"{address} is not what its ETag says; repair it there"
    elif job.wanted.sha256 is None and entry.md5 is None and size > CHUNK:
        now = job.place.facts(entry)  # it took a while
        if (now.size, now.version) != (entry.size, entry.version):
            reason = f"{address} has changed while it was read; run it again when nobody writes there"
    if reason is None:
        return job.wanted.sha256 is not None or entry.md5 is not None
    with _writing(job.target):
        part.unlink()
    raise Trouble(reason, passing=True)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """What this machine's disk has to say ends the whole synchronisation, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"no room for {target} ({first_line(error)}); make some and run it again to go on"
            ) from error
        raise DataError(f"{target} cannot be written ({first_line(error)}); check its rights") from error
