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
from typing import IO, Any

from laptime.files.write import plain, replacing
from laptime.model import ACCOUNTS, Phase, Stage
from laptime.runs.exporters.curves import AttemptStarts
from laptime.runs.exporters.registry import exporter
from laptime.runs.run import Run
from laptime.runs.select import Columns
from laptime.runs.table_reader import StoredTable

TRACE_FILE = "trace.json"
DEFAULT_STEPS = 20
_STEPS_TRACK = 0
_LAYER_TRACKS = {phase.value: place for place, phase in enumerate(Phase, start=1)}
_FIRST_KERNEL_TRACK = 10
_TRACKS = 10_000  # of one process at most
_MEMORY = "peak memory"  # "bytes" is added by the viewers

_LAYER_ARGS = ("step", "phase", "seconds", "calls", "how", "busy_s", "idle_s", "memory_bytes")

Row = dict[str, Any]
Key = tuple[str, int, int, int]  # stage, attempt, step, rank


@dataclass(slots=True, kw_only=True)
class _Span:
    """One event, in whole nanoseconds so that neighbours meet exactly."""

    process: int
    track: int
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
    one another.
    """
    target = Path(path)
    chosen = _chosen_steps(run, steps)
    spans = _spans(run, chosen)
    with replacing(target) as file:
        header = {"run": run.id, "path": str(run.path), "status": run.status}
        file.write(b'{"displayTimeUnit": "ms", "otherData": ' + _json(header) + b', "traceEvents": [')
        _write_events(file, [*_names(run, spans, chosen), *_events(spans), *_memory(spans)])
        file.write(b"\n]}\n")
    return target


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False).encode()


def _write_events(file: IO[bytes], events: Iterable[Row]) -> None:
    for place, event in enumerate(events):
        file.write((b",\n" if place else b"\n") + _json(event))


def _chosen_steps(run: Run, steps: range | None) -> dict[Key, Row]:
    """The steps to show, by stage, attempt, step and rank."""
    if steps is None:
        columns = Columns(_every_attempt(run, "steps"), ("stage", "step", "instrumented"))
        training = columns.equals("stage", Stage.TRAIN)
        with_layers = training & columns["instrumented"]
        numbers = sorted(set(columns["step"][with_layers if with_layers.any() else training].tolist()))
        wanted = set(numbers[-DEFAULT_STEPS:])
    else:
        wanted = set(steps)
    rows = _rows(run, "steps", wanted)
    return {_key(row): row for row in rows if row["stage"] == Stage.TRAIN}


def _every_attempt(run: Run, table: str) -> StoredTable[Any]:
    """A timeline shows what happened: a step that was taken again, as often as it was taken."""
    return replace(run.stored(table), every_attempt=True)


def _rows(run: Run, table: str, steps: set[int]) -> Iterator[Row]:
    """Rows of these steps; row groups without any of them are not read."""
    if not steps:
        return
    for group in _every_attempt(run, table).row_groups(steps=range(min(steps), max(steps) + 1)):
        inside = [step in steps for step in group.column("step").to_pylist()]
        yield from group.filter(inside).to_pylist()


def _key(row: Row) -> Key:
    return row["stage"], row["attempt"], row["step"], row["rank"]


def _spans(run: Run, chosen: dict[Key, Row]) -> list[_Span]:
    numbers = {key[2] for key in chosen}
    begun = AttemptStarts(run)
    spans = []
    for row in chosen.values():
        label = f"step {row['step']}" + (f" (attempt {row['attempt']})" if row["attempt"] else "")
        args = {account.column: row[account.column] for account in ACCOUNTS}
        args |= {name: row[name] for name in ("epoch", "optimizer_step", "samples", "loss", "top1", "topn")}
        spans.append(_span(begun, row, _STEPS_TRACK, label, "step", row["wall_s"], args))
    for row in _rows(run, "layers", numbers):
        if _key(row) in chosen:
            args = {key: row[key] for key in _LAYER_ARGS}
            track = _LAYER_TRACKS[row["phase"]]
            spans.append(_span(begun, row, track, row["layer"], "layer", row["seconds"], args))
    streams: dict[tuple[int, int], int] = {}
    for row in _rows(run, "kernels", numbers):
        if _key(row) in chosen:
            track = streams.setdefault((row["rank"], row["stream"]), _FIRST_KERNEL_TRACK + len(streams))
            args = {key: row[key] for key in ("step", "layer", "phase", "kind", "stream")}
            spans.append(_span(begun, row, track, row["name"], "kernel", row["seconds"], args))
    return _untangled(spans)


def _span(
    begun: AttemptStarts, row: Row, track: int, name: str, category: str, seconds: float, args: Row
) -> _Span:
    start_s = begun(row["rank"], row["attempt"]) + row["start_s"]
    start, end = round(start_s * 1e9), round((start_s + seconds) * 1e9)
    return _Span(
        process=row["rank"],
        track=track,
        name=name,
        category=category,
        start_ns=start,
        end_ns=max(start, end),
        args=args,
    )


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


def _events(spans: Iterable[_Span]) -> Iterator[Row]:
    for span in spans:
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.category,
            "pid": span.process,
            "tid": _track(span.process, span.track),
            "ts": span.start_ns / 1000,
            "dur": (span.end_ns - span.start_ns) / 1000,
            "args": span.args,
        }


def _memory(spans: Iterable[_Span]) -> Iterator[Row]:
    """A counter's values, in order of time: the most that was allocated while each layer ran."""
    known = [span for span in spans if span.args.get("memory_bytes") is not None]
    for span in sorted(known, key=lambda span: (span.process, span.start_ns)):
        yield {
            "ph": "C",
            "name": _MEMORY,
            "pid": span.process,
            "tid": _track(span.process, _STEPS_TRACK),
            "ts": span.start_ns / 1000,
            "args": {"bytes": span.args["memory_bytes"]},
        }


def _names(run: Run, spans: Iterable[_Span], chosen: dict[Key, Row]) -> Iterator[Row]:
    """Events that name and order the processes and tracks."""
    devices = {row["rank"]: row["device"] for row in chosen.values()}
    for process, device in sorted(devices.items()):
        yield _name("process_name", process, 0, {"name": f"rank {process} ({device})"})
        yield _name("process_sort_index", process, 0, {"sort_index": process})
    tracks: dict[tuple[int, int], str] = {}
    for span in spans:
        title = "accounts" if span.category == "step" else f"layers {span.args.get('phase')}"
        if span.category == "kernel":
            title = f"kernels (stream {span.args['stream']})"
        tracks[span.process, span.track] = title
    for (process, track), title in sorted(tracks.items()):
        yield _name("thread_name", process, track, {"name": title})
        yield _name("thread_sort_index", process, track, {"sort_index": track})


def _name(what: str, process: int, track: int, args: Row) -> Row:
    tid = _track(process, track)
    return {"ph": "M", "name": what, "pid": process, "tid": tid, "ts": 0, "args": args}


def _track(process: int, track: int) -> int:
    """A track's number for the viewers: none that another process has, nor that could be a process.

    Perfetto takes track 0 of process 1 for its track 1 (v52): the thread whose number is that of its process.
    """
    return (process + 1) * _TRACKS + track
