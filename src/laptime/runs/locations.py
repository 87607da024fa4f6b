"""Default run directories. Imports no torch: commands choose a directory before they load it."""

from __future__ import annotations

import time
from pathlib import Path


def default_out(name: str = "run", root: str | Path = "runs") -> Path:
    """A directory under `runs/` that does not exist yet."""
    return unused(Path(root) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def unused(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, … that does not exist."""
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}-{count}")
    return candidate
