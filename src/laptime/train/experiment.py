"""Experiments: one configuration repeated, swept over a grid, and split into folds; a run directory for each.

Every trial is a process of its own, so that none inherits threads, memory or a slow-down from the one before,
and one that dies takes nothing along. What is done is not done again.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laptime.errors import ConfigError, LaptimeError
from laptime.store import Run, discard, load
from laptime.train import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of an experiment: what differs from the others, and where it goes."""

    name: str
    out: Path
    settings: tuple[str, ...] = ()
    fold: int | None = None

    def run(self) -> Run | None:
        """The run as it is on disk; None if there is none yet."""
        try:
            return load(self.out)
        except LaptimeError:
            return None

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        run = self.run()
        return run is not None and run.status == "finished"


def grid(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """`["batch=64,128", "threads=1,2"]` as the settings of each point; a last value varies fastest."""
    axes: list[list[str]] = []
    for sweep in sweeps:
        key, _, values = sweep.partition("=")
        found = [value.strip() for value in values.split(",") if value.strip()]
        if not key.strip() or not found:
            raise ConfigError(f"--sweep {sweep} is not key=value,value, such as batch=64,128")
        if len(set(found)) < len(found):
            raise ConfigError(f"--sweep {sweep} has a value twice; leave one out")
        axes.append([f"{key.strip()}={value}" for value in found])
    return list(itertools.product(*axes))


def trials(out: Path, *, repeat: int, sweeps: Sequence[str], folds: int, seed: int) -> list[Trial]:
    """Every trial. Repetitions differ by their seed; several at one point have a folder around them."""
    found = []
    for point in grid(sweeps):
        place = out / _folder(point) if point else out
        for number in range(1, repeat + 1):
            again = (f"train.seed={seed + number - 1}",) if repeat > 1 else ()
            one = place / f"rep-{number}" if repeat > 1 else place
            for fold in range(1, folds + 1) if folds else (None,):
                where = one if fold is None else one / f"fold-{fold}"
                found.append(
                    Trial(
                        name=str(where.relative_to(out)) if where != out else out.name,
                        out=where,
                        settings=point + again,
                        fold=fold,
                    )
                )
    return found


def _folder(point: Sequence[str]) -> str:
    """A point of the grid as a name that every file system takes."""
    return "+".join(point).replace("/", "-").replace("\\", "-").replace(" ", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a trial ended."""

    trial: Trial
    status: str  # done before, finished, failed
    reason: str = ""


def conduct(
    chosen: Sequence[Trial],
    command: Callable[[Trial, bool], Sequence[str]],
    *,
    resume: bool,
    environment: Mapping[str, str] | None = None,
    tell: Callable[[Trial, int, int], None] = lambda *_: None,
) -> list[Ended]:
    """Run the trials one after the other; `command` gives the process of one, told whether to go on.

    A trial that fails does not keep the others from running.
    """
    taken = [trial for trial in chosen if trial.out.exists() and any(trial.out.iterdir())]
    if taken and not resume:
        raise ConfigError(f"{taken[0].out} holds a run already; --resume goes on where it stopped")
    ended = []
    for number, trial in enumerate(chosen, start=1):
        if trial.finished:
            ended.append(Ended(trial=trial, status="done before"))
            continue
        tell(trial, number, len(chosen))
        goes_on = (trial.out / checkpoint.FOLDER / checkpoint.LAST).exists()
        if trial.out.exists() and not goes_on and any(trial.out.iterdir()) and not discard(trial.out):
            reason = f"{trial.out} holds files that are none of laptime's; move them away"
            ended.append(Ended(trial=trial, status="failed", reason=reason))
            continue
        done = subprocess.run(
            command(trial, goes_on),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode in (130, -2):
            raise KeyboardInterrupt
        reason = done.stderr.strip().splitlines()[-1] if done.returncode and done.stderr.strip() else ""
        status = "failed" if done.returncode else "finished"
        ended.append(Ended(trial=trial, status=status, reason=reason))
    return ended


def python() -> list[str]:
    """This interpreter, running laptime."""
    return [sys.executable, "-m", "laptime"]
