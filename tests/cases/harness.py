"""Runs a training script twice, bare and under `laptime run`, each in a process forked from a warm one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import laptime
from laptime.store import Run

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
SOURCE = Path(laptime.__file__).resolve().parents[1]  # the children's laptime is the one under test
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ENVIRONMENT = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(SOURCE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """What a script tells at its end: a digest of its weights."""
        return self.stdout.splitlines()[-1] if self.stdout else ""

    @property
    def from_laptime(self) -> list[str]:
        """The lines in which laptime speaks up by itself."""
        return [line for line in self.stderr.splitlines() if line.startswith("laptime: ")]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script that was run twice, and what was recorded of it."""

    bare: Ended
    recorded: Ended
    out: Path

    @property
    def has_run(self) -> bool:
        """Whether anything was recorded."""
        return (self.out / "run.json").exists()

    @cached_property
    def run(self) -> Run:
        """The run that `laptime run` wrote."""
        assert self.has_run, f"nothing was recorded; standard error was\n{self.recorded.stderr}"
        return laptime.load(self.out)


class Warm:
    """A process that forks itself for every script; started when first needed."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None

    def run(self, argv: list[str], directory: Path, *, recorded: bool) -> Ended:
        """Run a script, or laptime's command line, in a folder of `directory`."""
        name = "recorded" if recorded else "bare"
        work, stdout, stderr = (directory / f"{name}{ending}" for ending in ("", ".out", ".err"))
        work.mkdir()
        order = {
            "argv": argv,
            "recorded": recorded,
            "directory": str(work),
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        status = self._give(json.dumps(order))
        return Ended(status=status, stdout=stdout.read_text(), stderr=stderr.read_text())

    def case(self, name: str, arguments: list[str], directory: Path) -> Case:
        """Run one of the scripts both ways."""
        script, out = str(SCRIPTS / f"{name}.py"), directory / "run"
        command = ["laptime", "run", "--every-step", "--out", str(out)]
        bare = self.run([script, *arguments], directory, recorded=False)
        recorded = self.run([*command, script, *arguments], directory, recorded=True)
        return Case(bare=bare, recorded=recorded, out=out)

    def close(self) -> None:
        """End the warm process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _give(self, order: str) -> int:
        if self._process is None:
            command = [sys.executable, HERE / "warm.py", *self._modules]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def warm(*modules: str) -> Iterator[Warm]:
    """A warm process that has imported these modules too, ended afterwards."""
    process = Warm(*modules)
    try:
        yield process
    finally:
        process.close()
