"""`laptime export`: a run as CSV files or as a trace that Perfetto opens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laptime.cli.options import Json, Runs, wrong
from laptime.cli.outcome import answer
from laptime.cli.progress import waiting
from laptime.errors import RunError

if TYPE_CHECKING:
    from laptime.store import Run

TRACE_FILE = "trace.json"


def export(
    runs: Runs,
    csv: Annotated[
        bool, typer.Option("--csv", help="layers.csv, iterations.csv and experiment.csv.")
    ] = False,
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="A trace for https://ui.perfetto.dev or chrome://tracing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The trace's file, or the folder of the CSV files; by default inside the run.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write recorded runs in formats that other programs read."""
    if not (csv or perfetto):
        wrong("--csv / --perfetto", "choose at least one of them")
    if out is not None and (len(runs) > 1 or (csv and perfetto)):
        wrong("--out", "it names one output: give one run and one format with it")
    written = []
    with waiting("writing"):
        from laptime.store import load

        for run in map(load, runs):
            files = ([*_csv(run, out)] if csv else []) + ([_perfetto(run, out)] if perfetto else [])
            written.append({"run": str(run.path), "files": [str(file) for file in files]})
    if as_json:
        answer({"exports": written})
        return
    for one in written:
        for file in one["files"]:
            print(file)


def _csv(run: Run, out: Path | None) -> list[Path]:
    from laptime.store import write_csv

    with _writing(out or run.path):
        files = write_csv(run)
        if out is None:
            return files
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(file, out / file.name)) for file in files]


def _perfetto(run: Run, out: Path | None) -> Path:
    from laptime.store import write_trace

    target = out or run.path
    with _writing(target):
        if target.is_dir():
            target /= TRACE_FILE
        target.parent.mkdir(parents=True, exist_ok=True)
        return write_trace(run, target)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """A place that cannot be written to is named as it was given."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{target} cannot be written ({error.strerror}); --out gives another place") from error
