"""A run as a run of MLflow, written through MLflow's own client.

Folders and servers need only `mlflow-skinny`; a database such as sqlite needs the whole of `mlflow`. MLflow
takes fewer characters in a name than a layer may have: others become `_`. A curve has at most 1,000 points,
all layers' together some 30,000 (see `curves.thinned`): MLflow takes about 4,000 points a second, and draws
320 of a curve.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from laptime.errors import MissingExtra, RunError
from laptime.files.text import first_line, one_line
from laptime.files.write import plain
from laptime.runs.document import as_text, settings
from laptime.runs.exporters.csv_files import CSV_DIRECTORY
from laptime.runs.exporters.curves import ended_s, grouped_curves
from laptime.runs.run import Run

MOST_POINTS = 1_000
MOST_LAYER_POINTS = 30_000

# MLflow's own limits, from mlflow.utils.validation of 3.17. A request is at most 1 MB: 25 parameters of 6,000
# characters, each of which can take six bytes.
_METRICS_PER_CALL = 1000
_PARAMETERS_PER_CALL = 25
_LONGEST_NAME = 250
_LONGEST_PARAMETER = 6000
_LONGEST_TAG = 8000

_STATUSES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_PARTS = ("client", "entities", "exceptions")
_CONNECT_S = 10.0
_LONGEST_REASON = 200
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing goes anywhere but where it was sent
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder is refused otherwise (3.17), though it works
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowRun:
    """The MLflow run that was written, what it replaced and what was cut."""

    uri: str
    experiment: str
    experiment_id: str
    run_id: str
    replaced: tuple[str, ...]  # run ids of earlier exports, now deleted (MLflow keeps them restorable)
    cut: tuple[str, ...]  # parameters whose value was too long and is not whole


def write_mlflow(run: Run, uri: str, experiment: str | None = None) -> MlflowRun:
    """Send a run to the MLflow at `uri`: a folder, http(s)://… or a database such as sqlite:///mlflow.db.

    The experiment is that of the name given, or of the folder that the run lies in. An earlier export of the
    same run there, known by its tag `laptime.id`, is deleted once the new one is complete.
    """
    name = experiment or run.path.resolve().parent.name or "laptime"
    _check(uri)
    with _mlflow(uri) as flow:
        client = flow.client.MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(name)
        experiment_id = known.experiment_id if known else client.create_experiment(name)
        # MLflow's filters have no escape: what could end a text is matched by `_`.
        alike = re.sub(r"[^\w.-]", "_", run.id)
        candidates = client.search_runs([experiment_id], f"tags.`laptime.id` LIKE '{alike}'")
        earlier = [each.info.run_id for each in candidates if each.data.tags.get("laptime.id") == run.id]
        run_id, cut = _fill(flow, client, run, experiment_id)
        for export in earlier:
            client.delete_run(export)
    return MlflowRun(
        uri=_shown(uri),
        experiment=name,
        experiment_id=experiment_id,
        run_id=run_id,
        replaced=tuple(earlier),
        cut=cut,
    )


@contextmanager
def _mlflow(uri: str) -> Iterator[SimpleNamespace]:
    """MLflow; what it says of a place that it cannot write to becomes one line with the remedy.

    It is told by environment variables; what the user has set stays, and so does everything after.
    """
    added = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    known: tuple[type[Exception], ...] = (OSError,)  # those of the HTTP library as well
    try:
        flow = SimpleNamespace(**{name: importlib.import_module(f"mlflow.{name}") for name in _PARTS})
        known = (OSError, flow.exceptions.MlflowException)
        yield flow
    except ImportError:
        raise MissingExtra("mlflow-skinny", "export") from None
    except known as error:
        if not type(error).__name__.startswith("Unsupported"):
            line = first_line(error)
            if len(line) > _LONGEST_REASON:
                line = line[: _LONGEST_REASON - 1] + "…"
            raise RunError(f"MLflow at {_shown(uri)} did not take the run: {line}") from error
        remedy = "give a folder, http://host:port or sqlite:///mlflow.db"
        if uri.startswith(_DATABASES):
            remedy = "a database needs all of MLflow: pip install mlflow; a folder or a server does not"
        raise RunError(f"{_shown(uri)} cannot be opened by this MLflow; {remedy}") from error
    finally:
        for name in added:
            os.environ.pop(name, None)


def _shown(uri: str) -> str:
    """An address on one line, without the name and password that it can hold."""
    return re.sub(r"//[^/@]*@", "//…@", one_line(uri))


def _check(uri: str) -> None:
    """Connect to a server first: MLflow's client retries for minutes before it reports an error."""
    if not uri.startswith(("http://", "https://")):
        return
    try:
        parts = urlsplit(uri)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise RunError(f"{_shown(uri)} is no address ({error}); give http://host:port") from error
    from urllib.request import getproxies  # brings ssl along, which reading a run does not need

    if getproxies().get(parts.scheme):
        return
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise RunError(
            f"no MLflow server answers at {_shown(uri)} ({first_line(error)}); start it with `mlflow server`"
        ) from error


def _fill(flow: Any, client: Any, run: Run, experiment_id: str) -> tuple[str, tuple[str, ...]]:
    """A new run with everything in it: its id, and the parameters that were cut. Half a run is deleted."""
    names = _Names()
    texts = [(names.of(name), as_text(value)) for name, value in settings(plain(run.config))]
    parameters = [flow.entities.Param(name, value[:_LONGEST_PARAMETER]) for name, value in sorted(texts)]
    cut = tuple(name for name, value in texts if len(value) > _LONGEST_PARAMETER)
    begun = _ms(run.created.timestamp())
    name = run.path.resolve().name
    created = client.create_run(experiment_id, start_time=begun, tags=_tags(run, cut), run_name=name)
    run_id: str = created.info.run_id
    try:
        for part in _parts(parameters, _PARAMETERS_PER_CALL):
            client.log_batch(run_id, params=part)
        for part in _parts([flow.entities.Metric(*point) for point in _points(run)], _METRICS_PER_CALL):
            client.log_batch(run_id, metrics=part)
        for file in sorted((run.path / CSV_DIRECTORY).glob("*.csv")):
            client.log_artifact(run_id, str(file), CSV_DIRECTORY)
        if run.status != "running":
            client.set_terminated(run_id, status=_STATUSES[run.status], end_time=_ms(ended_s(run)))
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            client.delete_run(run_id)
        raise
    return run_id, cut


def _tags(run: Run, cut: Sequence[str]) -> dict[str, str]:
    device = run.environment.get("device")
    tags = {
        "mlflow.source.name": "laptime",
        "laptime.id": run.id,
        "laptime.status": run.status,
        "laptime.path": str(run.path.resolve()),
        "laptime.device": device.get("name") if isinstance(device, Mapping) else device,
        "laptime.torch": run.environment.get("torch"),
        "laptime.version": run.environment.get("laptime"),
        "laptime.cut": ", ".join(cut) or None,
    }
    return {name: as_text(plain(value))[:_LONGEST_TAG] for name, value in tags.items() if value is not None}


def _points(run: Run) -> Iterator[tuple[str, float, int, int]]:
    """(name, value, milliseconds since 1970, step) of every curve, and the step breakdown once.

    Names are `train/loss`, `train rank 1/step/ms`, `train/layer/features.0/forward`.
    """
    names = _Names()
    for group, curves in grouped_curves(run, most=MOST_POINTS, in_all=MOST_LAYER_POINTS).items():
        for curve in curves:
            first, *middle = curve.tag.split("/")
            if first == "layer":
                # A slash in a layer's name becomes a dot: MLflow's file store keeps each metric as a file,
                # whose name cannot be another metric's folder.
                middle = [".".join(middle[:-1]), middle[-1]]
            name = names.of("/".join([group, first, *middle]))
            rows = zip(curve.values.tolist(), curve.times_s.tolist(), curve.steps.tolist(), strict=True)
            yield from ((name, value, _ms(time), step) for value, time, step in rows)
    books = run.accounts()
    if books.wall.count:
        ended = _ms(ended_s(run))
        yield "books/median_step_ms", books.wall.median * 1e3, ended, 0
        for account in books.values():
            if not math.isnan(account.share):
                yield f"books/{account.account.value}_share", account.share, ended, 0


class _Names:
    """Names that MLflow takes, each once: what it does not take becomes `_`, a second of the same `… 2`."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The name to use for `name`."""
        if name not in self._given:
            cleaned = re.sub(r"[^\w.\- :/]", "_", name)
            parts = ["_" if part.strip(". ") == "" else part for part in cleaned.split("/")]
            short = "/".join(parts).encode()[: _LONGEST_NAME - 10].decode(errors="ignore")
            taken, number, free = set(self._given.values()), 1, short
            while free in taken:
                number += 1
                free = f"{short} {number}"
            self._given[name] = free
        return self._given[name]


def _parts(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1e3))
