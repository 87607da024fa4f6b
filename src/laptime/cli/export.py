"""`laptime export`: a run for spreadsheets, Perfetto, TensorBoard or MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from laptime.cli.options import Runs, wrong
from laptime.cli.outcome import Outcome, print_out, say, verb, waiting
from laptime.errors import LaptimeError, RunError

if TYPE_CHECKING:
    from laptime.runs import MlflowRun

_PERFETTO_HELP = "A trace for https://ui.perfetto.dev or chrome://tracing."
_TENSORBOARD_HELP = "Event files for TensorBoard. Of more than 10,000 steps, medians and the outliers."
_MLFLOW_HELP = (
    "A run in MLflow: a folder, http://host:port or sqlite:///mlflow.db. "
    "An earlier export of the same run there is replaced."
)
_EXPERIMENT_HELP = "MLflow's experiment; by default the name of the folder that the run lies in."
_TO_HELP = "A format by its name, such as one of your own."
_OUT_HELP = (
    "The trace's file, the folder of the CSV files, or TensorBoard's folder of runs; "
    "by default inside the run."
)


@verb
def export(
    runs: Runs,
    csv: Annotated[bool, Option("--csv", help="layers.csv, iterations.csv and experiment.csv.")] = False,
    perfetto: Annotated[bool, Option("--perfetto", help=_PERFETTO_HELP)] = False,
    tensorboard: Annotated[bool, Option("--tensorboard", help=_TENSORBOARD_HELP)] = False,
    mlflow: Annotated[str | None, Option(metavar="URI", help=_MLFLOW_HELP)] = None,
    experiment: Annotated[str | None, Option(metavar="NAME", help=_EXPERIMENT_HELP)] = None,
    to: Annotated[list[str] | None, Option(metavar="FORMAT", help=_TO_HELP)] = None,
    out: Annotated[Path | None, Option(help=_OUT_HELP)] = None,
    as_json: bool = False,
) -> Outcome:
    """Write recorded runs in formats that other programs read."""
    flags = {"csv": csv, "perfetto": perfetto, "tensorboard": tensorboard}
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
            _write(runs, formats, out, mlflow, experiment, written)
    except LaptimeError:  # what was written is there all the same
        for line in _lines(written):
            say(f"laptime: written: {line}") if as_json else print_out(line)
        raise
    return Outcome(document=lambda: {"exports": written}, lines=lambda _: _lines(written))


def _write(
    runs: Sequence[Path],
    formats: Sequence[str],
    out: Path | None,
    mlflow: str | None,
    experiment: str | None,
    written: list[dict[str, Any]],
) -> None:
    """Every run in every format; `written` has at any time what is there."""
    from laptime.runs import load, write_mlflow
    from laptime.runs.exporters import exporters

    known = exporters()
    for name in formats:
        if name not in known:
            wrong("--to", f"no format is called {name!r}; one of {', '.join(known)}")
    for path in runs:
        run = load(path)
        document: dict[str, Any] = {"run": str(run.path), "files": []}
        written.append(document)
        try:
            for name in formats:
                document["files"] += [str(file) for file in known[name](run, out)]
        except OSError as error:  # the place is named as it was given
            reason = f"cannot be written ({error.strerror}); --out gives another place"
            raise RunError(f"{out or run.path} {reason}") from error
        if mlflow is not None:
            document["mlflow"] = write_mlflow(run, mlflow, experiment)


def _lines(written: Sequence[dict[str, Any]]) -> Iterator[str]:
    for document in written:
        yield from document["files"]
        flow: MlflowRun | None = document.get("mlflow")
        if flow is not None:
            again = ", in place of an earlier export" if flow.replaced else ""
            yield f"{flow.uri}: run {flow.run_id} in experiment {flow.experiment}{again}"
            if flow.cut:
                yield f"cut to the length that MLflow takes: {', '.join(flow.cut)}"
