"""A run as event files that TensorBoard opens, written without torch and without TensorFlow.

`train/` and `validation/` are two of TensorBoard's runs with the same tags, so that their curves lie over one
another. They are of the lowest rank; every other has a folder of its own, `train rank 1/`, with times only.
The folder above holds the configuration, the environment and the step breakdown as text, and the settings as
hyperparameters. Times are milliseconds; a curve has at most 10,000 points (see `curves.thinned`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from laptime.errors import MissingExtra
from laptime.files.text import one_line
from laptime.files.write import plain, replacing
from laptime.runs.document import as_text, settings
from laptime.runs.exporters import exporter
from laptime.runs.exporters.curves import MOST_POINTS, Curve, ended_s, grouped_curves
from laptime.runs.run import Run

FOLDER = "tensorboard"
_PARTS = {
    "event": "compat.proto.event_pb2",
    "summary": "compat.proto.summary_pb2",
    "tensor": "compat.proto.tensor_pb2",
    "types": "compat.proto.types_pb2",
    "records": "summary.writer.record_writer",
    "text": "plugins.text.metadata",
    "hparams": "plugins.hparams.metadata",
    "hparams_data": "plugins.hparams.plugin_data_pb2",
    "hparams_api": "plugins.hparams.api_pb2",
}


@exporter("tensorboard")
def write_tensorboard(run: Run, logdir: Path | str | None = None, *, most: int = MOST_POINTS) -> list[Path]:
    """Write a run's event files and return them: into a folder of the run's own name under `logdir`.

    Without a `logdir` they go into the run, to `tensorboard/`. An earlier export of the same run is replaced;
    where that name is taken by another run's events, the run's id is added to it.
    """
    board = _tensorboard()
    plain_id = re.sub(r"[^\w.-]", "_", run.id)
    # The same for the same run, so that exporting again replaces. TensorBoard looks for `tfevents`.
    name = f"events.out.tfevents.{int(run.created.timestamp())}.laptime.{plain_id}"
    folder = run.path / FOLDER
    if logdir is not None:
        folder = Path(logdir) / run.path.resolve().name
        if any(file.name != name for file in folder.glob("*tfevents*")):
            folder = folder.with_name(f"{folder.name}-{plain_id}")
    events = {folder / name: _about(board, run)}
    for group, curves in grouped_curves(run, most=most).items():
        events[folder / group / name] = _points(board, curves)
    for path, written in events.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        first = board.event.Event(wall_time=run.created.timestamp(), file_version="brain.Event:2")
        with replacing(path) as file:
            records = board.records.RecordWriter(file)
            for event in (first, *written):
                records.write(event.SerializeToString())
    return list(events)


def _tensorboard() -> SimpleNamespace:
    """The parts of the `tensorboard` package that need no TensorFlow.

    Its EventFileWriter would load TensorFlow wherever that is installed; its record writer does not.
    """
    try:
        modules = {short: importlib.import_module(f"tensorboard.{name}") for short, name in _PARTS.items()}
    except ImportError:
        raise MissingExtra("tensorboard", "export") from None
    return SimpleNamespace(**modules)


def _points(board: Any, curves: Sequence[Curve]) -> Iterator[Any]:
    """The points of many curves in order of steps, those of a step in one event: most of the time goes into
    checksums, which the package computes in Python.
    """
    steps = np.concatenate([series.steps for series in curves])
    which = np.repeat(np.arange(len(curves)), [len(series.steps) for series in curves])
    order = np.argsort(steps, kind="stable")
    values = np.concatenate([series.values for series in curves])[order].tolist()
    times = np.concatenate([series.times_s for series in curves])[order].tolist()
    of_curve = which[order].tolist()
    for step, group in groupby(range(len(order)), key=steps[order].tolist().__getitem__):
        first = next(group)
        event = board.event.Event(wall_time=times[first], step=step)
        for place in (first, *group):
            event.summary.value.add(tag=curves[of_curve[place]].tag, simple_value=values[place])
        yield event


def _about(board: Any, run: Run) -> Iterator[Any]:
    """What the run was: texts and hyperparameters."""
    begun = run.created.timestamp()
    state = {"run": run.id, "status": run.status, "created": run.created.isoformat(), "path": str(run.path)}
    accounts = run.accounts()
    books = _markdown(("account", "median ms", "total s", "share"), accounts.rows(" (traced steps)"))
    texts = {
        "run": _markdown(("", ""), state.items()),
        "configuration": _markdown(("setting", "value"), _texts(run.config)),
        "environment": _markdown(("", "value"), _texts(run.environment)),
        "books": books if accounts.wall.count else "no training steps",
    }
    for tag, words in texts.items():
        event = board.event.Event(wall_time=begun)
        metadata = board.text.create_summary_metadata(display_name="", description="")
        tensor = board.tensor.TensorProto(dtype=board.types.DT_STRING, string_val=[words.encode()])
        event.summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
        yield event
    start = board.hparams_data.SessionStartInfo(start_time_secs=begun)
    for name, value in settings(plain(run.config)):
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, (int, float)):
            start.hparams[name].number_value = value
        else:
            start.hparams[name].string_value = as_text(value)
    yield _session(board, begun, "SESSION_START_INFO_TAG", session_start_info=start)
    if run.status != "running":
        api, ended = board.hparams_api, ended_s(run)
        status = api.STATUS_SUCCESS if run.status == "finished" else api.STATUS_FAILURE
        end = board.hparams_data.SessionEndInfo(status=status, end_time_secs=ended)
        yield _session(board, ended, "SESSION_END_INFO_TAG", session_end_info=end)


def _texts(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    return ((name, as_text(value)) for name, value in settings(plain(values)))


def _session(board: Any, begun: float, tag: str, **content: Any) -> Any:
    """An event of the hyperparameter page. The package's own functions for them import TensorFlow."""
    event = board.event.Event(wall_time=begun)
    metadata = board.hparams.create_summary_metadata(board.hparams_data.HParamsPluginData(**content))
    tag = getattr(board.hparams, tag)
    event.summary.value.add(tag=tag, metadata=metadata, tensor=board.hparams.NULL_TENSOR)
    return event


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, which is what TensorBoard makes of text. Names stay text."""
    lines = [header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(words: str) -> str:
    escaped = one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)
