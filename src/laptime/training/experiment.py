"""Experiments: one configuration repeated, swept over a grid, and split into folds; a run directory for each.

Every trial is a process of its own: it inherits no threads, memory or slow-down from the one before, and if
it dies the others go on. A trial that has finished is not run again.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import ConfigError, LaptimeError
from laptime.files.text import one_line
from laptime.runs import Run, discard, load
from laptime.training import checkpoint, resume_checks
from laptime.training.config import Config
from laptime.training.config.notation import full_key
from laptime.training.stop_signals import INTERRUPTED, Relay


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of an experiment: what differs from the others, and where it goes."""

    name: str
    out: Path
    point: tuple[str, ...] = ()  # of the grid
    settings: tuple[str, ...] = ()  # of the point, and the seed of a repetition
    fold: int | None = None

    def run(self) -> Run | None:
        """The run as it is on disk; None if there is none yet."""
        try:
            return load(self.out)
        except LaptimeError:
            return None

    @property
    def saved(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.out / checkpoint.FOLDER / checkpoint.LAST).exists()

    def done(self, config: Config, workers: int) -> bool:
        """Whether the trial has finished. A directory with the run of another training is refused."""
        run = self.run()
        if run is None:
            return False
        facts = {"workers": run.config["ranks"]} if "ranks" in run.config else {}
        changes = resume_checks.changed(run.config, config, facts, {"workers": workers})
        resume_checks.refuse_if_changed(self.out, changes)
        if run.status != "finished":
            return False
        further = resume_checks.longer(run.config, config)
        if further and not self.saved:
            raise ConfigError(f"{one_line(self.out)} has no checkpoint to go on from; use another --out")
        return not further


def grid(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """`["batch=64,128", "threads=1,2"]` as the settings of each point; the last key varies fastest.

    A key that is swept twice has the values of both.
    """
    axes: dict[str, list[str]] = {}
    names: dict[str, str] = {}  # as they were first written
    for sweep in sweeps:
        key, _, values = (part.strip() for part in sweep.partition("="))
        options = [value.strip() for value in values.split(",")]
        if not key or not all(options):
            raise ConfigError(f"--sweep {one_line(sweep)} is not key=value,value, such as batch=64,128")
        full = full_key(key, "--sweep")
        names.setdefault(full, key)
        axes.setdefault(full, []).extend(options)
    for full, options in axes.items():
        if len(set(options)) < len(options):
            twice = next(value for value in options if options.count(value) > 1)
            raise ConfigError(f"--sweep {one_line(names[full])} has {one_line(twice)} twice; leave one out")
    return list(
        itertools.product(
            *([f"{names[full]}={value}" for value in options] for full, options in axes.items())
        )
    )


def trials(out: Path, *, repeat: int, sweeps: Sequence[str], folds: int, seed: int) -> list[Trial]:
    """Every trial. Repetitions differ by their seed; repetitions of one point share a folder."""
    listed = []
    for point in grid(sweeps):
        place = out / _folder(point) if point else out
        for number in range(1, repeat + 1):
            again = (f"train.seed={seed + number - 1}",) if repeat > 1 else ()
            repetition = place / f"rep-{number}" if repeat > 1 else place
            for fold in range(1, folds + 1) if folds else (None,):
                where = repetition if fold is None else repetition / f"fold-{fold}"
                listed.append(
                    Trial(
                        name=str(where.relative_to(out)) if where != out else out.name,
                        out=where,
                        point=point,
                        settings=point + again,
                        fold=fold,
                    )
                )
    return listed


def _folder(point: Sequence[str]) -> str:
    """A point of the grid as a name that every file system takes."""
    return "+".join(point).replace("/", "-").replace("\\", "-").replace(" ", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How a trial ended."""

    trial: Trial
    status: str  # done before, finished, failed
    reason: str = ""


def conduct(
    chosen: Sequence[Trial],
    command: Callable[[Trial, bool], Sequence[str]],
    *,
    configs: Sequence[Config],
    workers: int = 1,
    resume: bool,
    say: Callable[[str], None] = lambda _: None,
    tell: Callable[[Trial, int, int], None] = lambda *_: None,
) -> list[TrialResult]:
    """Run the trials one after the other; `command(trial, resume)` is the command line of a trial.

    A trial that fails does not keep the others from running. `configs` are what they train.
    """
    taken = [trial for trial in chosen if trial.out.exists() and any(trial.out.iterdir())]
    if taken and not resume:
        raise ConfigError(f"{taken[0].out} holds a run already; --resume goes on where it stopped")
    done = [trial.done(config, workers) for trial, config in zip(chosen, configs, strict=True)]
    results = []
    relay = Relay(say)
    with relay.listening():
        for number, trial in enumerate(chosen, start=1):
            if done[number - 1]:
                results.append(TrialResult(trial=trial, status="done before"))
                continue
            tell(trial, number, len(chosen))
            goes_on = trial.saved
            if not goes_on and not _cleared(trial.out):
                reason = f"{trial.out} holds files that are none of laptime's; move them away"
                results.append(TrialResult(trial=trial, status="failed", reason=reason))
                continue
            results.append(_conducted(trial, command(trial, goes_on), relay))
    return results


def _cleared(out: Path) -> bool:
    """Whether the directory is empty, or held only an aborted start, which is removed."""
    return not out.exists() or not any(out.iterdir()) or discard(out)


def _conducted(trial: Trial, command: Sequence[str], relay: Relay) -> TrialResult:
    with tempfile.TemporaryFile() as said:
        status = relay.wait(relay.start(command, stdout=subprocess.DEVNULL, stderr=said))
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
    relay.check()
    if status in INTERRUPTED:  # a signal to that process alone
        raise INTERRUPTED[status]()
    reason = lines[-1].removeprefix("laptime: ") if status and lines else ""
    return TrialResult(trial=trial, status="failed" if status else "finished", reason=reason)


def spreads(results: Sequence[TrialResult], rows: Sequence[Mapping[str, Any]]) -> list[Spread]:
    """Mean and standard deviation of what repetitions and folds learned, for each point of the grid."""
    listed = []
    for point in dict.fromkeys(result.trial.point for result in results):
        mine = [row for result, row in zip(results, rows, strict=True) if result.trial.point == point]
        good = [row for row in mine if row["status"] != "failed"]
        values = {}
        for stage in ("train", "validation"):
            for key in ("loss", "top1"):
                known = [row[stage][key] for row in good if row[stage][key] is not None]
                if len(known) > 1:
                    values[f"{stage}_{key}"] = statistics.fmean(known), statistics.stdev(known)
        if values:
            listed.append(Spread(point=point, trials=len(good), values=values))
    return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and standard deviation over trials that differ only by seed or fold."""

    point: tuple[str, ...]
    trials: int
    values: dict[
        str, tuple[float, float]
    ]  # mean and standard deviation by `train_loss`, `validation_top1`, …


def python() -> list[str]:
    """This interpreter, running laptime."""
    return [sys.executable, "-m", "laptime"]
