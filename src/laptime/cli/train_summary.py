"""What `laptime train` says at its end: losses and accuracies, what is on the disk, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from laptime.cli.outcome import say

if TYPE_CHECKING:
    from laptime.runs import Run
    from laptime.training.experiment import Spread, TrialResult
    from laptime.views.run_view import RunView


class UnfinishedRun:
    """The run of a training that ended early, and how to resume it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._before = self._written()

    def _written(self) -> int | None:
        try:
            return (self._out / "run.json").stat().st_mtime_ns
        except OSError:
            return None

    @property
    def line(self) -> str:
        """Empty where this training has written nothing."""
        if self._written() == self._before:
            return ""
        where = f"the run so far is in {self._out}"
        saved = (self._out / "checkpoint" / "last.pt").exists()
        return f"{where}; --resume --out {shlex.quote(str(self._out))} goes on" if saved else where


@contextmanager
def ending(left: Callable[[], str], *, failed: bool = True) -> Iterator[None]:
    """Say what an interrupted training left on the disk; with `failed`, also one that raised an error."""
    try:
        yield
    except KeyboardInterrupt as stop:
        word = "laptime: interrupted" if status(stop) == 130 else "laptime: terminated"
        say("; ".join(filter(None, (word, left()))))
        raise typer.Exit(status(stop)) from None
    except Exception:
        if failed and left():
            say(left())
        raise


def status(stop: KeyboardInterrupt) -> int:
    """The shell's numbers for SIGTERM and Ctrl-C."""
    from laptime.training.stop_signals import Terminated

    return 143 if isinstance(stop, Terminated) else 130


def learned(run: Run, view: RunView) -> str:
    """Losses, accuracies and time of the whole training, in one line."""
    from laptime.views.format import loss, percent
    from laptime.views.run_view import NOUNS

    topn = run.config.get("validation", {}).get("topn", "n")
    names = {"loss": "loss", "top1": "top-1", "topn": f"top-{topn}"}
    words = []
    for part in view.stages.values():
        results = part.results.values if part.results else {}
        known = [key for key in names if key in results]
        told = [
            f"{names[key]} {loss(results[key]) if key == 'loss' else percent(results[key])}" for key in known
        ]
        if told:
            words.append(f"{NOUNS[part.stage.value]} {', '.join(told)}")
    seconds = run.tables.steps.end_s
    return f"{'; '.join(words) or 'no loss was recorded'}; {seconds:.1f} s"


def mean_line(spread: Spread) -> str:
    """Mean ± standard deviation of repetitions or folds, in one line."""
    from laptime.views.format import percent

    names = {
        "train_loss": "loss",
        "train_top1": "top-1",
        "validation_loss": "val. loss",
        "validation_top1": "val. top-1",
    }
    words = [
        f"{title} {percent(mean)} ± {100 * apart:.1f}"
        if key.endswith("top1")
        else f"{title} {mean:.4g} ± {apart:.2g}"
        for key, title in names.items()
        for mean, apart in ([spread.values[key]] if key in spread.values else [])
    ]
    return f"{' '.join([*spread.point, f'mean of {spread.trials}'])}: {', '.join(words)}"


def next_command(place: Path, results: list[TrialResult]) -> str:
    """A command that looks at the trials: two points of a grid, or two trials, are compared."""
    good = [result.trial for result in results if result.status != "failed"]
    groups = list(dict.fromkeys(place / Path(trial.name).parts[0] for trial in good if trial.out != place))
    if len(groups) < 2:
        return f"laptime show {shlex.quote(str(good[0].out))}"
    a, b = (shlex.quote(str(group)) for group in (groups[0], groups[-1]))
    return f"laptime compare {a} {b}"
