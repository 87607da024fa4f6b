"""The kernel tier: torch.profiler on a few chosen steps splits busy from idle and names what each layer ran.

Each mark of a traced step leaves a zero-length annotation in the trace. A kernel belongs to the mark that was
last set when the host launched it (kernel and launch share a correlation number); an operator on the CPU, to
the mark before its own start. CUPTI drops records at the start of a session and can leave a slowdown behind,
so a step is traced in advance to warm up, launches and records are counted, and the recorder compares bare
steps before and after.
"""

from __future__ import annotations

import json
import os
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from laptime.measure.timeline import INPUT, RETURN, UNITS, RawStep

MARKER = "laptime mark "
DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
MOST_RETRIES = 3
LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class TracedKernel:
    """One kernel, copy, memset or operator."""

    code: int
    kind: str
    name: str
    stream: int
    start_s: float  # since the first mark of its step
    seconds: float


@dataclass(slots=True)
class StepTrace:
    """What the trace of one step says, by owner code."""

    busy_s: dict[int, float] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)
    kept_bytes: dict[int, int] = field(default_factory=dict)
    kernels: list[TracedKernel] = field(default_factory=list)
    launches: int = 0
    records: int = 0
    marks: int = 0

    @property
    def complete(self) -> bool:
        """Whether every launch has its record and every mark its annotation."""
        return self.records >= self.launches and self.marks > 0


class KernelTracer:
    """Runs torch.profiler over chosen steps, one warm-up step ahead of each group."""

    def __init__(self, steps: Iterable[int], *, cuda: bool) -> None:
        self.wanted = set(steps)
        self.cuda = cuda
        self.tracing = False
        self.number = 0  # of the traced step, under which its marks are found
        self.dropped = 0
        self._retries = 0
        self._profiler: profile | None = None

    @property
    def running(self) -> bool:
        """Whether a profiler session is open."""
        return self._profiler is not None

    def plan(self, step: int) -> bool:
        """Called when step number `step` is about to start; True if it is traced."""
        self.tracing = step in self.wanted
        # CUPTI drops records at the start of a session: it starts one step early and lets that one take it.
        if self._profiler is None and (self.tracing or step + 1 in self.wanted):
            self._start()
        self.number += self.tracing
        return self.tracing

    def ends_before(self, step: int) -> bool:
        """Whether the open session has all its steps when step number `step` is about to start."""
        return self.running and self.number > 0 and step not in self.wanted and step + 1 not in self.wanted

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.cuda else [])
        self._profiler = profile(activities=activities, profile_memory=True, acc_events=True)
        self._profiler.start()

    def on_mark(self, index: int) -> None:
        """Leave an annotation for mark number `index` of the running step."""
        with torch.autograd.profiler.record_function(f"{MARKER}{self.number} {index}"):
            pass

    def collect(self, steps: Iterable[tuple[int, RawStep]]) -> None:
        """Stop the session and give each traced step what its trace says."""
        events = self._stop()
        for number, raw in steps:
            trace = read_trace(events, number, raw.owners)
            if trace.complete:
                raw.trace = trace
                continue
            self.dropped += 1
            if self._retries < MOST_RETRIES:  # try again two steps on, past a new warm-up
                self._retries += 1
                self.wanted.add(raw.fields["step"] + 3)

    def _stop(self) -> list[dict[str, Any]]:
        profiler, self._profiler = self._profiler, None
        self.tracing = False
        if profiler is None:
            return []
        if self.cuda:
            torch.cuda.synchronize()
        profiler.stop()
        handle, path = tempfile.mkstemp(suffix=".json", prefix="laptime-")
        os.close(handle)
        try:
            profiler.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                return list(json.load(file)["traceEvents"])
        finally:
            os.unlink(path)


def read_trace(events: Iterable[dict[str, Any]], number: int, owners: list[int]) -> StepTrace:
    """Charge the kernels and operators of one traced step to the owners of its marks."""
    spans = [event for event in events if event.get("ph") == "X"]
    prefix = f"{MARKER}{number} "
    marks = sorted(
        (event["ts"], int(event["name"][len(prefix) :]))
        for event in spans
        if event.get("cat") == "user_annotation" and event["name"].startswith(prefix)
    )
    trace = StepTrace(marks=len(marks))
    if not marks:
        return trace
    times = [time for time, _ in marks]
    codes = _resolved(owners)
    end = _end(spans, number)

    def owner(ts: float) -> int | None:
        position = bisect_right(times, ts) - 1
        return (
            codes[marks[position][1]]
            if position >= 0 and ts < end and marks[position][1] < len(codes)
            else None
        )

    on_device = _device_kernels(spans, owner, times[0], trace)
    trace.kernels = on_device or _operators(spans, owner, times[0])
    busy: dict[int, float] = defaultdict(float)
    for kernel in trace.kernels:
        busy[kernel.code] += kernel.seconds
    trace.busy_s = dict(busy)
    _memory(events, owner, trace, cuda=bool(on_device))
    return trace


def _end(spans: list[dict[str, Any]], number: int) -> float:
    """Where the next traced step's first mark lies, or the end of the trace."""
    following = f"{MARKER}{number + 1} "
    starts = [event["ts"] for event in spans if event["name"].startswith(following)]
    return min(starts, default=float("inf"))


def _resolved(owners: list[int]) -> list[int]:
    """Owner codes as `settle` sees them: returns stripped, input charged to the layer after it."""
    codes = [code & ~RETURN for code in owners]
    for index in range(len(codes) - 2, -1, -1):
        if codes[index] == INPUT and codes[index + 1] >= UNITS:
            codes[index] = codes[index + 1]
    return codes


def _device_kernels(
    spans: list[dict[str, Any]], owner: Callable[[float], int | None], origin: float, trace: StepTrace
) -> list[TracedKernel]:
    launched: dict[int, float] = {}
    for event in spans:
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {}):
            launched[event["args"]["correlation"]] = event["ts"]
            # Only launches must leave a record; other runtime calls (synchronize, malloc) have none.
            if "LaunchKernel" in event["name"] and owner(event["ts"]) is not None:
                trace.launches += 1
    found = []
    for event in spans:
        kind = DEVICE_KINDS.get(event.get("cat", ""))
        if kind is None:
            continue
        code = owner(launched.get(event["args"].get("correlation"), -1.0))
        if code is None:
            continue
        trace.records += kind == "kernel"
        stream = int(event["args"].get("stream", 0))
        start = (event["ts"] - origin) * 1e-6
        found.append(TracedKernel(code, kind, event["name"], stream, start, event["dur"] * 1e-6))
    return found


def _operators(
    spans: list[dict[str, Any]], owner: Callable[[float], int | None], origin: float
) -> list[TracedKernel]:
    """Operators on the CPU with the time they spent themselves, not in operators they called."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in spans:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    found = []
    for tid, events in threads.items():
        for event, own in _own_times(events):
            code = owner(event["ts"])
            if code is not None and own > 0:
                start = (event["ts"] - origin) * 1e-6
                found.append(TracedKernel(code, "operator", event["name"], int(tid), start, own * 1e-6))
    return found


def _own_times(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    own = [float(event["dur"]) for event in events]
    stack: list[int] = []
    for index, event in enumerate(events):
        while stack and events[stack[-1]]["ts"] + events[stack[-1]]["dur"] <= event["ts"]:
            stack.pop()
        if stack:
            own[stack[-1]] -= event["dur"]
        stack.append(index)
    return list(zip(events, own, strict=True))


def _memory(
    events: Iterable[dict[str, Any]], owner: Callable[[float], int | None], trace: StepTrace, *, cuda: bool
) -> None:
    """Highest allocation while each owner ran, and what it left allocated, as the allocator told it."""
    for event in events:
        if event.get("name") != "[memory]":
            continue
        args = event["args"]
        if (args.get("Device Type") == 1) != cuda:
            continue
        code = owner(event["ts"])
        if code is not None:
            total = int(args.get("Total Allocated", 0))
            trace.peak_bytes[code] = max(trace.peak_bytes.get(code, 0), total)
            trace.kept_bytes[code] = trace.kept_bytes.get(code, 0) + int(args.get("Bytes", 0))
