"""`laptime export`: a run for spreadsheets, Perfetto, TensorBoard or MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import Json, Runs, wrong
from laptime.cli.outcome import answer, print_out, say
from laptime.cli.progress import waiting
from laptime.errors import LaptimeError, RunError

if TYPE_CHECKING:
    from laptime.runs import MlflowRun, Run

    Step = Callable[[Run], Sequence[Path]]  # writes a run in one format

TRACE_FILE = "trace.json"


def export(
    runs: Runs,
    csv: Annotated[
        bool, typer.Option("--csv", help="layers.csv, iterations.csv and experiment.csv.")
    ] = False,
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="A trace for https://ui.perfetto.dev or chrome://tracing.")
    ] = False,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Event files for TensorBoard. Of more than 10,000 steps, medians and the outliers.",
        ),
    ] = False,
    mlflow: Annotated[
        str | None,
        typer.Option(
            "--mlflow",
            metavar="URI",
            help="A run in MLflow: a folder, http://host:port or sqlite:///mlflow.db. "
            "An earlier export of the same run there is replaced.",
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment",
            metavar="NAME",
            help="MLflow's experiment; by default the name of the folder that the run lies in.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The trace's file, the folder of the CSV files, or TensorBoard's folder of runs; "
            "by default inside the run.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write recorded runs in formats that other programs read."""
    if not (csv or perfetto or tensorboard or mlflow is not None):
        wrong("--csv / --perfetto / --tensorboard / --mlflow", "choose at least one of them")
    if out is not None and (csv + perfetto + tensorboard != 1 or (len(runs) > 1 and not tensorboard)):
        wrong("--out", "it names one output: give one run and one format with it (TensorBoard: any runs)")
    if mlflow is not None and not mlflow.strip():
        wrong("--mlflow", "give a folder, http://host:port or sqlite:///mlflow.db")
    if experiment is not None and (mlflow is None or not experiment.strip()):
        wrong("--experiment", "it names an experiment of --mlflow URI")
    steps: list[Step] = [lambda run: _csv(run, out)] if csv else []
    steps += [lambda run: [_perfetto(run, out)]] if perfetto else []
    steps += [lambda run: _tensorboard(run, out)] if tensorboard else []
    written: list[dict[str, Any]] = []
    try:
        with waiting("writing"):
            _write(
                runs, steps, None if mlflow is None else lambda run: _mlflow(run, mlflow, experiment), written
            )
    except LaptimeError:  # what was written is there all the same
        for line in _lines(written):
            say(f"laptime: written: {line}") if as_json else print_out(line)
        raise
    if as_json:
        answer({"exports": written})
        return
    for line in _lines(written):
        print_out(line)


def _write(
    runs: Sequence[Path],
    steps: Sequence[Step],
    send: Callable[[Run], MlflowRun] | None,
    written: list[dict[str, Any]],
) -> None:
    """Every run in every format; `written` has at any time what is there."""
    from laptime.runs import load

    for path in runs:
        run = load(path)
        document: dict[str, Any] = {"run": str(run.path), "files": []}
        written.append(document)
        for step in steps:
            document["files"] += [str(file) for file in step(run)]
        if send is not None:
            document["mlflow"] = send(run)


def _lines(written: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for document in written:
        yield from (*document["files"], *_sent(document.get("mlflow")))


def _csv(run: Run, out: Path | None) -> list[Path]:
    from laptime.runs import write_csv

    with _writing(out or run.path):
        files = write_csv(run)
        if out is None:
            return files
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(file, out / file.name)) for file in files]


def _perfetto(run: Run, out: Path | None) -> Path:
    from laptime.runs import write_trace

    target = out or run.path
    with _writing(target):
        if target.is_dir():
            target /= TRACE_FILE
        target.parent.mkdir(parents=True, exist_ok=True)
        return write_trace(run, target)


def _tensorboard(run: Run, out: Path | None) -> list[Path]:
    from laptime.runs import write_tensorboard

    with _writing(out or run.path):
        return write_tensorboard(run, out)


def _mlflow(run: Run, uri: str, experiment: str | None) -> MlflowRun:
    from laptime.runs import write_mlflow

    return write_mlflow(run, uri, experiment)


def _sent(flow: MlflowRun | None) -> Iterator[str]:
    """What became of a run in MLflow, in a line or two."""
    if flow is None:
        return
    again = ", in place of an earlier export" if flow.replaced else ""
    yield f"{flow.uri}: run {flow.run_id} in experiment {flow.experiment}{again}"
    if flow.cut:
        yield f"cut to the length that MLflow takes: {', '.join(flow.cut)}"


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """A place that cannot be written to is named as it was given."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{target} cannot be written ({error.strerror}); --out gives another place") from error
