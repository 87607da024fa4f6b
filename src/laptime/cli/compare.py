"""`laptime compare`: two runs or groups of them, with intervals and a verdict; or a run and a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option
from typer.core import TyperCommand

from laptime.cli.options import EveryLayer, wrong
from laptime.cli.outcome import Outcome, verb, waiting
from laptime.cli.report import load_runs

if TYPE_CHECKING:
    from laptime.views.comparison.predicted import PredictedComparison
    from laptime.views.comparison.sides import ComparisonView

_AGAINST = "--against"
_RUNS_HELP = "Two runs, A and B; or folders of runs, each a group; or a run and a saved prediction."


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


@verb
def compare(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help=_RUNS_HELP)],
    against: Annotated[
        list[Path] | None, Option(_AGAINST, metavar="RUN...", help="The baseline, A; the others are then B.")
    ] = None,
    by_rank: Annotated[bool, Option("--by-rank", help="Layer times with a column per device.")] = False,
    every_layer: EveryLayer = False,
) -> Outcome:
    """Compare runs: step time, throughput, accounts and layers, as ratios with intervals and a verdict.

    A run and a file of `laptime predict --json` are set side by side layer by layer, with their errors; where
    the run was on another device than the predicted one, with ratios.
    """
    with waiting("reading"):
        from laptime.render.terminal.run_text import comparison_lines

        view = _compared(runs, against, by_rank)
    return Outcome(
        document=view.document, lines=lambda width: comparison_lines(view, width, every_layer=every_layer)
    )


def _compared(
    runs: Sequence[Path], against: Sequence[Path] | None, by_rank: bool
) -> ComparisonView | PredictedComparison:
    """Two groups of runs; or a run and a prediction, in either order."""
    from laptime.runs import load
    from laptime.views.comparison import predicted
    from laptime.views.comparison.sides import compare

    given = [*runs, *(against or ())]
    saved = [path for path in given if predicted.is_prediction(path)]
    if saved:
        others = [path for path in given if path not in saved]
        if len(saved) != 1 or len(others) != 1:
            wrong("RUN...", "a prediction is compared with one run; give one of each")
        return predicted.against(load(others[0]), saved[0])
    if not against and len(runs) == 1:
        wrong("RUN...", "one run cannot be compared with itself; give a second, or --against RUN")
    if not against and len(runs) > 2:
        wrong("RUN...", "more than two: say which are the baseline with --against RUN...")
    sides = (against, runs) if against else (runs[:1], runs[1:])
    a, b = ([run for each in load_runs(side) for run in each] for side in sides)
    return compare(a, b, by_rank=by_rank)
