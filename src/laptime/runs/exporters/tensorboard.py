"""A run as event files that TensorBoard opens, written without torch and without TensorFlow.

`train/` and `validation/` are two of TensorBoard's runs with the same tags, so that their curves lie over one
another. They are of the lowest rank; every other has a folder of its own, `train rank 1/`, with times only.
The folder above holds the configuration, the environment and the step breakdown as text, and the settings as
hyperparameters. Times are milliseconds; a curve has at most 10,000 points (see `curves.thinned`).
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from laptime.errors import MissingExtra
from laptime.files.text import one_line
from laptime.files.write import plain, replacing
from laptime.runs import text_table
from laptime.runs.exporters.curves import MOST_POINTS, Curve, ended_s, layer_curves, step_curves
from laptime.runs.exporters.registry import exporter
from laptime.runs.flat_config import as_text, settings
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
def export_tensorboard(run: Run, out: Path | None = None) -> list[Path]:
    """Event files, in a folder of the run's name under `out`."""
    return write_tensorboard(run, out)


def write_tensorboard(run: Run, logdir: Path | str | None = None, *, most: int = MOST_POINTS) -> list[Path]:
    """Write a run's event files and return them: into a folder of the run's own name under `logdir`.

    Without a `logdir` they go into the run, to `tensorboard/`. An earlier export of the same run is replaced;
    where that name is taken by another run's events, the run's id is added to it.
    """
    board = _tensorboard()
    folder = run.path / FOLDER if logdir is None else _free_folder(Path(logdir), run)
    drawn = [*step_curves(run, most=most), *layer_curves(run, most=most)]
    lowest = min((curve.rank for curve in drawn), default=0)
    curves: dict[str, list[Curve]] = {}
    for curve in drawn:
        name = curve.stage.value if curve.rank == lowest else f"{curve.stage.value} rank {curve.rank}"
        curves.setdefault(name, []).append(curve)
    written = [_write(board, folder / _file_name(run), run, _about(board, run))]
    for name, mine in curves.items():
        written.append(_write(board, folder / name / _file_name(run), run, _points(board, mine)))
    return written


def _tensorboard() -> SimpleNamespace:
    """The parts of the `tensorboard` package that need no TensorFlow.

    Its EventFileWriter would load TensorFlow wherever that is installed; its record writer does not.
    """
    try:
        modules = {short: importlib.import_module(f"tensorboard.{name}") for short, name in _PARTS.items()}
    except ImportError:
        raise MissingExtra("tensorboard", "export") from None
    return SimpleNamespace(**modules)


def _file_name(run: Run) -> str:
    """The same for the same run, so that exporting again replaces. TensorBoard looks for `tfevents`."""
    return f"events.out.tfevents.{int(run.created.timestamp())}.laptime.{_plain_id(run)}"


def _plain_id(run: Run) -> str:
    return re.sub(r"[^\w.-]", "_", run.id)


def _free_folder(logdir: Path, run: Run) -> Path:
    folder = logdir / run.path.resolve().name
    others = [file for file in folder.glob("*tfevents*") if file.name != _file_name(run)]
    return folder.with_name(f"{folder.name}-{_plain_id(run)}") if others else folder


def _write(board: Any, path: Path, run: Run, events: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    first = board.event.Event(wall_time=run.created.timestamp(), file_version="brain.Event:2")
    with replacing(path) as file:
        records = board.records.RecordWriter(file)
        for event in (first, *events):
            records.write(event.SerializeToString())
    return path


def _points(board: Any, curves: Sequence[Curve]) -> Iterator[Any]:
    """The points of many curves in order of steps, those of a step in one event: most of the time goes into
    checksums, which the package computes in Python.
    """
    steps = np.concatenate([series.steps for series in curves])
    which = np.repeat(np.arange(len(curves)), [len(series.steps) for series in curves])
    order = np.argsort(steps, kind="stable")
    values = np.concatenate([series.values for series in curves])[order].tolist()
    times = np.concatenate([series.times_s for series in curves])[order].tolist()
    event = None
    for place, (step, curve) in enumerate(zip(steps[order].tolist(), which[order].tolist(), strict=True)):
        if event is None or event.step != step:
            if event is not None:
                yield event
            event = board.event.Event(wall_time=times[place], step=step)
        event.summary.value.add(tag=curves[curve].tag, simple_value=values[place])
    if event is not None:
        yield event


def _about(board: Any, run: Run) -> Iterator[Any]:
    """What the run was: texts and hyperparameters."""
    begun = run.created.timestamp()
    state = {"run": run.id, "status": run.status, "created": run.created.isoformat(), "path": str(run.path)}
    texts = {
        "run": _markdown(("", ""), state.items()),
        "configuration": _markdown(("setting", "value"), _texts(run.config)),
        "environment": _markdown(("", "value"), _texts(run.environment)),
        "books": _books(run),
    }
    for tag, words in texts.items():
        event = board.event.Event(wall_time=begun)
        metadata = board.text.create_summary_metadata(display_name="", description="")
        tensor = board.tensor.TensorProto(dtype=board.types.DT_STRING, string_val=[words.encode()])
        event.summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
        yield event
    yield _session(board, begun, "SESSION_START_INFO_TAG", session_start_info=_start(board, run))
    if run.status != "running":
        api, ended = board.hparams_api, ended_s(run)
        status = api.STATUS_SUCCESS if run.status == "finished" else api.STATUS_FAILURE
        end = board.hparams_data.SessionEndInfo(status=status, end_time_secs=ended)
        yield _session(board, ended, "SESSION_END_INFO_TAG", session_end_info=end)


def _texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, as_text(value)) for name, value in settings(plain(values))]


def _start(board: Any, run: Run) -> Any:
    start = board.hparams_data.SessionStartInfo(start_time_secs=run.created.timestamp())
    for name, value in settings(plain(run.config)):
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, (int, float)):
            start.hparams[name].number_value = value
        else:
            start.hparams[name].string_value = as_text(value)
    return start


def _session(board: Any, begun: float, tag: str, **content: Any) -> Any:
    """An event of the hyperparameter page. The package's own functions for them import TensorFlow."""
    event = board.event.Event(wall_time=begun)
    metadata = board.hparams.create_summary_metadata(board.hparams_data.HParamsPluginData(**content))
    tag = getattr(board.hparams, tag)
    event.summary.value.add(tag=tag, metadata=metadata, tensor=board.hparams.NULL_TENSOR)
    return event


def _books(run: Run) -> str:
    """The accounts of the training steps, which add up to their wall time."""
    accounts = run.accounts()
    if not accounts.wall.count:
        return "no training steps"
    rows = []
    for account in accounts.values():
        total = "-" if math.isnan(account.total_s) else f"{account.total_s:.3f}"
        name = account.account.value + (" (traced steps)" if account.traced else "")
        rows.append((name, text_table.spread(account.seconds), total, text_table.share(account.share)))
    wall = accounts.wall
    rows.append(("wall", text_table.spread(wall), f"{wall.mean * wall.count:.3f}", "100.0%"))
    return _markdown(("account", "median ms", "total s", "share"), rows)


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, which is what TensorBoard makes of text. Names stay text."""
    lines = [header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(words: str) -> str:
    escaped = one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)
