"""Runs a training script twice, bare and under `laptime run`, each in a process forked from a warm one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

import laptime
from laptime.model import ACCOUNTS, Account, Step
from laptime.runs import Run

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

    @cached_property
    def steps(self) -> list[Step]:
        """Every step of it."""
        return list(self.run.steps)

    @property
    def stages(self) -> str:
        """The stages in order, such as `8 train, 2 validation`."""
        groups = groupby(str(step.stage) for step in self.steps)
        return ", ".join(f"{sum(1 for _ in steps)} {stage}" for stage, steps in groups)

    @property
    def layer_names(self) -> list[str]:
        """The layers of all networks, in order."""
        return [layer.name for layer in self.run.network]

    def of(self, stage: str) -> list[Step]:
        """The steps of one stage."""
        return [step for step in self.steps if step.stage == stage]

    def phases(self, layer: str, stage: str = "train") -> set[str]:
        """The phases that a layer has times of."""
        rows = self.run.layer_table.to_pylist()
        return {row["phase"] for row in rows if (row["layer"], row["stage"]) == (layer, stage)}

    def calls(self, layer: str, phase: str) -> list[int]:
        """How often a layer was called in a phase, step by step."""
        rows = self.run.layer_table.to_pylist()
        return [row["calls"] for row in rows if (row["layer"], row["phase"]) == (layer, phase)]

    def layer_seconds(self, phase: str) -> dict[str, list[float]]:
        """Seconds of every layer in a phase, step by step."""
        seconds: dict[str, list[float]] = {}
        for row in self.run.layer_table.to_pylist():
            if row["phase"] == phase:
                seconds.setdefault(row["layer"], []).append(row["seconds"])
        return seconds

    def books(self) -> str:
        """What each account held, for the message of a failed test."""
        lines = [f"{self.stages}; notes: {self.run.summary['notes']}"]
        for stage in ("train", "validation"):
            held = [f"{account} {1e3 * spent(self.of(stage), account):.1f}" for account in ACCOUNTS]
            lines.append(f"{stage}, ms: {', '.join(held)}")
        return "\n".join(lines)


def spent(steps: list[Step], *accounts: Account) -> float:
    """Seconds of these accounts in these steps together."""
    return sum(step.accounts()[account] or 0.0 for step in steps for account in accounts)


class Warm:
    """A process that forks itself for every script; started when first needed."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None

    def case(self, name: str, arguments: list[str], directory: Path) -> Case:
        """Run one of the scripts both ways, each in a folder of `directory`."""
        out = directory / "run"
        bare = self.python(name, arguments, directory / "bare")
        recorded = self.laptime_run(name, arguments, directory / "recorded", out=out)
        return Case(bare=bare, recorded=recorded, out=out)

    def python(self, name: str, arguments: list[str], directory: Path) -> Ended:
        """As `python script.py arguments`."""
        return self._run([str(SCRIPTS / f"{name}.py"), *arguments], directory, recorded=False)

    def laptime_run(self, name: str, arguments: list[str], directory: Path, *, out: Path) -> Ended:
        """As `laptime run script.py arguments`, with the layers of every step."""
        command = ["laptime", "run", "--every-step", "--out", str(out)]
        return self._run([*command, str(SCRIPTS / f"{name}.py"), *arguments], directory, recorded=True)

    def close(self) -> None:
        """End the warm process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _run(self, argv: list[str], directory: Path, *, recorded: bool) -> Ended:
        directory.mkdir()
        stdout, stderr = directory.with_suffix(".out"), directory.with_suffix(".err")
        order = {
            "argv": argv,
            "recorded": recorded,
            "directory": str(directory),
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        status = self._give(json.dumps(order))
        return Ended(status=status, stdout=stdout.read_text(), stderr=stderr.read_text())

    def _give(self, order: str) -> int:
        if self._process is None:
            command = [sys.executable, HERE / "warm.py", *self._modules]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline()
        assert status, "the warm process has ended; its standard error says why"
        return int(status)


@contextmanager
def warm(*modules: str) -> Iterator[Warm]:
    """A warm process that has imported these modules too, ended afterwards."""
    process = Warm(*modules)
    try:
        yield process
    finally:
        process.close()
