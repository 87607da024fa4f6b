"""`laptime run`: someone's training script, unedited, run as Python would run it and recorded.

Child processes that train are recorded as ranks of the same run. The parent sets environment variables, and
puts a start-up file on PYTHONPATH (`startup/`) that begins a recording in a child where it makes its first
optimizer. A forked child has its parent's watcher with it.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import os
import runpy
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Unpack

from laptime.bridges.callbacks import RecordOptions
from laptime.bridges.ranks import Launched, Seat, launched
from laptime.bridges.scripts.discovery import ScriptRecorder
from laptime.errors import RunExists, ScriptError
from laptime.files.read import read_text
from laptime.recorder.backends import environment
from laptime.runs import RunWriter, live_parts
from laptime.runs.writer import set_status

VARIABLE = "LAPTIME_RUN"
STARTUP = Path(__file__).parent / "startup"
EARLY = 100  # among what multiprocessing does at the end of a child: before its queues are closed
_LAPTIME = str(Path(__file__).resolve().parents[2]) + os.sep


def run_script(
    path: Path,
    arguments: Sequence[str],
    *,
    out: Path,
    module: bool = False,
    **options: Unpack[RecordOptions],
) -> int:
    """Run a script (or a module, as `python -m`) as if by Python, recorded; returns its exit status.

    Child processes are told the options in JSON.
    """
    if not module and not path.is_file():
        raise ScriptError(
            f"there is no script {path}; give the path of a Python file, or -m and a module name"
        )
    here = launched()
    rank = here.rank if here is not None else 0
    if rank == 0 and (out / "run.json").exists():
        raise RunExists(f"{out} already holds a run; give another directory")
    options["config"] = {"script": str(path), "arguments": list(arguments)}
    process = os.getpid()
    with _meeting_place(here) as folder:
        shared = SharedRun(out=out, folder=folder, options=options)
        watcher = shared.recorder(agreed=here is not None)
        with shared.expecting():
            status = _execute(path, arguments, module, watcher)
        if rank == 0 and os.getpid() == process:  # a fork of the script ends here, too
            Seat(folder).wait()
            shared.complete("failed" if status else "finished")
            lines = shared.unrecorded()
            if watcher.recorder is None and status == 0 and not (out / "run.json").exists():
                unseen = "called no network with parameters (calls inside a compiled function are not seen)"
                lines.append(f"nothing was recorded: {watcher.failure or f'{path} {unseen}'}")
            for line in lines:
                with suppress(ValueError, OSError):  # the script may have closed it
                    print(f"laptime: {line}", file=sys.stderr)  # noqa: T201 (at the end, and not the script's)
    return status


def run_unrecorded(path: Path, arguments: Sequence[str], *, module: bool = False) -> int:
    """Run a script as if by Python and nothing else: for a rank that has no run to join."""
    return _execute(path, arguments, module, None)


@contextmanager
def _meeting_place(here: Launched | None) -> Iterator[Path]:
    """A folder that all processes of the run see: the launcher's, or one of our own for this time."""
    if here is not None and here.folder is not None:
        yield here.folder
        return
    process, folder = os.getpid(), Path(tempfile.mkdtemp(prefix="laptime-"))
    try:
        yield folder
    finally:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)


def _execute(path: Path, arguments: Sequence[str], module: bool, watcher: ScriptRecorder | None) -> int:
    """Run the script as Python would; its exit status."""
    main = ModuleType("__main__")  # what the script has made is there until its books are closed
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, "" if module else str(path.resolve().parent))
    try:
        with watcher.watching() if watcher is not None else nullcontext():
            if module:
                vars(main).update(runpy.run_module(str(path), run_name="__main__", alter_sys=True))
            else:
                _run_file(path.absolute(), main)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)  # noqa: T201 (what Python itself does with sys.exit("text"))
        return 1
    except BaseException as error:
        _print_traceback(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1  # the shell's number for Ctrl-C
    finally:
        sys.argv, sys.path[:] = argv, search
    return 0


def _run_file(path: Path, main: ModuleType) -> None:
    """As `python path` does: `__file__` is absolute, `sys.argv[0]` as it was typed, which runpy changes."""
    main.__file__, main.__builtins__ = str(path), builtins  # type: ignore[attr-defined]
    before, sys.modules["__main__"] = sys.modules["__main__"], main
    try:
        with io.open_code(str(path)) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before


def _print_traceback(error: BaseException) -> None:
    """As Python shows it, or the script's own `sys.excepthook`; without the frames of laptime and runpy.

    What laptime itself raised within the script keeps its frames.
    """
    chain = [error]
    for raised in chain:
        frames = [*_frames(raised.__traceback__)]
        ours = [
            frame.tb_frame.f_code.co_filename.startswith((_LAPTIME, "<frozen runpy>")) for frame in frames
        ]
        last = max((place for place, own in enumerate(ours) if not own), default=len(frames))
        kept = [frame for place, frame in enumerate(frames) if not ours[place] or place > last]
        for frame, after in zip(kept, [*kept[1:], None], strict=False):
            frame.tb_next = after
        raised.__traceback__ = kept[0] if kept else None
        others = (raised.__cause__, raised.__context__)
        chain += [other for other in others if other is not None and other not in chain]
    with suppress(Exception):  # the script may have closed standard error
        sys.excepthook(type(error), error, error.__traceback__)


def _frames(frame: TracebackType | None) -> Iterator[TracebackType]:
    while frame is not None:
        yield frame
        frame = frame.tb_next


# -- child processes --------------------------------------------------------------------------------------


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
            seat=Seat(self.folder, agreed=agreed),
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
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    # -- in a child ----------------------------------------------------------------------------------------

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
        reasons = Counter(read_text(file) for file in sorted(self.folder.glob("laptime-unrecorded-*")))
        return [
            f"{number} child {'process' if number == 1 else 'processes'} trained and "
            f"{'was' if number == 1 else 'were'} not recorded: {reason}"
            for reason, number in reasons.items()
        ]

    def complete(self, status: str) -> None:
        """Ranks have written rows and rank 0 never trained: without a `run.json` nobody could read them.

        A rank may have ended well as far as it knew, and the script failed by it.
        """
        if status == "failed":
            set_status(self.out, status, instead_of="finished")
        if live_parts(self.out / "steps") and not (self.out / "run.json").exists():
            config = self.options.get("config", {})
            writer = RunWriter.create(self.out, config=config, environment=environment())
            writer.close(status, {"notes": ["rank 0 trained nothing, so the layers are not described"]})


def begin() -> None:
    """Record this process to its end: called by the start-up file, in a child that makes an optimizer."""
    word = json.loads(os.environ[VARIABLE])
    shared = SharedRun(out=Path(word["out"]), folder=Path(word["folder"]), options=word["options"])
    watcher = shared.recorder(child=True)
    watcher.begin()
    _at_end(watcher)


def _at_end(watcher: ScriptRecorder) -> None:
    """Close the run when the process ends: children of multiprocessing never reach `atexit`.

    Ray kills its workers. Ray Train does so once the thread that trains has ended, so there that is the end.
    """

    def end() -> None:
        watcher.end(sys.exc_info()[1] or getattr(sys, "last_value", None))

    atexit.register(end)
    Finalize(None, end, exitpriority=EARLY)
    thread = threading.current_thread()
    if thread is not threading.main_thread() and _is_ray_actor():
        delete = thread._delete  # type: ignore[attr-defined]

        def last() -> None:  # of what a thread does, while others still see it alive
            end()
            delete()

        thread._delete = last  # type: ignore[attr-defined]


def _is_ray_actor() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and bool(ray.get_runtime_context().get_actor_id())
