"""Experiments: one configuration repeated, swept over a grid, and split into folds; a run directory for each.

Every trial is a process of its own, here or on a node of a Ray cluster: it inherits no threads, memory or
slow-down from the one before, and if it dies the others go on. A trial that has finished is not run again.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from laptime.errors import ConfigError, LaptimeError
from laptime.files.text import one_line
from laptime.runs import Run, discard, load
from laptime.training import checkpoint
from laptime.training.config import Config
from laptime.training.config.reading import full_key
from laptime.training.launch.ray_cluster import check_nodes, check_reach, check_room, connected
from laptime.training.launch.ray_process import NodeTask, RayProcess
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
        return (self.out / checkpoint.LAST).exists()

    def done(self, config: Config, workers: int) -> bool:
        """Whether the trial has finished. A directory with the run of another training is refused."""
        run = self.run()
        if run is None:
            return False
        facts = {"workers": run.config["ranks"]} if "ranks" in run.config else {}
        checkpoint.refuse_if_changed(self.out, run.config, config, facts=facts, now={"workers": workers})
        if run.status != "finished":
            return False
        further = checkpoint.longer(run.config, config)
        if further and not self.saved:
            raise ConfigError(f"{one_line(self.out)} has no checkpoint to go on from; use another --out")
        return not further


def grid(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """`["batch=64,128", "threads=1,2"]` as the settings of each point; the last key varies fastest.

    A key that is swept twice has the values of both.
    """
    axes: dict[str, tuple[str, list[str]]] = {}  # by full key: as it was first written, and its values
    for sweep in sweeps:
        key, _, values = (part.strip() for part in sweep.partition("="))
        options = [value.strip() for value in values.split(",")]
        if not key or not all(options):
            raise ConfigError(f"--sweep {one_line(sweep)} is not key=value,value, such as batch=64,128")
        axes.setdefault(full_key(key, "--sweep"), (key, []))[1].extend(options)
    for key, options in axes.values():
        if twice := [value for value in options if options.count(value) > 1]:
            raise ConfigError(f"--sweep {one_line(key)} has {one_line(twice[0])} twice; leave one out")
    return list(
        itertools.product(*([f"{key}={value}" for value in options] for key, options in axes.values()))
    )


def trials(out: Path, *, repeat: int, sweeps: Sequence[str], folds: int, seed: int) -> list[Trial]:
    """Every trial. Repetitions differ by their seed; repetitions of one point share a folder."""
    listed = []
    numbers, parts = range(1, repeat + 1), range(1, folds + 1) if folds else (None,)
    for point, number, fold in itertools.product(grid(sweeps), numbers, parts):
        # A point of the grid as a name that every file system takes.
        folder = Path("+".join(point).replace("/", "-").replace("\\", "-").replace(" ", ""))
        settings = point
        if repeat > 1:
            folder /= f"rep-{number}"
            settings += (f"train.seed={seed + number - 1}",)
        if fold is not None:
            folder /= f"fold-{fold}"
        name = str(folder) if folder.parts else out.name
        listed.append(Trial(name=name, out=out / folder, point=point, settings=settings, fold=fold))
    return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How a trial ended."""

    trial: Trial
    status: str  # done before, finished, failed
    reason: str = ""


# -- running them --------------------------------------------------------------------------------------------


class TrialProcess(Protocol):
    """A trial that was started, here or elsewhere."""

    @property
    def reason(self) -> str:
        """Why it failed, in a line."""

    def poll(self) -> int | None:
        """The status; None while it runs."""


Begun = Callable[[str], None]  # a trial is placed; where, if not here
Start = Callable[[Trial, bool, Relay, Begun], TrialProcess]


def conduct(
    chosen: Sequence[Trial],
    start: Start,
    *,
    at_once: int = 1,
    configs: Sequence[Config],
    workers: int = 1,
    resume: bool,
    say: Callable[[str], None] = lambda _: None,
    tell: Callable[[Trial, int, int, str], None] = lambda *_: None,
) -> list[TrialResult]:
    """Run the trials, so many at once; `start(trial, resume, …)` places one.

    A trial that fails does not keep the others from running. `configs` are what they train.
    """
    taken = [trial for trial in chosen if _holds_files(trial.out)]
    if taken and not resume:
        raise ConfigError(f"{taken[0].out} holds a run already; --resume goes on where it stopped")
    done = [trial.done(config, workers) for trial, config in zip(chosen, configs, strict=True)]
    results = {place: TrialResult(trial=chosen[place], status="done before") for place in range(len(chosen))}
    waiting = [place for place in range(len(chosen)) if not done[place]]
    running: dict[int, TrialProcess] = {}
    relay = Relay(say)
    with relay.listening():
        while running or (waiting and not relay.times):
            while waiting and len(running) < at_once and not relay.times:
                place = waiting.pop(0)
                trial = chosen[place]
                # Without a checkpoint the directory is empty, or holds only an aborted start.
                if trial.saved or not _holds_files(trial.out) or discard(trial.out):
                    begun = partial(tell, trial, place + 1, len(chosen))
                    running[place] = start(trial, trial.saved, relay, begun)
                else:
                    reason = f"{trial.out} holds files that are none of laptime's; move them away"
                    results[place] = TrialResult(trial=trial, status="failed", reason=reason)
            relay.pause()
            for place in [place for place, process in running.items() if process.poll() is not None]:
                results[place] = _ended(chosen[place], running.pop(place), relay)
    relay.check()
    return list(results.values())


def _holds_files(out: Path) -> bool:
    return out.exists() and any(out.iterdir())


def _ended(trial: Trial, process: TrialProcess, relay: Relay) -> TrialResult:
    status = process.poll() or 0
    if status in INTERRUPTED and not relay.times:  # a signal to that process alone
        raise INTERRUPTED[status]()
    reason = process.reason if status else ""
    return TrialResult(trial=trial, status="failed" if status else "finished", reason=reason)


class _LocalTrial:
    """A trial in a process of this machine."""

    def __init__(self, command: Sequence[str], relay: Relay) -> None:
        self.reason = ""  # the last line that it said
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._process = relay.start(command, stdout=subprocess.DEVNULL, stderr=self._said)

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None and not self._said.closed:
            with self._said:
                self._said.seek(0)
                lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
            self.reason = lines[-1].removeprefix("laptime: ") if lines else ""
        return status


def here(command: Callable[[Trial, bool], Sequence[str]]) -> Start:
    """Trials as processes of this machine; `command(trial, resume)` is the command line of one."""

    def start(trial: Trial, goes_on: bool, relay: Relay, begun: Begun) -> TrialProcess:
        begun("")
        return _LocalTrial(command(trial, goes_on), relay)

    return start


@contextmanager
def on_ray(address: str, tasks: Mapping[Path, NodeTask], *, laptime: str) -> Iterator[Start]:
    """Trials on the nodes of a Ray cluster, placed by its scheduler; `tasks` by the trials' directories."""
    check_reach(address)
    with connected(address):
        check_nodes(laptime)
        ready = {out: replace(task, need=check_room(task.need)) for out, task in tasks.items()}

        def start(trial: Trial, goes_on: bool, relay: Relay, begun: Begun) -> TrialProcess:
            task = ready[trial.out]
            if goes_on:
                task = replace(task, arguments=(*task.arguments, "--resume"))
            process = RayProcess(task, begun=begun)
            relay.adopt(process)
            return process

        yield start


# -- what came of it -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and standard deviation over trials that differ only by seed or fold."""

    point: tuple[str, ...]
    trials: int
    values: dict[str, tuple[float, float]]  # by `train_loss`, `validation_top1`, …


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


def python() -> list[str]:
    """This interpreter, running laptime."""
    return [sys.executable, "-m", "laptime"]
