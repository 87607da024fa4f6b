"""Reads files that others may have written: plain files only, up to a size limit.

What is refused raises OSError; what is not in its format raises ValueError. Each reader turns both into its
own error: one line that names the file and the remedy.
"""

from __future__ import annotations

import errno
import gzip
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TextIO

from laptime.files.parse import parse_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

KIB, MIB, GIB = 2**10, 2**20, 2**30

DOCUMENT_BYTES = 32 * MIB  # a workload of 10,000 operations has 3 MB
ARRAY_BYTES = 256 * MIB  # a calibration has 10 MB unpacked
CHECKPOINT_BYTES = 256 * GIB  # 16 billion parameters with Adam's state, in 32 bits
STREAM_BYTES = 8 * GIB  # of what is read piece by piece, unpacked
_ARRAYS = 10_000
_PATIENCE = 64 * MIB  # unpacked, before the ratio counts
_RATIO = 200  # unpacked over packed: traces have 10 to 30, a bomb 1,000
_GZIP = b"\x1f\x8b"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)


def open_plain(path: str | bytes | Path, *, inside: Path | None = None) -> BinaryIO:
    """The file, unless it is no plain file: a pipe would block and a device never end.

    With `inside`, a link that leads out of that folder is refused; one that stays in it is followed.
    """
    target: Any = path
    flags = _FLAGS
    if inside is not None:
        target = os.path.realpath(path)
        if not Path(target).is_relative_to(os.path.realpath(inside)):
            raise _refused(errno.ELOOP, "it is a link that leads out of its folder", path)
        flags |= getattr(os, "O_NOFOLLOW", 0)
    _check(os.stat(target).st_mode, path)  # before it is opened: opening can act on a device
    descriptor = os.open(target, flags)
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(mode: int, path: str | bytes | Path) -> None:
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        what = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise _refused(code, f"it is {what}, not a plain file", path)


def _refused(code: int, why: str, path: str | bytes | Path) -> OSError:
    return OSError(code, why, os.fsdecode(path))


def read_bytes(path: str | bytes | Path, *, most: int = DOCUMENT_BYTES, inside: Path | None = None) -> bytes:
    """All of a plain file that has at most `most` bytes."""
    with open_plain(path, inside=inside) as file:
        data = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
        while len(data) <= most and (more := file.read(MIB)):  # it may have grown
            data += more
    if len(data) > most:
        raise _refused(errno.EFBIG, f"it has more than {size(most)}", path)
    return data


def read_text(path: str | Path) -> str:
    """A whole file as UTF-8 text, within the same limits."""
    return read_bytes(path).decode()


def read_json(path: str | Path, *, inside: Path | None = None) -> Any:
    """The document of a JSON file."""
    return parse_json(read_bytes(path, inside=inside))


def check_memory(file: BinaryIO, path: str | Path) -> None:
    """Refuse a checkpoint, a zip archive mostly, of more than CHECKPOINT_BYTES or the free memory."""
    unpacked = os.fstat(file.fileno()).st_size
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        unpacked = max(unpacked, sum(member.file_size for member in archive.infolist()))
    file.seek(0)
    free = free_memory()
    if unpacked > min(CHECKPOINT_BYTES, free):
        allowed = f"{size(CHECKPOINT_BYTES)} that are allowed"
        limit = allowed if free > CHECKPOINT_BYTES else f"{size(free)} that are free"
        raise _refused(errno.EFBIG, f"it unpacks to {size(unpacked)}, more than the {limit}", path)


def free_memory() -> int:
    """Bytes that the system could give without swapping; no limit where it does not tell."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * KIB
    return 2**63


def size(count: int) -> str:
    """`32 MiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if count >= unit:
            return f"{count // unit:,} {name}"
    return f"{count:,} bytes"


# -- what is packed --------------------------------------------------------------------------------


@contextmanager
def open_text(path: str | Path, *, most: int = STREAM_BYTES) -> Iterator[TextIO]:
    """The file as text to be read piece by piece, unpacked where it is gzip, whatever its name says.

    A gzip file that is cut off or altered raises ValueError while it is read.
    """
    with open_plain(path) as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        content: Any = _Unpacked(raw, most, path) if packed else raw
        try:
            yield io.TextIOWrapper(io.BufferedReader(content), "utf-8", "replace", newline="")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(str(error) or "it ends too early") from error


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, up to a limit, and no more than a multiple of what it is packed in."""

    def __init__(self, raw: IO[bytes], most: int, path: str | Path) -> None:
        self._raw, self._most, self._path = raw, most, path
        self._content = gzip.GzipFile(fileobj=raw)
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._content.read1(len(buffer))
        buffer[: len(data)] = data
        self._read += len(data)
        bomb = self._read > _PATIENCE and self._read > _RATIO * self._raw.tell()
        if bomb or self._read > self._most:
            raise _refused(errno.EFBIG, f"it unpacks to more than {size(self._read)}", self._path)
        return len(data)


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file: no pickles, and no more bytes than it says."""
    from numpy.lib import format as npy

    arrays: dict[str, NDArray[Any]] = {}
    try:
        with open_plain(path) as raw, zipfile.ZipFile(raw) as folder:
            members = folder.infolist()
            if len(members) > _ARRAYS or sum(info.file_size for info in members) > ARRAY_BYTES:
                raise _refused(errno.EFBIG, f"it unpacks to more than {size(ARRAY_BYTES)}", path)
            for member in members:
                with folder.open(member) as file:
                    _check_header(file, member.file_size)
                with folder.open(member) as file:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = npy.read_array(file, allow_pickle=False)
    except (OSError, ValueError):
        raise
    except Exception as error:  # zipfile and numpy raise many types on damaged files
        raise ValueError(str(error) or "it is cut off") from error
    return arrays


def _check_header(file: IO[bytes], count: int) -> None:
    """Refuse an array that says it is larger than its file: numpy makes room for it before it looks."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize > count:
        raise ValueError("an array says that it is larger than its file")
