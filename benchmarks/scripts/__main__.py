"""`python -m benchmarks.scripts FOLDER`: public scripts, unedited, bare and through `laptime run`."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.scripts.case import Case
from benchmarks.scripts.cases import CASES
from benchmarks.scripts.execution import Execution, Places, commit_of, execute
from benchmarks.scripts.failures import Edited, NotFetched
from benchmarks.scripts.outcome import DIFFERENT, Outcome, compare, judge
from benchmarks.scripts.page import page

ROUNDS = 3  # a median needs as many


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the page; 1 if one could not be run."""
    options = _parser().parse_args(arguments)
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    unknown = set(options.only or ()) - {case.name for case in CASES}
    if unknown:
        known = ", ".join(case.name for case in CASES)
        print(f"no case is called {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="scripts-") as scratch:
        places = Places(
            repositories=options.folder,
            packages=options.packages,
            scratch=Path(options.keep or scratch).absolute(),
        )
        for case in chosen:
            print(f"{case.name} …", file=sys.stderr, flush=True)
            try:
                outcomes.append(measure(case, places, rounds=options.rounds))
            except (NotFetched, Edited) as error:
                print(error, file=sys.stderr)
                continue
            if options.markdown:  # after each case: all of them take half an hour
                options.markdown.write_text(text(outcomes, options.rounds), encoding="utf-8")
    if outcomes:
        print(text(outcomes, options.rounds), end="")
    return 0 if len(outcomes) == len(chosen) else 1


def text(outcomes: Sequence[Outcome], rounds: int) -> str:
    """The page of today."""
    command = "python -m benchmarks.scripts FOLDER --packages PACKAGES"
    return page(
        outcomes,
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        command=command if rounds == ROUNDS else f"{command} --rounds {rounds}",
        rounds=rounds,
    )


def measure(case: Case, places: Places, *, rounds: int) -> Outcome:
    """Bare and recorded in turns, so that a machine that slows down slows both."""
    case.source(places.repositories)
    commit = commit_of(case, places)
    bare: list[Execution] = []
    recorded: list[Execution] = []
    for number in range(rounds):
        bare.append(execute(case, places, f"{case.name}-bare-{number}", recorded=False))
        recorded.append(execute(case, places, f"{case.name}-recorded-{number}", recorded=True))
    outcome = judge(case, commit, bare, recorded)
    if outcome.same != DIFFERENT or rounds > 1:
        return outcome
    again = execute(case, places, f"{case.name}-bare-again", recorded=False)
    return replace(outcome, same=compare(case, [*bare, again], recorded))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripts", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds the repositories: FOLDER/owner/name")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases; all")
    parser.add_argument("--packages", type=Path, help="where packages.txt was installed with --target")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="bare and recorded, in turns; 3")
    parser.add_argument("--scratch", type=Path, help="where the copies are made; the system's")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make them here, and keep them")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
