"""The runs of a folder by their path below it. Only `run.json` of each is read, and again when it changed.

A request names a run; it is looked up here and never joined to a path, so that nothing else can be opened.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from laptime.errors import LaptimeError
from laptime.files.text import first_line, one_line, text_of
from laptime.runs import Run, find_runs
from laptime.runs.run import RUN_FILE, read_document

Seal = tuple[int, int, int]  # when it was written, its size, its inode: run.json is replaced, never edited


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run of the folder; `reason` says in one line why it cannot be read."""

    name: str  # its path below the folder, with slashes
    path: Path
    seal: Seal
    document: dict[str, Any] | None = None
    reason: str = ""

    def run(self) -> Run | None:
        """The run, without reading its tables. Created at each call, since its status may change."""
        return None if self.document is None else Run(self.path, self.document)


class Index:
    """The runs below a folder, searched at every request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, RunEntry] = {}
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

    def entries(self) -> list[RunEntry]:
        """Every run, by name."""
        by_name: dict[str, RunEntry] = {}
        with self._lock:
            for path in find_runs(self.folder):
                entry = self._read(self._name(path), path)
                if entry is not None:
                    by_name[entry.name] = entry
            self._known = by_name
        return list(by_name.values())

    def find(self, name: str) -> RunEntry | None:
        """The run of that name as it is now; None for whatever is not in the index."""
        known = self._known.get(name)
        if known is None:
            return next((listed for listed in self.entries() if listed.name == name), None)
        if known.path.resolve() != self.folder.resolve() / known.path.relative_to(self.folder):
            return None  # a link has taken its place
        with self._lock:
            entry = self._read(name, known.path)
            if entry is not None:
                self._known[name] = entry
        return entry

    def _name(self, path: Path) -> str:
        below = path.relative_to(self.folder)
        return text_of(below.as_posix() if below.parts else self.folder.resolve().name)

    def _read(self, name: str, path: Path) -> RunEntry | None:
        """From what is known, if it has not changed; None where it is gone, or a link to somewhere else."""
        try:
            facts = os.lstat(path / RUN_FILE)
        except OSError:
            return None
        if not stat.S_ISREG(facts.st_mode):
            return None
        seal = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        known = self._known.get(name)
        if known is not None and (known.path, known.seal) == (path, seal):
            return known
        try:
            entry = RunEntry(name=name, path=path, seal=seal, document=read_document(path))
            entry.run()
            return entry
        except LaptimeError as error:
            reason = str(error)
        except RecursionError:
            reason = f"{one_line(path / RUN_FILE)} is nested too deep to be a run; restore it from a copy"
        except Exception as error:  # whatever is in one run, the list has the others
            reason = f"{one_line(path / RUN_FILE)} is damaged ({first_line(error)}); restore it from a copy"
        return RunEntry(name=name, path=path, seal=seal, reason=self.below(reason))
