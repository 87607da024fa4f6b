"""`laptime compare`: two runs or groups of them, with intervals and a verdict; or a run and a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from laptime.cli.options import EveryLayer, Json, wrong
from laptime.cli.outcome import answer
from laptime.cli.progress import waiting
from laptime.errors import NotARun

if TYPE_CHECKING:
    from laptime.runs import Run

_AGAINST = "--against"

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Two runs, A and B; or folders of runs, each a group; or a run and a saved prediction.",
        show_default=False,
    ),
]


class CompareCommand(TyperCommand):
    """Lets `--against` take all the paths that follow it, as a shell's `base/rep-*` gives them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each path after it."""
        spread: list[str] = []
        against = False
        for place, word in enumerate(args):
            if word == _AGAINST and place + 1 < len(args) and not args[place + 1].startswith("-"):
                against = True
            elif against and not word.startswith("-"):
                spread += [_AGAINST, word]
            else:
                against = False
                spread.append(word)
        return super().parse_args(ctx, spread)


def compare(
    runs: Runs,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            _AGAINST, metavar="RUN...", help="The baseline, A; the others are then B.", show_default=False
        ),
    ] = None,
    by_rank: Annotated[bool, typer.Option("--by-rank", help="Layer times with a column per device.")] = False,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Compare runs: step time, throughput, accounts and layers, as ratios with intervals and a verdict.

    A run and a file of `laptime predict --json` are set side by side layer by layer, with their errors; where
    the run was on another device than the predicted one, with ratios.
    """
    from laptime.views.predicted_comparison import is_prediction

    if any(is_prediction(path) for path in (*runs, *(against or ()))):
        _with_prediction([*runs, *(against or ())], every_layer=every_layer, as_json=as_json)
        return
    with waiting("reading"):
        from laptime.views.comparison import compare as compared

        a, b = _groups(runs, against)
        found = compared(a, b, by_rank=by_rank)
    if as_json:
        answer(found)
        return
    from laptime.render.terminal import comparison_text, run_text

    comparison_text.show(found, run_text.console(), every_layer=every_layer)


def _with_prediction(paths: Sequence[Path], *, every_layer: bool, as_json: bool) -> None:
    """One run and one prediction, in either order."""
    from laptime.render.terminal import predicted_comparison_text, run_text
    from laptime.runs import load
    from laptime.views import predicted_comparison

    saved = [path for path in paths if predicted_comparison.is_prediction(path)]
    runs = [path for path in paths if path not in saved]
    if len(saved) != 1 or len(runs) != 1:
        wrong("RUN...", "a prediction is compared with one run; give one of each")
    with waiting("reading"):
        found = predicted_comparison.against(load(runs[0]), saved[0])
    if as_json:
        answer(found)
        return
    predicted_comparison_text.show(found, run_text.console(), every_layer=every_layer)


def _groups(runs: Sequence[Path], against: Sequence[Path] | None) -> tuple[list[Run], list[Run]]:
    """(A, B). Two paths are A and B; with --against, that is A."""
    if against:
        return _loaded(against), _loaded(runs)
    if len(runs) == 1:
        wrong("RUN...", "one run cannot be compared with itself; give a second, or --against RUN")
    if len(runs) > 2:
        wrong("RUN...", "more than two: say which are the baseline with --against RUN...")
    return _loaded(runs[:1]), _loaded(runs[1:])


def _loaded(paths: Sequence[Path]) -> list[Run]:
    """The runs at or below the paths, each once."""
    from laptime.runs import find_runs, load

    found: dict[Path, Run] = {}
    for path in paths:
        below = find_runs(path) if path.is_dir() else []
        if path.is_dir() and not below:
            from laptime.files.text import one_line

            raise NotARun(f"{one_line(path)} holds no run; give the directory of a run or of several")
        for one in below or [path]:
            found.setdefault(one.resolve(), load(one))
    return list(found.values())
