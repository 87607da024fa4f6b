"""`laptime run`: someone's training script, unedited, run as Python would run it and recorded."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from laptime.errors import RunExists, ScriptError
from laptime.measure.division import Granularity
from laptime.measure.scripts.finder import ScriptRecorder


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
    if (out / "run.json").exists():
        raise RunExists(f"{out} already holds a run; give another directory")
    config = {"script": str(path), "arguments": list(arguments)}
    watcher = ScriptRecorder(
        out, every_step=every_step, budget=budget, layers=layers, kernels=kernels, config=config
    )
    with _as_python_would(path, arguments, module):
        status = _execute(path, module, watcher)
    if watcher.recorder is None and status == 0:
        why = watcher.failure or (
            f"{path} called no network with parameters (calls in other processes and inside a compiled "
            "function are not seen)"
        )
        sys.stderr.write(f"laptime: nothing was recorded: {why}\n")
    return status


@contextmanager
def _as_python_would(path: Path, arguments: Sequence[str], module: bool) -> Iterator[None]:
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, "" if module else str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search


def _execute(path: Path, module: bool, watcher: ScriptRecorder) -> int:
    try:
        with watcher.watching():
            if module:
                runpy.run_module(str(path), run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        return _exit_status(stop)
    except KeyboardInterrupt:
        return 130  # the shell's number for Ctrl-C
    except Exception as error:
        _print_traceback(error)
        return 1
    return 0


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
