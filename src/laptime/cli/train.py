"""`laptime train`: a configuration, trained and recorded; repeated, swept and spread over ranks as asked."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import EveryLayer, Json, Out, wrong
from laptime.cli.outcome import answer, print_out, say, show_run
from laptime.cli.progress import Tell, progress, waiting
from laptime.cli.quiet import quiet_torch
from laptime.cli.train_summary import UnfinishedRun, ending, learned, mean_line, next_command, status
from laptime.errors import TrainingError

if TYPE_CHECKING:
    from laptime.runs import Run
    from laptime.training.config.explain import Row
    from laptime.training.config.reading import Resolved
    from laptime.training.experiment import Trial, TrialResult
    from laptime.training.loop import Progress, TrainingLoop

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value: train.batch=64, or just batch=64."),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=V1,V2", help="Train once for each value; several make a grid."),
]


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML, YAML or XML file.")],
    settings: Settings = None,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, help="Train this often, with other seeds.")
    ] = None,
    sweep: Sweeps = None,
    profile: Annotated[bool, typer.Option("--profile/--no-profile", help="Time every layer.")] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that train together.")] = 1,
    out: Out = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every value and why it has it; train nothing.")
    ] = False,
    fold: Annotated[int | None, typer.Option("--fold", min=1, hidden=True)] = None,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Train a network as a configuration file says, and record where the time goes."""
    from laptime.training.config.reading import read_config

    given = [*(settings or []), *([] if profile else ["record.profile=false"])]
    if resume and out is None:
        wrong("--resume", "give the run to go on with: --out DIR")
    if explain and sweep:
        wrong("--explain", "it tells of one configuration; give one value of the sweep by --set instead")
    with waiting("reading the configuration"):
        resolved = read_config(config, given)
    if explain:
        _explain(resolved, workers, as_json)
        return
    asked = _Asked(
        file=config,
        settings=given,
        resolved=resolved,
        resume=resume,
        workers=workers,
        out=out,
        every_layer=every_layer,
        as_json=as_json,
    )
    folds = resolved.config.validation.folds if fold is None else 0
    times = repeat or resolved.repeat or 1
    if times > 1 or sweep or folds:
        _experiment(asked, times, sweep or [], folds)
    elif workers > 1 and "RANK" not in os.environ:
        _launch(asked, fold)
    else:
        _train(asked, fold)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the command line asks for."""

    file: Path
    settings: list[str]
    resolved: Resolved
    resume: bool
    workers: int
    out: Path | None
    every_layer: bool
    as_json: bool

    def place(self, otherwise: str = "train") -> Path:
        """The directory of the run or the experiment."""
        from laptime.runs.locations import default_out

        return self.out or default_out(self.resolved.config.name or otherwise)

    def arguments(self, out: Path, *settings: str, resume: bool, fold: int | None) -> list[str]:
        """The arguments of a process that trains one run of it."""
        options = [word for setting in (*self.settings, *settings) for word in ("--set", setting)]
        options += ["--out", str(out), *(["--resume"] if resume else [])]
        options += ["--repeat", "1"]  # whatever the file says: the parent process does the repetitions
        return ["train", str(self.file), *options, *(["--fold", str(fold)] if fold is not None else [])]


def _explain(resolved: Resolved, workers: int, as_json: bool) -> None:
    from laptime.training.config.explain import explain

    rows = explain(resolved)
    if workers > 1 and resolved.config.train.threads is None:
        rows = [_of_ranks(row, resolved, workers) if row[0] == "train.threads" else row for row in rows]
    if as_json:
        answer({"values": [dict(zip(("key", "value", "why", "meaning"), row, strict=True)) for row in rows]})
        return
    from laptime.render.terminal import configuration
    from laptime.render.terminal.run_text import console

    to = console()
    for line in configuration.lines(rows, to.width if to.is_terminal else None):
        to.print(line, no_wrap=True, overflow="ignore", crop=False)


def _of_ranks(row: Row, resolved: Resolved, workers: int) -> Row:
    """The threads of each rank, where all share one processor."""
    from laptime.errors import UnsupportedDevice
    from laptime.training.device_setup import choose_device, share_of_threads

    try:
        device, _ = choose_device(resolved.config.train.device, locals=workers)
    except UnsupportedDevice:  # one that this machine lacks, another may have
        return row
    if device.type != "cpu":
        return row
    threads, why = share_of_threads(workers)
    return row[0], str(threads), why, row[3]


# -- one training --------------------------------------------------------------------------------------------


def _train(asked: _Asked, fold: int | None) -> None:
    quiet_torch()
    with waiting("building the network and opening the data"):
        from laptime.training.launch import launched
        from laptime.training.session import train as train_here
    first = int(os.environ.get("RANK", "0")) == 0
    place = asked.place()
    unfinished = UnfinishedRun(place)

    def trained() -> Run:
        with _ProgressBar() as bar:
            return train_here(
                asked.resolved.config,
                out=place,
                resume=asked.resume,
                fold=fold,
                folder=asked.resolved.path.parent,
                watch=bar.watch if first else lambda _: None,
                say=say if first else lambda _: None,
                begin=bar.begin if first else lambda _: None,
            )

    if launched():
        _as_rank(trained)
        return
    with ending(lambda: unfinished.line if first else ""):
        run = trained()
    if first:
        _show(run, asked)


def _as_rank(trained: Callable[[], Run]) -> None:
    """Train as one of several ranks. The launcher reports errors to the user."""
    try:
        with redirect_stdout(sys.stderr):  # what a network prints must not spoil the launcher's answer
            trained()
    except KeyboardInterrupt as stop:
        raise typer.Exit(status(stop)) from None
    except Exception:
        raise typer.Exit(1) from None


class _ProgressBar:
    """A progress bar whose length is known only once the data is open."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._tell: Tell | None = None
        self._words = ""

    def __enter__(self) -> _ProgressBar:
        return self

    def begin(self, training: TrainingLoop) -> None:
        setup = training.setup
        say(f"{training.config.name or training.config.network.name}: device {setup.device} ({setup.why})")
        self._shown = progress("training", training.steps)
        self._tell = self._shown.__enter__()

    def watch(self, now: Progress) -> None:
        if self._tell is None or now.stage != "train":
            return
        loss = f", loss {now.loss:.4g}" if now.loss is not None else ""
        self._words = f"epoch {now.epoch + 1}/{now.epochs}{loss}" if loss or not self._words else self._words
        self._tell(self._words)

    def __exit__(self, *error: Any) -> None:
        if self._shown is not None:
            self._shown.__exit__(*error)


def _show(run: Run, asked: _Asked) -> None:
    from laptime.views.run_document import document
    from laptime.views.run_view import run_view

    view = run_view(run)
    if asked.as_json:
        answer(document(view))
        return
    show_run(view, every_layer=asked.every_layer)
    where = shlex.quote(str(run.path))
    print_out(f"\n{learned(run, view)}")
    saved = (run.path / "checkpoint" / "last.pt").exists()
    resume = f"    laptime train … --resume --out {where}" if saved else ""  # without one it would be refused
    print_out(f"The run is in {run.path}\n  laptime show {where}{resume}")


# -- several ranks, several runs -----------------------------------------------------------------------------


def _launch(asked: _Asked, fold: int | None) -> None:
    from laptime.runs import load

    quiet_torch()  # for the ranks, too
    with waiting(f"starting {asked.workers} ranks"):
        from laptime.training.launch import launch
    place = asked.place()
    unfinished = UnfinishedRun(place)
    words = asked.arguments(place, resume=asked.resume, fold=fold)
    with ending(lambda: unfinished.line):
        launch(words, workers=asked.workers, out=place, say=say)
    _show(load(place), asked)


def _experiment(asked: _Asked, repeat: int, sweep: list[str], folds: int) -> None:
    from laptime.training.config.reading import read_config
    from laptime.training.experiment import conduct, python, trials

    place, seed = asked.place("experiment"), asked.resolved.config.train.seed
    chosen = trials(place, repeat=repeat, sweeps=sweep, folds=folds, seed=seed)
    # A wrong value is told before anything is trained.
    configs = [read_config(asked.file, asked.settings, trial.settings).config for trial in chosen]

    def command(trial: Trial, goes_on: bool) -> list[str]:
        words = asked.arguments(trial.out, *trial.settings, resume=goes_on, fold=trial.fold)
        return [*python(), *words, "--workers", str(asked.workers), "--json"]

    def tell(trial: Trial, number: int, count: int) -> None:
        say(f"{number}/{count}  {trial.name}")

    def left() -> str:
        where = shlex.quote(str(place))
        return f"the trials so far are in {place}; --resume --out {where} goes on" if place.is_dir() else ""

    with ending(left, failed=False):
        results = conduct(
            chosen, command, configs=configs, workers=asked.workers, resume=asked.resume, say=say, tell=tell
        )
    _report(place, results, asked.as_json)


def _report(place: Path, results: list[TrialResult], as_json: bool) -> None:
    from laptime.render.terminal.experiment import results as learned_by
    from laptime.render.terminal.experiment import table
    from laptime.training.experiment import spreads

    rows = learned_by([(result.trial.name, result.status, result.trial.run()) for result in results])
    means = spreads(results, rows)
    failed = [result for result in results if result.status == "failed"]
    if as_json:
        spread = [{"point": mean.point, "trials": mean.trials, **mean.values} for mean in means]
        answer({"experiment": str(place), "trials": rows, "spread": spread})
    else:
        from laptime.render.terminal.run_text import console

        to = console(sys.stdout)
        to.print(table(rows, to.width), no_wrap=True, overflow="ignore", crop=False)
        for mean in means:
            print_out(mean_line(mean))
        if len(failed) < len(results):
            print_out(f"\nThe runs are in {place}\n  {next_command(place, results)}")
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(results)} trials failed, the first of them {failed[0].trial.name}: "
            f"{failed[0].reason or 'it said nothing'}; --resume tries them again"
        )
