"""`laptime run`: someone's training script, unedited, run as Python would run it and recorded."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType

from laptime.bridges.launchers import Launched, launched
from laptime.bridges.ranks import Seats
from laptime.bridges.scripts.children import SharedRun
from laptime.bridges.scripts.discovery import ScriptRecorder
from laptime.errors import RunExists, ScriptError
from laptime.recorder.layer_division import Granularity


def run_script(
    path: Path,
    arguments: Sequence[str],
    *,
    out: Path,
    module: bool = False,
    every_step: bool = False,
    budget: float = 0.02,
    layers: Granularity = "layer",
    kernels: Sequence[int] = (),
) -> int:
    """Run a script (or a module, as `python -m`) as if by Python, recorded; returns its exit status."""
    if not module and not path.is_file():
        raise ScriptError(
            f"there is no script {path}; give the path of a Python file, or -m and a module name"
        )
    here = launched()
    rank = here.rank if here is not None else 0
    if rank == 0 and (out / "run.json").exists():
        raise RunExists(f"{out} already holds a run; give another directory")
    config = {"script": str(path), "arguments": list(arguments)}
    options = {
        "every_step": every_step,
        "budget": budget,
        "layers": layers,
        "kernels": list(kernels),
        "config": config,
    }
    process = os.getpid()
    with _meeting_place(here) as folder:
        shared = SharedRun(out=out, folder=folder, options=options)
        watcher = shared.recorder(agreed=here is not None)
        with _as_python_would(path, arguments, module), shared.expecting():
            status = _execute(path, module, watcher)
        if rank == 0 and os.getpid() == process:  # a fork of the script ends here, too
            Seats(folder).wait()
            shared.complete("failed" if status else "finished")
            for line in shared.unrecorded():
                _say(line)
            _tell_silence(path, out, watcher, status)
    return status


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


def run_unrecorded(path: Path, arguments: Sequence[str], *, module: bool = False) -> int:
    """Run a script as if by Python and nothing else: for a rank that has no run to join."""
    with _as_python_would(path, arguments, module):
        return _execute(path, module, None)


def _tell_silence(path: Path, out: Path, watcher: ScriptRecorder, status: int) -> None:
    """Say so if a script went well and nothing of it was recorded."""
    if watcher.recorder is None and status == 0 and not (out / "run.json").exists():
        why = watcher.failure or (
            f"{path} called no network with parameters (calls inside a compiled function are not seen)"
        )
        _say(f"nothing was recorded: {why}")


def _say(line: str) -> None:
    with suppress(ValueError, OSError):  # the script may have closed it
        print(f"laptime: {line}", file=sys.stderr)  # noqa: T201 (once, at the end, and not the script's)


@contextmanager
def _as_python_would(path: Path, arguments: Sequence[str], module: bool) -> Iterator[None]:
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, "" if module else str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search


def _execute(path: Path, module: bool, watcher: ScriptRecorder | None) -> int:
    main = ModuleType("__main__")  # what the script has made is there until its books are closed
    try:
        with watcher.watching() if watcher is not None else nullcontext():
            if module:
                vars(main).update(runpy.run_module(str(path), run_name="__main__", alter_sys=True))
            else:
                _run_file(path.absolute(), main)
    except SystemExit as stop:
        return _exit_status(stop)
    except KeyboardInterrupt:
        return 130  # the shell's number for Ctrl-C
    except Exception as error:
        _print_traceback(error)
        return 1
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


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)  # noqa: T201 (what Python itself does with sys.exit("text"))
    return 1


def _print_traceback(error: BaseException) -> None:
    """The script's own traceback, without the frames of laptime and runpy above it."""
    frames = traceback.TracebackException.from_exception(error)
    first = next(
        (i for i, f in enumerate(frames.stack) if "runpy" not in f.filename and __file__ != f.filename),
        len(frames.stack),
    )
    frames.stack = traceback.StackSummary.from_list(frames.stack[first:])
    sys.stderr.writelines(frames.format())
