"""Child processes of a script: those that train are recorded as ranks of the same run.

The parent sets environment variables, and puts a start-up file on PYTHONPATH (`startup/`) that begins a
recording in a child where it makes its first optimizer. A forked child has its parent's watcher with it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from laptime.bridges.ranks import Seats
from laptime.bridges.scripts.discovery import ScriptRecorder
from laptime.recorder.environment import environment
from laptime.runs import RunWriter, live_parts

VARIABLE = "LAPTIME_RUN"
STARTUP = Path(__file__).parent / "startup"
EARLY = 100  # among what multiprocessing does at the end of a child: before its queues are closed


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """A run that a script and its child processes share."""

    out: Path
    folder: Path  # where processes claim their ranks and say why they are not recorded
    options: Mapping[str, Any]

    def recorder(self, *, child: bool = False, agreed: bool = True) -> ScriptRecorder:
        """What follows this process. `agreed`: all processes of the run were given this directory."""
        return ScriptRecorder(
            self.out,
            seats=Seats(self.folder, agreed=agreed),
            on_fork=self._adopt,
            refused=self._note if child else None,
            **self.options,
        )

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Child processes that start meanwhile know of the run."""
        word = {"out": str(self.out), "folder": str(self.folder), "options": dict(self.options)}
        given = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
        os.environ[VARIABLE] = json.dumps(word)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STARTUP), given["PYTHONPATH"]]))
        try:
            yield
        finally:
            for name, value in given.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    # -- in a child ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record this process from here to its end."""
        watcher = self.recorder(child=True)
        watcher.begin()
        _at_end(watcher)

    def _adopt(self, watcher: ScriptRecorder) -> bool:
        """A forked child is about to train; whether what it inherited can follow it."""
        if watcher.recorder is not None:
            self._note("forked from a process that was being recorded")
            return False
        _at_end(watcher)
        return True

    def _note(self, reason: str) -> None:
        """Why this process is not recorded, for the parent to tell."""
        with suppress(OSError):
            (self.folder / f"laptime-unrecorded-{os.getpid()}").write_text(reason, "utf-8")

    # -- in the parent, at the end -------------------------------------------------------------------------

    def unrecorded(self) -> list[str]:
        """A line for each reason why processes that trained are missing."""
        reasons = Counter(
            file.read_text("utf-8") for file in sorted(self.folder.glob("laptime-unrecorded-*"))
        )
        return [
            f"{number} child {'process' if number == 1 else 'processes'} trained and "
            f"{'was' if number == 1 else 'were'} not recorded: {reason}"
            for reason, number in reasons.items()
        ]

    def complete(self, status: str) -> None:
        """Ranks have written rows and rank 0 never trained: without a `run.json` nobody could read them."""
        if live_parts(self.out / "steps") and not (self.out / "run.json").exists():
            config = self.options.get("config", {})
            writer = RunWriter.create(self.out, config=config, environment=environment())
            writer.close(status, {"notes": ["rank 0 trained nothing, so the layers are not described"]})


def begin() -> None:
    """Called by the start-up file, in a child that makes its first optimizer."""
    word = json.loads(os.environ[VARIABLE])
    SharedRun(out=Path(word["out"]), folder=Path(word["folder"]), options=word["options"]).begin()


def _at_end(watcher: ScriptRecorder) -> None:
    """Close the run when the process ends: children of multiprocessing never reach `atexit`."""
    mine = os.getpid()

    def end() -> None:
        if os.getpid() == mine:
            watcher.end(_status())

    atexit.register(end)
    Finalize(None, end, exitpriority=EARLY)


def _status() -> str:
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "finished"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
