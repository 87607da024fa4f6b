"""`laptime train`: a configuration, trained and recorded; repeated, swept and spread over ranks as asked."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import EveryLayer, Json, Out, wrong
from laptime.cli.outcome import answer, print_out, say
from laptime.cli.progress import Tell, progress, waiting
from laptime.cli.quiet import quiet_torch
from laptime.cli.train_summary import Left, ending, learned, mean_line, next_command, status
from laptime.errors import TrainingError

if TYPE_CHECKING:
    from laptime.runs import Run
    from laptime.training.config.explain import Row
    from laptime.training.config.reading import Resolved
    from laptime.training.experiment import Ended, Trial
    from laptime.training.loop import Progress, Training

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
        int | None,
        typer.Option("--repeat", min=1, help="Train this often, with other seeds.", show_default=False),
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
    folds = resolved.config.validation.folds if fold is None else 0
    times = repeat or resolved.repeat or 1
    if times > 1 or sweep or folds:
        _experiment(config, given, resolved, times, sweep or [], folds, resume, workers, out, as_json)
    elif workers > 1 and "RANK" not in os.environ:
        _launch(config, given, resolved, workers, out, resume, fold, every_layer, as_json)
    else:
        _train(resolved, out, resume, fold, every_layer, as_json)


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


def _train(
    resolved: Resolved, out: Path | None, resume: bool, fold: int | None, every_layer: bool, as_json: bool
) -> None:
    quiet_torch()
    with waiting("building the network and opening the data"):
        from laptime.runs.locations import default_out
        from laptime.training.launch import launched
        from laptime.training.session import train as train_here
    first = int(os.environ.get("RANK", "0")) == 0
    place = out or default_out(resolved.config.name or "train")
    left = Left(place)

    def trained() -> Run:
        with _Bar() as bar:
            return train_here(
                resolved.config,
                out=place,
                resume=resume,
                fold=fold,
                folder=resolved.path.parent,
                watch=bar.watch if first else lambda _: None,
                say=say if first else lambda _: None,
                begin=bar.begin if first else lambda _: None,
            )

    if launched():
        _as_rank(trained)
        return
    with ending(lambda: left.line if first else ""):
        run = trained()
    if first:
        _show(run, every_layer, as_json)


def _as_rank(trained: Callable[[], Run]) -> None:
    """Train as one of several ranks. The launcher was told how that ended, and tells it to the user."""
    try:
        with redirect_stdout(sys.stderr):  # what a network prints must not spoil the launcher's answer
            trained()
    except KeyboardInterrupt as stop:
        raise typer.Exit(status(stop)) from None
    except Exception:
        raise typer.Exit(1) from None


class _Bar:
    """A progress bar whose length is known only once the data is open."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._tell: Tell | None = None
        self._words = ""

    def __enter__(self) -> _Bar:
        return self

    def begin(self, training: Training) -> None:
        place = training.place
        say(f"{training.config.name or training.config.network.name}: device {place.device} ({place.why})")
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


def _show(run: Run, every_layer: bool, as_json: bool) -> None:
    from laptime.views.run_view import content

    found = content(run)
    if as_json:
        answer(found)
        return
    from laptime.render.terminal import run_text

    run_text.show(found, run_text.console(), every_layer=every_layer)
    where = shlex.quote(str(run.path))
    print_out(f"\n{learned(run, found)}")
    saved = (run.path / "checkpoint" / "last.pt").exists()
    resume = f"    laptime train … --resume --out {where}" if saved else ""  # without one it would be refused
    print_out(f"The run is in {run.path}\n  laptime show {where}{resume}")


# -- several ranks -------------------------------------------------------------------------------------------


def _arguments(config: Path, settings: list[str], out: Path, *, resume: bool, fold: int | None) -> list[str]:
    options = [word for setting in settings for word in ("--set", setting)]
    options += ["--out", str(out), *(["--resume"] if resume else [])]
    options += ["--repeat", "1"]  # whatever the file says: it is repeated by whoever asks for this
    return ["train", str(config), *options, *(["--fold", str(fold)] if fold is not None else [])]


def _launch(
    config: Path,
    settings: list[str],
    resolved: Resolved,
    workers: int,
    out: Path | None,
    resume: bool,
    fold: int | None,
    every_layer: bool,
    as_json: bool,
) -> None:
    from laptime.runs import load
    from laptime.runs.locations import default_out

    quiet_torch()  # for the ranks, too
    with waiting(f"starting {workers} ranks"):
        from laptime.training.launch import launch
    place = out or default_out(resolved.config.name or "train")
    left = Left(place)
    words = _arguments(config, settings, place, resume=resume, fold=fold)
    with ending(lambda: left.line):
        launch(words, workers=workers, out=place, say=say)
    _show(load(place), every_layer, as_json)


# -- experiments ---------------------------------------------------------------------------------------------


def _experiment(
    config: Path,
    settings: list[str],
    resolved: Resolved,
    repeat: int,
    sweep: list[str],
    folds: int,
    resume: bool,
    workers: int,
    out: Path | None,
    as_json: bool,
) -> None:
    from laptime.runs.locations import default_out
    from laptime.training.config.reading import read_config
    from laptime.training.experiment import conduct, python, trials

    place = out or default_out(resolved.config.name or "experiment")
    chosen = trials(place, repeat=repeat, sweeps=sweep, folds=folds, seed=resolved.config.train.seed)
    # A wrong value is told before anything is trained.
    configs = [read_config(config, settings, trial.settings).config for trial in chosen]

    def command(trial: Trial, goes_on: bool) -> list[str]:
        words = _arguments(config, [*settings, *trial.settings], trial.out, resume=goes_on, fold=trial.fold)
        return [*python(), *words, "--workers", str(workers), "--json"]

    def tell(trial: Trial, number: int, count: int) -> None:
        say(f"{number}/{count}  {trial.name}")

    def left() -> str:
        where = shlex.quote(str(place))
        return f"the trials so far are in {place}; --resume --out {where} goes on" if place.is_dir() else ""

    with ending(left, failed=False):
        ended = conduct(chosen, command, configs=configs, workers=workers, resume=resume, say=say, tell=tell)
    _report(place, ended, as_json)


def _report(place: Path, ended: list[Ended], as_json: bool) -> None:
    from laptime.render.terminal.experiment import results, table
    from laptime.training.experiment import spreads

    found = results([(one.trial.name, one.status, one.trial.run()) for one in ended])
    means = spreads(ended, found)
    failed = [one for one in ended if one.status == "failed"]
    if as_json:
        told = [{"point": one.point, "trials": one.trials, **one.values} for one in means]
        answer({"experiment": str(place), "trials": found, "spread": told})
    else:
        from laptime.render.terminal.run_text import console

        to = console(sys.stdout)
        to.print(table(found, to.width), no_wrap=True, overflow="ignore", crop=False)
        for one in means:
            print_out(mean_line(one))
        if len(failed) < len(ended):
            print_out(f"\nThe runs are in {place}\n  {next_command(place, ended)}")
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(ended)} trials failed, the first of them {failed[0].trial.name}: "
            f"{failed[0].reason or 'it said nothing'}; --resume tries them again"
        )
