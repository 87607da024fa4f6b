"""Which rank a process is, and how the ranks of a training come to write one run directory.

Nothing here waits for long: a rank that cannot join goes on unrecorded, and says so.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch.distributed as dist

from laptime.errors import NotJoined
from laptime.files.read import read_text
from laptime.recorder.collectives import several
from laptime.runs.directory import default_out, unused

LIMIT_S = 10.0  # in which rank 0 says where it records, and the others close their part of the run
LOOK_S = 0.05
SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
AGREED = "laptime-run"  # the file with the directory that the ranks of a launch share
_recordings = count()  # all ranks count alike: it makes a key for each recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a launcher tells one of the processes that it starts together."""

    rank: int
    folder: Path | None = None  # the launcher's, for this start of its processes; all can write there
    job: str = ""  # a name for the launch that no other has
    far: bool = False  # rank 0 is on another machine
    restarts: int = 0

    def place(self, out: Path | None, name: str) -> Path:
        """The directory of all ranks; where nobody has given one, whoever comes first chooses."""
        if out is not None and not self.restarts:
            return out
        if self.job:
            return Path("runs") / f"{name}-{self.job}"
        if self.far or self.folder is None:
            raise NotJoined(
                f"rank {self.rank} is not recorded: it has no directory in common with rank 0; "
                "give --out, a folder that all machines see"
            )
        agreed, mine = self.folder / AGREED, self.folder / f"{AGREED}-{os.getpid()}"
        try:
            chosen = unused(out) if out is not None else default_out(name)
            mine.write_text(str(chosen.absolute()), "utf-8")
            with suppress(FileExistsError):
                os.link(mine, agreed)  # complete as soon as it can be seen
            mine.unlink()
            path = Path(read_text(agreed))
            return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        except OSError as error:
            raise NotJoined(f"rank {self.rank} is not recorded: {error}; give --out") from error


def launched() -> Launched | None:
    """From the environment, as torchrun (and accelerate) or Slurm set it; None for a process on its own."""
    told = os.environ
    try:
        if "TORCHELASTIC_RUN_ID" in told and int(told["WORLD_SIZE"]) > 1:
            # …/<launch>/attempt_<restarts>/<local rank>/error.json
            file = told.get("TORCHELASTIC_ERROR_FILE")
            folder = Path(file).parent.parent if file else None
            return Launched(
                rank=int(told["RANK"]),
                folder=folder if folder is not None and folder.is_dir() else None,
                far=int(told.get("GROUP_RANK", "0")) > 0,
                restarts=int(told.get("TORCHELASTIC_RESTART_COUNT", "0")),
            )
        if int(told.get("SLURM_STEP_NUM_TASKS", "1")) > 1:  # of one srun; a batch script is on its own
            numbers = [told[name] for name in SLURM if name in told]
            return Launched(rank=int(told["SLURM_PROCID"]), job="-".join(["slurm", *numbers]))
    except (KeyError, ValueError):
        pass
    return None


def current_rank() -> int | None:
    """The rank that torch.distributed gives this process, else its launcher; None where nobody has."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    try:
        if int(os.environ["WORLD_SIZE"]) > 1:
            return int(os.environ["RANK"])
    except (KeyError, ValueError):
        pass
    launch = launched()
    return launch.rank if launch is not None else None


def follow_first(out: Path) -> tuple[Path, int]:
    """Where rank 0 records, and this process's rank; rank 0 tells its own `out` to the others."""
    if not several():
        return out, 0
    rank, key = dist.get_rank(), f"laptime/run/{next(_recordings)}"
    try:
        store = dist.distributed_c10d._get_default_store()
        if rank:
            store.wait([key], timedelta(seconds=LIMIT_S))
            return Path(store.get(key).decode()), rank
        store.set(key, str(out.absolute()))
    except Exception as error:
        if rank:
            raise NotJoined(
                f"rank {rank} is not recorded: rank 0 did not say within {LIMIT_S:.0f} s where it records"
            ) from error
    return out, 0


def join_first(out: Path | None, otherwise: Path) -> tuple[Path, int]:
    """Like `follow_first`, for one who may have been given a directory of its own."""
    try:
        place, rank = follow_first(out if out is not None else otherwise)
    except NotJoined:
        return out if out is not None else otherwise, 0
    if out is not None and place.absolute() != out.absolute():
        return out, 0  # each rank a run
    return place, rank


class Seat:
    """This process's right to write to a run as one of its ranks: a file in a folder that all of them see.

    Nobody else has the rank as long as the run goes on.
    """

    def __init__(self, folder: Path, *, agreed: bool = True) -> None:
        self._folder = folder
        self._agreed = agreed  # all processes of the run have the same directory
        self._file: int | None = None
        self.rank: int | None = None  # until it is taken

    def place(self, out: Path) -> Path:
        """The directory of the run: rank 0's, where each process was given its own."""
        if self._agreed:
            return out
        self._agreed = True
        return follow_first(out)[0]

    def take(self) -> int:
        """The rank of this process; one that was given none takes the first that is free."""
        if self.rank is None:
            given = current_rank()
            if given is not None and not self._claim(given):
                raise NotJoined(f"another process is rank {given} of this run")
            self.rank = given if given is not None else next(filter(self._claim, count()))
        return self.rank

    def _claim(self, rank: int) -> bool:
        path = self._folder / f"laptime-rank-{rank}"
        try:
            self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except FileExistsError:
            return False
        except OSError as error:
            raise NotJoined(f"no seat can be taken in {self._folder} ({error})") from error
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    def leave(self) -> None:
        """Signal the other ranks that all rows are written."""
        if self._file is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may hold the same file open
                os.close(self._file)
            self._file = None

    def wait(self, seconds: float = LIMIT_S) -> None:
        """Until every other process of the run has written its rows, or has died."""
        until = time.monotonic() + seconds
        while any(map(_held, self._folder.glob("laptime-rank-*"))) and time.monotonic() < until:
            time.sleep(LOOK_S)


def _held(path: Path) -> bool:
    """Whether the process that claimed this rank still writes."""
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
