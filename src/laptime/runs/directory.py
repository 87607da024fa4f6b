"""Which process may write to a run directory, and the removal of leftovers and of false starts."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from laptime.errors import RunExists
from laptime.files.text import one_line
from laptime.files.write import hidden_owner
from laptime.runs.heartbeat import process_lives
from laptime.runs.parts import live
from laptime.runs.run import NETWORK_FILE, RUN_FILE, WORKLOAD_FILE, Run
from laptime.runs.schema import TABLES

RESERVE_FILE = ".reserve"
CHECKPOINT_FOLDER = "checkpoint"
_FOLDERS = ("csv", CHECKPOINT_FOLDER, *TABLES)
_OF_RANK = re.compile(r"(?:part|health)-r(\d+)\b.*")


def new_id() -> str:
    """A run id: the time in UTC, so that ids sort, and six random digits, so that none comes twice."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def refuse_if_taken(directory: Path, rank: int) -> None:
    """Raise RunExists unless this rank may start a run here."""
    shown = one_line(directory)
    if (directory / RUN_FILE).exists():
        run = Run.load(directory) if rank else None
        if run is None or run.status != "running":
            raise RunExists(f"{shown} already holds a run; give another directory")
    if any(part.rank == rank for name in TABLES for part in live(directory / name)):
        raise RunExists(f"{shown} already holds rows of rank {rank}; give another directory")
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in TABLES)
    if rank == 0 and foreign:
        raise RunExists(f"{shown} is not empty (it holds {one_line(foreign[0])}); give another directory")


def unused(directory: Path) -> Path:
    """A directory beside this one where a run can start: `name-2`, or the next that is not there."""
    directory = directory if directory.name else directory.resolve()
    number = 2
    while (candidate := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    return candidate


def remove_leftovers(directory: Path, rank: int) -> None:
    """Delete the unfinished files of this rank's killed writers. A process that still runs keeps its own."""
    for path in _unfinished(directory):
        stem, process = hidden_owner(path.name) or ("", 0)
        of_rank = _OF_RANK.fullmatch(stem)
        mine = int(of_rank[1]) == rank if of_rank else rank == 0
        # This process has not written yet: its number was another's before, as in a restarted container.
        if mine and (process == os.getpid() or not process_lives(process)):
            with suppress(OSError):
                path.unlink()


def _unfinished(directory: Path) -> list[Path]:
    folders = [directory, *(directory / name for name in _FOLDERS)]
    return [path for folder in folders for path in folder.glob(".*.tmp") if hidden_owner(path.name)]


def discard(path: Path) -> bool:
    """Delete a run that was a false start; False, with nothing deleted, if its folder holds anything else."""
    mine = [path / name for name in (RUN_FILE, NETWORK_FILE, WORKLOAD_FILE, RESERVE_FILE)]
    mine += [*path.glob("health-r*.json"), *_unfinished(path)]
    for folder in ("csv", *TABLES):
        mine += [file for file in (path / folder).glob("*") if file.suffix in (".parquet", ".csv", ".tmp")]
    files = {
        file
        for file in path.rglob("*")
        if not (file.is_dir() and file.parent == path and file.name in _FOLDERS)
    }
    if not files <= set(mine):
        return False
    for file in files:
        file.unlink(missing_ok=True)
    for folder in sorted(_FOLDERS):
        if (path / folder).is_dir():
            (path / folder).rmdir()
    path.rmdir()
    return True
