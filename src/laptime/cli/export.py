"""`laptime export`: a run for spreadsheets, Perfetto, TensorBoard or MLflow."""

from __future__ import annotations

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

FLAGS = ("csv", "perfetto", "tensorboard")  # which have an option of their own


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
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="FORMAT", help="A format by its name, such as one of your own."),
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
    flags = dict(zip(FLAGS, (csv, perfetto, tensorboard), strict=True))
    formats = list(dict.fromkeys([*(name for name, chosen in flags.items() if chosen), *(to or ())]))
    if not formats and mlflow is None:
        wrong("--csv / --perfetto / --tensorboard / --mlflow", "choose at least one of them")
    if out is not None and (len(formats) != 1 or (len(runs) > 1 and formats != ["tensorboard"])):
        wrong("--out", "it names one output: give one run and one format with it (TensorBoard: any runs)")
    if mlflow is not None and not mlflow.strip():
        wrong("--mlflow", "give a folder, http://host:port or sqlite:///mlflow.db")
    if experiment is not None and (mlflow is None or not experiment.strip()):
        wrong("--experiment", "it names an experiment of --mlflow URI")
    written: list[dict[str, Any]] = []
    try:
        with waiting("writing"):
            send = None if mlflow is None else lambda run: _mlflow(run, mlflow, experiment)
            _write(runs, formats, out, send, written)
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
    formats: Sequence[str],
    out: Path | None,
    send: Callable[[Run], MlflowRun] | None,
    written: list[dict[str, Any]],
) -> None:
    """Every run in every format; `written` has at any time what is there."""
    from laptime.runs import load
    from laptime.runs.exporters.registry import exporters

    known = exporters()
    for name in formats:
        if name not in known:
            wrong("--to", f"no format is called {name!r}; one of {', '.join(known)}")
    for path in runs:
        run = load(path)
        document: dict[str, Any] = {"run": str(run.path), "files": []}
        written.append(document)
        for name in formats:
            with _writing(out or run.path):
                document["files"] += [str(file) for file in known[name](run, out)]
        if send is not None:
            document["mlflow"] = send(run)


def _lines(written: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for document in written:
        yield from (*document["files"], *_sent(document.get("mlflow")))


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
