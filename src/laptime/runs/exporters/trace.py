"""A run as trace events: what chrome://tracing and ui.perfetto.dev open.

A process per rank; a track for the steps with their accounts, one per phase for layers, one per stream for
kernels, and a counter of the memory of kernel-traced steps. Text is written as it is, not in the
escapes that JSON allows: Perfetto's reader leaves `\\u5c42` in a name as it is (v52).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from laptime.files.write import plain, replacing
from laptime.model import ACCOUNTS, Phase, Stage
from laptime.runs.exporters import exporter
from laptime.runs.exporters.curves import attempt_starts
from laptime.runs.run import Run
from laptime.runs.select import Columns

TRACE_FILE = "trace.json"
DEFAULT_STEPS = 20
_STEPS_TRACK = 0
_LAYER_TRACKS = {phase.value: place for place, phase in enumerate(Phase, start=1)}
_FIRST_KERNEL_TRACK = 10
_TRACKS = 10_000  # of one process at most
_MEMORY = "peak memory"  # "bytes" is added by the viewers

_STEP_ARGS = (
    *(account.column for account in ACCOUNTS),
    *("epoch", "optimizer_step", "samples", "loss", "top1", "topn"),
)
_LAYER_ARGS = ("step", "phase", "seconds", "calls", "how", "busy_s", "idle_s", "memory_bytes")
_KERNEL_ARGS = ("step", "layer", "phase", "kind", "stream")

Row = dict[str, Any]
Key = tuple[str, int, int, int]  # stage, attempt, step, rank


@dataclass(slots=True)
class _Span:
    """One event, in whole nanoseconds so that neighbours meet exactly."""

    process: int
    track: int
    title: str  # of the track
    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Row


@exporter("perfetto")
def export_trace(run: Run, out: Path | None = None) -> list[Path]:
    """A trace of the last steps: the file `out`, or `trace.json` in that folder or in the run."""
    target = out or run.path
    if target.is_dir():
        target /= TRACE_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    return [write_trace(run, target)]


def write_trace(run: Run, path: Path | str, steps: range | None = None) -> Path:
    """Write training steps as a trace; by default the last 20 with layer times (the last 20 where none has).

    Accounts have a length but no place inside a step, so they are numbers on the step's span. Attempts follow
    one another. A step that was taken again is shown as often as it was taken.
    """
    wanted = set(steps) if steps is not None else _last_steps(run)
    rows = [row for row in _rows(run, "steps", wanted) if row["stage"] == Stage.TRAIN]
    spans = _spans(run, {_key(row): row for row in rows})
    devices = {row["rank"]: row["device"] for row in rows}
    header = {"run": run.id, "path": str(run.path), "status": run.status}
    with replacing(Path(path)) as file:
        file.write(b'{"displayTimeUnit": "ms", "otherData": ' + _json(header) + b', "traceEvents": [')
        for place, event in enumerate(_events(spans, devices)):
            file.write((b",\n" if place else b"\n") + _json(event))
        file.write(b"\n]}\n")
    return Path(path)


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False).encode()


def _last_steps(run: Run) -> set[int]:
    columns = Columns.read(
        replace(run.stored("steps"), every_attempt=True), ("stage", "step", "instrumented")
    )
    training = columns.equals("stage", Stage.TRAIN)
    with_layers = training & columns["instrumented"]
    numbers = set(columns["step"][with_layers if with_layers.any() else training].tolist())
    return set(sorted(numbers)[-DEFAULT_STEPS:])


def _rows(run: Run, table: str, steps: set[int]) -> Iterator[Row]:
    """Rows of these steps; row groups without any of them are not read."""
    if not steps:
        return
    stored = replace(run.stored(table), every_attempt=True)
    for group in stored.row_groups(steps=range(min(steps), max(steps) + 1)):
        inside = [step in steps for step in group.column("step").to_pylist()]
        yield from group.filter(inside).to_pylist()


def _key(row: Row) -> Key:
    return row["stage"], row["attempt"], row["step"], row["rank"]


def _spans(run: Run, chosen: dict[Key, Row]) -> list[_Span]:
    starts = attempt_starts(run)
    spans = []

    def add(row: Row, category: str, track: int, title: str, name: str, args: Iterable[str]) -> None:
        start_s = starts[row["rank"], row["attempt"]] + row["start_s"]
        end_s = start_s + (row["wall_s"] if category == "step" else row["seconds"])
        start, end = round(start_s * 1e9), round(end_s * 1e9)
        shown = {key: row[key] for key in args}
        spans.append(_Span(row["rank"], track, title, name, category, start, max(start, end), shown))

    numbers = {key[2] for key in chosen}
    for row in chosen.values():
        label = f"step {row['step']}" + (f" (attempt {row['attempt']})" if row["attempt"] else "")
        add(row, "step", _STEPS_TRACK, "accounts", label, _STEP_ARGS)
    for row in _rows(run, "layers", numbers):
        if _key(row) in chosen:
            phase = row["phase"]
            add(row, "layer", _LAYER_TRACKS[phase], f"layers {phase}", row["layer"], _LAYER_ARGS)
    streams: dict[tuple[int, int], int] = {}
    for row in _rows(run, "kernels", numbers):
        if _key(row) in chosen:
            track = streams.setdefault((row["rank"], row["stream"]), _FIRST_KERNEL_TRACK + len(streams))
            add(row, "kernel", track, f"kernels (stream {row['stream']})", row["name"], _KERNEL_ARGS)
    return _untangled(spans)


def _untangled(spans: list[_Span]) -> list[_Span]:
    """Spans of a track nest or stand apart: one that reaches halfway into the next is cut where that begins.

    A layer called twice has one row, its time added up but its place that of the first call. `seconds` in the
    arguments stays whole.
    """
    spans.sort(key=lambda span: (span.process, span.track, span.start_ns, -span.end_ns))
    open_spans: list[_Span] = []
    for span in spans:
        while open_spans and (
            (open_spans[-1].process, open_spans[-1].track) != (span.process, span.track)
            or open_spans[-1].end_ns <= span.start_ns
        ):
            open_spans.pop()
        for outer in open_spans:
            if outer.end_ns < span.end_ns:
                outer.end_ns = span.start_ns
        open_spans = [outer for outer in open_spans if outer.end_ns > span.start_ns]
        open_spans.append(span)
    return spans


def _event(kind: str, name: str, process: int, track: int, start_ns: int, args: Row, **more: Any) -> Row:
    """One event. A track's number is none that another process has, nor that could be a process.

    Perfetto takes track 0 of process 1 for its track 1 (v52): the thread whose number is that of its process.
    """
    tid = (process + 1) * _TRACKS + track
    return {"ph": kind, "name": name, "pid": process, "tid": tid, "ts": start_ns / 1000, "args": args} | more


def _events(spans: Iterable[_Span], devices: dict[int, str]) -> Iterator[Row]:
    """Events that name and order the processes and tracks, the spans, and a counter of memory."""
    for process, device in sorted(devices.items()):
        yield _event("M", "process_name", process, 0, 0, {"name": f"rank {process} ({device})"})
        yield _event("M", "process_sort_index", process, 0, 0, {"sort_index": process})
    tracks = {(span.process, span.track): span.title for span in spans}
    for (process, track), title in sorted(tracks.items()):
        yield _event("M", "thread_name", process, track, 0, {"name": title})
        yield _event("M", "thread_sort_index", process, track, 0, {"sort_index": track})
    for span in spans:
        length = (span.end_ns - span.start_ns) / 1000
        place = (span.process, span.track, span.start_ns)
        yield _event("X", span.name, *place, span.args, cat=span.category, dur=length)
    # In order of time: the most that was allocated while each layer ran.
    known = [span for span in spans if span.args.get("memory_bytes") is not None]
    for span in sorted(known, key=lambda span: (span.process, span.start_ns)):
        args = {"bytes": span.args["memory_bytes"]}
        yield _event("C", _MEMORY, span.process, _STEPS_TRACK, span.start_ns, args)
