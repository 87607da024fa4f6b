"""Run directories: where they are, which process may write to one, and what may be removed from it."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from laptime.errors import RunExists
from laptime.files.text import one_line
from laptime.files.write import hidden_owner
from laptime.runs.document import NETWORK_FILE, RUN_FILE, WORKLOAD_FILE, read_document
from laptime.runs.parts import live
from laptime.runs.schema import TABLES

RESERVE_FILE = ".reserve"
CHECKPOINT_FOLDER = "checkpoint"
LAST_CHECKPOINT = f"{CHECKPOINT_FOLDER}/last.pt"
STALE_S = 60.0  # twelve flushes of 5 s missed: a pause that long is no longer a busy disk
_FOLDERS = ("csv", CHECKPOINT_FOLDER, *TABLES)
RANK_FILES = ("part", "health", "exchanges")  # files that belong to one rank: part-r3…
OF_RANK = re.compile(rf"(?:{'|'.join(RANK_FILES)})-r(\d+)\b.*")


def default_out(name: str = "run") -> Path:
    """A directory under `runs/` that does not exist yet."""
    return unused(Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def unused(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, … that does not exist."""
    path = path if path.name else path.resolve()
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}-{count}")
    return candidate


def new_id() -> str:
    """A run id: the time in UTC, so that ids sort, and six random digits, so that none comes twice."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def refuse_if_taken(directory: Path, rank: int) -> None:
    """Raise RunExists unless this rank may start a run here."""
    shown = one_line(directory)
    if (directory / RUN_FILE).exists():
        run = read_document(directory) if rank else None
        if run is None or run["status"] != "running" or not is_alive(run["heartbeat"]):
            raise RunExists(f"{shown} already holds a run; give another directory")
    if any(part.rank == rank for name in TABLES for part in live(directory / name)):
        raise RunExists(f"{shown} already holds rows of rank {rank}; give another directory")
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in TABLES)
    if rank == 0 and foreign:
        raise RunExists(f"{shown} is not empty (it holds {one_line(foreign[0])}); give another directory")


def remove_leftovers(directory: Path, rank: int) -> None:
    """Delete the unfinished files of this rank's killed writers. A process that still runs keeps its own."""
    for path in _unfinished(directory):
        stem, process = hidden_owner(path.name) or ("", 0)
        of_rank = OF_RANK.fullmatch(stem)
        mine = int(of_rank[1]) == rank if of_rank else rank == 0
        # This process has not written yet: its number was another's before, as in a restarted container.
        if mine and (process == os.getpid() or not _process_lives(process)):
            with suppress(OSError):
                path.unlink()


def _unfinished(directory: Path) -> list[Path]:
    folders = [directory, *(directory / name for name in _FOLDERS)]
    return [path for folder in folders for path in folder.glob(".*.tmp") if hidden_owner(path.name)]


def only_of_a_run(path: Path) -> bool:
    """Whether a run's directory holds nothing but what a recorder writes."""
    mine = [path / name for name in (RUN_FILE, NETWORK_FILE, WORKLOAD_FILE, RESERVE_FILE)]
    mine += [*path.glob("health-r*.json"), *path.glob("exchanges-r*.json"), *_unfinished(path)]
    for name in ("csv", *TABLES):
        mine += [file for file in (path / name).glob("*") if file.suffix in (".parquet", ".csv", ".tmp")]
    return set(path.rglob("*")) <= {*mine, *(path / name for name in _FOLDERS)}


def discard(path: Path) -> bool:
    """Delete a run that was a false start; False, with nothing deleted, if its folder holds anything else."""
    entries = sorted(path.rglob("*"), reverse=True)  # what is in a folder before the folder
    if not only_of_a_run(path):
        return False
    for entry in entries:
        entry.rmdir() if entry.is_dir() else entry.unlink(missing_ok=True)
    path.rmdir()
    return True


# -- signs of life ---------------------------------------------------------------------------------


def beat() -> dict[str, Any]:
    """A sign of life for `run.json`: which process writes the run, and when it last did."""
    return {
        "pid": os.getpid(),
        "boot_id": _boot_id(),
        "time": timestamp(),
        "host": socket.gethostname(),
        "started": process_state(os.getpid())[1],
    }


def timestamp() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _boot_id() -> str | None:
    """Which boot of the machine this is; None where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def is_alive(heartbeat: Mapping[str, Any]) -> bool:
    """Whether the process that wrote `heartbeat` can still be writing.

    On its own host the process is looked up. From another host, or where processes cannot be looked up
    without disturbing them, the age of the heartbeat decides.
    """
    pid = heartbeat.get("pid")
    if heartbeat.get("host") == socket.gethostname() and isinstance(pid, int) and sys.platform != "win32":
        boots = {heartbeat.get("boot_id"), _boot_id()} - {None}
        return len(boots) < 2 and _process_lives(pid, heartbeat.get("started"))
    try:
        last = datetime.fromisoformat(str(heartbeat.get("time")))
        return (datetime.now(UTC) - last).total_seconds() <= STALE_S
    except (ValueError, TypeError):
        return False


def _process_lives(pid: int, started: Any = None) -> bool:
    """Whether a process of this machine runs; `started` tells it from a later one with its number."""
    state, now_started = process_state(pid)
    if state is not None:
        # A process number comes back: in a restarted container training is process 1 every time.
        return state not in "ZX" and started in (None, now_started)
    if Path("/proc/self/stat").exists() or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def process_state(pid: int) -> tuple[str | None, int | None]:
    """State and start time (clock ticks after boot) of a process; (None, None) where unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None, None
