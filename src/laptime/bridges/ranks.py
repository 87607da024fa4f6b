"""Which rank a process is, and how the ranks of a training come to write one run directory.

Nothing here waits for long: a rank that cannot join goes on unrecorded, and says so.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch.distributed as dist

from laptime.bridges.launchers import told_rank
from laptime.errors import NotJoined
from laptime.recorder.collectives import several

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LIMIT_S = 10.0  # in which rank 0 says where it records, and the others close their part of the run
LOOK_S = 0.05
_recordings = count()  # all ranks count alike: it makes a key for each recording


def current_rank() -> int | None:
    """The rank that torch.distributed gives this process, else its launcher; None where nobody has."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return told_rank()


def follow_first(out: Path) -> tuple[Path, int]:
    """Where rank 0 records, and this process's rank; rank 0 tells its own `out` to the others."""
    if not several():
        return out, 0
    rank, key = dist.get_rank(), f"laptime/run/{next(_recordings)}"
    try:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set(key, str(out.absolute()))
            return out, 0
        store.wait([key], timedelta(seconds=LIMIT_S))
        return Path(store.get(key).decode()), rank
    except Exception as error:
        if rank == 0:
            return out, 0
        raise NotJoined(
            f"rank {rank} is not recorded: rank 0 did not say within {LIMIT_S:.0f} s where it records"
        ) from error


def join_first(out: Path | None, otherwise: Path) -> tuple[Path, int]:
    """Like `follow_first`, for one who may have been given a directory of its own."""
    try:
        place, rank = follow_first(out if out is not None else otherwise)
    except NotJoined:
        return out if out is not None else otherwise, 0
    if out is not None and place.absolute() != out.absolute():
        return out, 0  # each rank a run
    return place, rank


@dataclass(slots=True)
class Seat:
    """One rank's right to write to a run directory; nobody else has it as long as the run goes on."""

    rank: int
    file: int | None = None

    def leave(self) -> None:
        """Signal the other ranks that all rows are written."""
        if self.file is not None:
            with suppress(OSError):
                fcntl.flock(self.file, fcntl.LOCK_UN)  # a forked child may hold the same file open
                os.close(self.file)
            self.file = None


class Seats:
    """The ranks of one run, claimed by files in a folder that all its processes see."""

    def __init__(self, folder: Path, *, agreed: bool = True) -> None:
        self._folder = folder
        self._agreed = agreed  # all processes of the run have the same directory

    def place(self, out: Path) -> Path:
        """The directory of the run: rank 0's, where each process was given its own."""
        if self._agreed:
            return out
        self._agreed = True
        return follow_first(out)[0]

    def take(self) -> Seat:
        """The seat of this process's rank; a process without a rank takes the first that is free."""
        rank = current_rank()
        if rank is not None:
            seat = self._claim(rank)
            if seat is None:
                raise NotJoined(f"another process is rank {rank} of this run")
            return seat
        return next(seat for number in count() if (seat := self._claim(number)) is not None)

    def _claim(self, rank: int) -> Seat | None:
        path = self._folder / f"laptime-rank-{rank}"
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except FileExistsError:
            return None
        except OSError as error:
            raise NotJoined(f"no seat can be taken in {self._folder} ({error})") from error
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Seat(rank, file)

    def wait(self, seconds: float = LIMIT_S) -> None:
        """Until every other process of the run has written its rows, or has died."""
        until = time.monotonic() + seconds
        while any(map(_held, self._folder.glob("laptime-rank-*"))) and time.monotonic() < until:
            time.sleep(LOOK_S)


def _held(path: Path) -> bool:
    """Whether the process that claimed this rank still writes."""
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
