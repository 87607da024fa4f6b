"""Workloads that were saved below the folder of runs, by their path below it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from laptime.files.read import open_plain
from laptime.files.text import text_of
from laptime.model import Workload
from laptime.runs.run import RUN_FILE

_MARK = b'"laptime_workload"'  # which `Workload.save` writes first
_HEAD = 200
_LARGEST = 200_000_000  # bytes; a network of 10,000 operations has 4 MB
_KEPT = 8

Seal = tuple[int, int, int]


class Saved:
    """Files with a workload. As with runs, a name is looked up among them and never opened by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked_at: dict[Path, tuple[Seal, bool]] = {}
        self._found: dict[str, Path] = {}
        self._read: dict[tuple[Path, Seal], Workload] = {}
        self._lock = Lock()

    def files(self) -> dict[str, Path]:
        """Every saved workload by name, except those inside runs."""
        paths = {}
        with self._lock:
            before, self._looked_at = self._looked_at, {}  # drops files that were deleted
            for directory, folders, names in os.walk(self.folder):
                if RUN_FILE in names:
                    folders.clear()
                    continue
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    path = Path(directory, name)
                    if name.endswith(".json") and not name.startswith(".") and self._holds(path, before):
                        paths[text_of(path.relative_to(self.folder).as_posix())] = path
            self._found = paths
        return paths

    def load(self, name: str) -> Workload | None:
        """The workload of that name, the same object until its file changes; None where there is none."""
        path = self._path(name)
        seal = None if path is None else _seal(path)
        if path is None or seal is None:
            return None
        with self._lock:
            if (path, seal) not in self._read:
                self._read[path, seal] = Workload.load(path, inside=self.folder)
                while len(self._read) > _KEPT:
                    del self._read[next(iter(self._read))]
            return self._read[path, seal]

    def _path(self, name: str) -> Path | None:
        """Where it lies. The folder is walked only for a name that is new, not for every question."""
        known = self._found.get(name)
        if known is None or known.resolve() != self.folder.resolve() / known.relative_to(self.folder):
            return self.files().get(name)
        with self._lock:
            return known if self._holds(known, self._looked_at) else None

    def _holds(self, path: Path, before: Mapping[Path, tuple[Seal, bool]]) -> bool:
        seal = _seal(path)
        if seal is None or seal[1] > _LARGEST:
            return False
        known = before.get(path)
        if known is None or known[0] != seal:
            try:
                with open_plain(path, inside=self.folder) as file:
                    known = seal, _MARK in file.read(_HEAD)
            except OSError:
                return False
        self._looked_at[path] = known
        return known[1]


def _seal(path: Path) -> Seal | None:
    """None for links and whatever else is no plain file."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino) if stat.S_ISREG(facts.st_mode) else None
