"""Files that are never half-written, and JSON that every parser accepts."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import IO, Any

import numpy as np

from laptime.files.text import text_of

_DEEPEST = 40  # a configuration nested deeper than this refers to itself


@contextmanager
def locked(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """A lock between processes; without effect where the file system or Windows has none.

    Where another process has it, this waits, or raises BlockingIOError.
    """
    file = None
    try:
        try:
            import fcntl

            file = os.open(directory, os.O_RDONLY)
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except (ImportError, OSError):
            pass
        yield
    finally:
        if file is not None:
            os.close(file)


@contextmanager
def replacing(path: Path, *, exclusive: bool = False) -> Iterator[IO[bytes]]:
    """A file that appears under its name only once it is complete and on the disk.

    Until then it has a hidden name that no `*.parquet`, `*.json` or `*.csv` pattern matches. A killed process
    would need no fsync; a power cut would otherwise leave an empty file under the final name. It costs 0.3 ms
    on the SSD it was measured on. `exclusive` raises FileExistsError instead of replacing.
    """
    if path.exists() and not path.is_file():  # renamed over, a device such as /dev/stdout would be gone
        raise OSError(errno.EINVAL, "it is there already and is no plain file", str(path))
    hidden = path.with_name(f".{path.stem}.{os.getpid()}.tmp")
    try:
        with open(hidden, "wb") as file:
            yield file
            file.flush()
            with _where_supported():
                os.fsync(file.fileno())
        linked = False
        if exclusive:  # linking checks and acts in one go, renaming does not
            with _where_supported():
                os.link(hidden, path)
                linked = True
            if not linked and path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if linked:
            hidden.unlink()
        else:
            os.replace(hidden, path)
    except BaseException:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise


@contextmanager
def _where_supported() -> Iterator[None]:
    """Some user-space file systems refuse to sync or to link: they promise no more than a plain rename."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EMLINK):
            raise


def hidden_owner(name: str) -> tuple[str, int] | None:
    """The stem and the process of the hidden name that `replacing` gives; None for any other name."""
    stem, _, process = name.removesuffix(".tmp").rpartition(".")
    hidden = name.startswith(".") and name.endswith(".tmp") and len(stem) > 1 and process.isdecimal()
    return (stem[1:], int(process)) if hidden else None


class Reserve:
    """Space on the disk that is given up for a small file when there is none left."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self.take()

    def take(self) -> None:
        """Reserve the space, if possible."""
        try:
            if not self._path.exists():
                self._path.write_bytes(bytes(self._size))  # written, since a hole would reserve nothing
        except OSError:
            self.release()

    def release(self) -> bool:
        """Free the space; False where none was reserved."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def write_json(path: Path, document: Mapping[str, Any], *, exclusive: bool = False) -> None:
    """Write `document` in one go: a reader sees the old file or the new one."""
    text = json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path, exclusive=exclusive) as file:
        file.write(text.encode() + b"\n")


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as strict JSON holds it: NaN becomes null, a set a sorted list, anything unknown its `str`.

    A set is not written as its `str` because the order of that differs from process to process.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist(), depth)
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > _DEEPEST:
        return text_of(type(value).__name__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {text_of(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item, depth + 1) for item in value), key=str)
    return text_of(value)
