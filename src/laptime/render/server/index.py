"""The runs and saved workloads of a folder, by their path below it; each file is read again when it changed.

A request names one; it is looked up here and never joined to a path, so that nothing else can be opened.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from laptime.errors import LaptimeError
from laptime.files.read import open_plain
from laptime.files.text import first_line, one_line, text_of
from laptime.model import Workload
from laptime.runs import Run, find_runs
from laptime.runs.document import RUN_FILE, read_document

FileState = tuple[int, int, int]  # when it was written, its size, its inode: files are replaced, never edited

_WORKLOAD_MARK = b'"laptime_workload"'  # which `Workload.save` writes first
_KEPT_WORKLOADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run of the folder; `reason` says in one line why it cannot be read."""

    name: str  # its path below the folder, with slashes
    path: Path
    state: FileState
    document: dict[str, Any] | None = None
    reason: str = ""

    def run(self) -> Run | None:
        """The run, without reading its tables. Created at each call, since its status may change."""
        return None if self.document is None else Run(self.path, self.document)


class Index:
    """What is below a folder, searched at every request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, RunEntry] = {}
        self._looked_at: dict[Path, tuple[FileState, bool]] = {}  # JSON files; whether they hold a workload
        self._saved: dict[str, Path] = {}
        self._load = lru_cache(_KEPT_WORKLOADS)(lambda path, _: Workload.load(path, inside=folder))
        self._lock = Lock()
        places = {one_line(path) for path in (folder, folder.absolute(), folder.resolve())} - {"/"}
        longest = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
        self._places = re.compile(rf"(?<![\w/.-])(?:{longest})/(?=\S)")
        self._itself = [place for place in places if place.startswith("/")]

    def below(self, text: str) -> str:
        """A message with paths relative to the folder, so that it does not reveal where the folder is."""
        text = self._places.sub("", text)
        for itself in self._itself:
            text = text.replace(itself, one_line(self.folder.resolve().name))
        return text

    def _name(self, path: Path) -> str:
        below = path.relative_to(self.folder)
        return text_of(below.as_posix() if below.parts else self.folder.resolve().name)

    def _is_linked(self, path: Path) -> bool:
        return path.resolve() != self.folder.resolve() / path.relative_to(self.folder)

    def entries(self) -> list[RunEntry]:
        """Every run, by name."""
        with self._lock:
            read = [self._read(self._name(path), path) for path in find_runs(self.folder)]
            self._runs = {entry.name: entry for entry in read if entry is not None}
            return list(self._runs.values())

    def find(self, name: str) -> RunEntry | None:
        """The run of that name as it is now; None for whatever is not in the index."""
        known = self._runs.get(name)
        if known is None:
            return next((listed for listed in self.entries() if listed.name == name), None)
        if self._is_linked(known.path):
            return None
        with self._lock:
            entry = self._read(name, known.path)
            if entry is not None:
                self._runs[name] = entry
        return entry

    def _read(self, name: str, path: Path) -> RunEntry | None:
        """From what is known, if it has not changed; None where it is gone, or a link to somewhere else."""
        state = _file_state(path / RUN_FILE)
        if state is None:
            return None
        known = self._runs.get(name)
        if known is not None and (known.path, known.state) == (path, state):
            return known
        try:
            entry = RunEntry(name=name, path=path, state=state, document=read_document(path))
            entry.run()
            return entry
        except LaptimeError as error:
            reason = str(error)
        except RecursionError:
            reason = f"{one_line(path / RUN_FILE)} is nested too deep to be a run; restore it from a copy"
        except Exception as error:  # whatever is in one run, the list has the others
            reason = f"{one_line(path / RUN_FILE)} is damaged ({first_line(error)}); restore it from a copy"
        return RunEntry(name=name, path=path, state=state, reason=self.below(reason))

    def workloads(self) -> list[str]:
        """The name of every saved workload, except those inside runs."""
        with self._lock:
            before, self._looked_at, self._saved = self._looked_at, {}, {}
            for directory, folders, names in os.walk(self.folder):
                if RUN_FILE in names:
                    folders.clear()
                    continue
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    path = Path(directory, name)
                    state = _file_state(path) if name.endswith(".json") and name[0] != "." else None
                    if state is None:
                        continue
                    known = before.get(path)
                    if known is None or known[0] != state:
                        known = state, self._holds_workload(path)
                    self._looked_at[path] = known
                    if known[1]:
                        self._saved[self._name(path)] = path
            return list(self._saved)

    def _holds_workload(self, path: Path) -> bool:
        try:
            with open_plain(path, inside=self.folder) as file:
                return _WORKLOAD_MARK in file.read(200)
        except OSError:
            return False

    def workload(self, name: str) -> Workload | None:
        """The workload of that name, the same object until its file changes; None where there is none."""
        if name not in self._saved or self._is_linked(self._saved[name]):
            self.workloads()  # the folder is not walked for every question, only for a name that is new
        path = self._saved.get(name)
        state = None if path is None else _file_state(path)
        return None if state is None else self._load(path, state)


def _file_state(path: Path) -> FileState | None:
    """None for links and whatever else is no plain file."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino) if stat.S_ISREG(facts.st_mode) else None
