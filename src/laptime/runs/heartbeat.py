"""A sign of life in `run.json`: which process writes the run, and when it last did."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STALE_S = 60.0  # twelve flushes of 5 s missed: a pause that long is no longer a busy disk


def beat() -> dict[str, Any]:
    """This process, now."""
    return {
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "time": timestamp(),
        "host": socket.gethostname(),
        "started": _process(os.getpid())[1],
    }


def timestamp() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def boot_id() -> str | None:
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
        boots = {heartbeat.get("boot_id"), boot_id()} - {None}
        return len(boots) < 2 and process_lives(pid, heartbeat.get("started"))
    try:
        last = datetime.fromisoformat(str(heartbeat.get("time")))
        return (datetime.now(UTC) - last).total_seconds() <= STALE_S
    except (ValueError, TypeError):
        return False


def process_lives(pid: int, started: Any = None) -> bool:
    """Whether a process of this machine runs; `started` tells it from a later one with its number."""
    state, now_started = _process(pid)
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


def _process(pid: int) -> tuple[str | None, int | None]:
    """State and start time (clock ticks after boot) of a process; (None, None) where unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None, None
