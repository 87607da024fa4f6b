"""The kernel tier: torch.profiler on a few chosen steps splits busy from idle and names what each layer ran.

Each mark of a traced step leaves a zero-length annotation in the trace. A kernel belongs to the mark that was
last set when the host launched it (kernel and launch share a correlation number); an operator on the CPU, to
the mark before its own start. CUPTI drops records at the start of a session and can leave a slowdown behind,
so a step is traced in advance to warm up, launches and records are counted, and bare steps before and after
are compared.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import profile

from laptime.files.read import open_text
from laptime.model import ratio_interval
from laptime.model.layers import union
from laptime.recorder.backends import Backend
from laptime.recorder.timeline import RawStep, resolved

MARKER = "laptime mark "
ENDER = "laptime end "
DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
MOST_RETRIES = 3
LAUNCHES = ("_runtime", "_driver")  # ends of categories: cuda_runtime (AMD's too), xpu_driver, …
FEWEST, MOST = 5, 32  # steps before and after a trace that are compared


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

    def __init__(self, steps: Iterable[int], backend: Backend) -> None:
        self.wanted = set(steps)
        self._backend = backend
        self.tracing = False
        self.number = 0  # of the traced step, under which its marks are found
        self.dropped = 0
        self.problem: str | None = None
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
        self.tracing = self.tracing and self.running
        self.number += self.tracing
        return self.tracing

    def ends_before(self, step: int) -> bool:
        """Whether the open session has all its steps when step number `step` is about to start."""
        return self.running and self.number > 0 and step not in self.wanted and step + 1 not in self.wanted

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():  # starting ours would end it silently
            self.problem = "no kernels were traced, since the script runs torch.profiler by itself"
            self.wanted.clear()
            return
        self._profiler = profile(activities=self._backend.activities, profile_memory=True, acc_events=True)
        # Kineto reads this once, at its first session; otherwise it announces each start and stop on stderr.
        quiet = "KINETO_LOG_LEVEL" not in os.environ
        if quiet:
            os.environ["KINETO_LOG_LEVEL"] = "99"
        try:
            self._profiler.start()
        finally:
            if quiet:  # nothing that the script starts should inherit it
                del os.environ["KINETO_LOG_LEVEL"]

    def on_mark(self, index: int) -> None:
        """Leave an annotation for mark number `index` of the running step."""
        with torch.autograd.profiler.record_function(f"{MARKER}{self.number} {index}"):
            pass

    def on_end(self) -> None:
        """Leave an annotation where the traced step ended: the session may go on without it."""
        with torch.autograd.profiler.record_function(f"{ENDER}{self.number}"):
            pass

    def collect(self, steps: Iterable[tuple[int, RawStep]], is_layer: NDArray[np.bool_]) -> None:
        """Stop the session and give each traced step what its trace says."""
        events, steps = self._stop(), list(steps)
        last = max((raw.fields["step"] for _, raw in steps), default=0)
        for number, raw in steps:
            trace = read_trace(events, number, resolved(raw.owners, is_layer).tolist())
            if trace.complete:
                raw.trace = trace
                continue
            self.dropped += 1
            if self._retries < MOST_RETRIES:  # try again two steps on, past a new warm-up
                self._retries += 1
                self.wanted.add(last + 3)

    def give_up(self, reason: str) -> None:
        """After an internal error: trace no more."""
        self.wanted.clear()
        self.problem = f"no more kernels were traced ({reason})"
        profiler, self._profiler, self.tracing = self._profiler, None, False
        if profiler is not None:
            with suppress(Exception):
                profiler.stop()

    def _stop(self) -> list[dict[str, Any]]:
        profiler, self._profiler = self._profiler, None
        self.tracing = False
        if profiler is None:
            return []
        self._backend.synchronize()
        profiler.stop()
        with tempfile.NamedTemporaryFile(suffix=".json", prefix="laptime-") as place:
            profiler.export_chrome_trace(place.name)
            with open_text(place.name) as file:
                return list(json.load(file)["traceEvents"])


def read_trace(events: Iterable[dict[str, Any]], number: int, codes: Sequence[int]) -> StepTrace:
    """Charge the kernels and operators of one traced step to its owners, given by mark."""
    spans = [event for event in events if event.get("ph") == "X"]
    prefix = f"{MARKER}{number} "
    marks = sorted(
        (event["ts"], int(event["name"][len(prefix) :]))
        for event in spans
        if event.get("cat") == "user_annotation" and event["name"].startswith(prefix)
    )
    marks = [(time, index) for time, index in marks if index < len(codes)]
    trace = StepTrace(marks=len(marks))
    if not marks:
        return trace
    times = [time for time, _ in marks]
    end = min((event["ts"] for event in spans if event["name"] == f"{ENDER}{number}"), default=math.inf)

    def owner(ts: float) -> int | None:
        position = bisect_right(times, ts) - 1
        return codes[marks[position][1]] if position >= 0 and ts < end else None

    on_device = _device_kernels(spans, owner, times[0], trace)
    if on_device:
        by_owner: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for kernel in on_device:
            by_owner[kernel.code].append((kernel.start_s, kernel.start_s + kernel.seconds))
        # Seconds in which at least one kernel or copy of an owner ran: streams may overlap.
        busy = {code: sum(end - start for start, end in union(times)) for code, times in by_owner.items()}
        trace.kernels, trace.busy_s = on_device, busy
    else:
        trace.kernels = _operators(spans, owner, times[0])
        trace.busy_s = _busy_on_host(spans, [*times, end], [codes[index] for _, index in marks])
    # Highest allocation while each owner ran, and what it left allocated, as the allocator told it.
    for event in events:
        if event.get("name") != "[memory]":
            continue
        args, code = event["args"], owner(event["ts"])
        if code is None or (args.get("Device Type", 0) != 0) != bool(on_device):  # 0: the CPU
            continue
        total = int(args.get("Total Allocated", 0))
        trace.peak_bytes[code] = max(trace.peak_bytes.get(code, 0), total)
        trace.kept_bytes[code] = trace.kept_bytes.get(code, 0) + int(args.get("Bytes", 0))
    return trace


def _busy_on_host(
    spans: Iterable[dict[str, Any]], bounds: Sequence[float], codes: Sequence[int]
) -> dict[int, float]:
    """Seconds inside operators, split at the marks: autograd's own operators begin before their layer."""
    busy: dict[int, float] = defaultdict(float)
    operators = [(e["ts"], e["ts"] + e["dur"]) for e in spans if e.get("cat") == "cpu_op"]
    for start, end in union(operators):
        for position in range(max(0, bisect_right(bounds, start) - 1), len(codes)):
            inside = min(end, bounds[position + 1]) - max(start, bounds[position])
            if inside <= 0:
                break
            busy[codes[position]] += inside * 1e-6
    return dict(busy)


def _device_kernels(
    spans: list[dict[str, Any]], owner: Callable[[float], int | None], origin: float, trace: StepTrace
) -> list[TracedKernel]:
    launched: dict[int, float] = {}
    for event in spans:
        if event.get("cat", "").endswith(LAUNCHES) and "correlation" in event.get("args", {}):
            launched[event["args"]["correlation"]] = event["ts"]
            # Only launches must leave a record; other runtime calls (synchronize, malloc) have none.
            if "LaunchKernel" in event["name"] and owner(event["ts"]) is not None:
                trace.launches += 1
    kernels = []
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
        kernels.append(TracedKernel(code, kind, event["name"], stream, start, event["dur"] * 1e-6))
    return kernels


def _operators(
    spans: list[dict[str, Any]], owner: Callable[[float], int | None], origin: float
) -> list[TracedKernel]:
    """Operators on the CPU with the time they spent themselves, not in operators they called."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in spans:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    operators = []
    for tid, events in threads.items():
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        own = [float(event["dur"]) for event in events]
        stack: list[int] = []
        for index, event in enumerate(events):
            while stack and events[stack[-1]]["ts"] + events[stack[-1]]["dur"] <= event["ts"]:
                stack.pop()
            if stack:
                own[stack[-1]] -= event["dur"]
            stack.append(index)
        for event, seconds in zip(events, own, strict=True):
            code = owner(event["ts"])
            if code is not None and seconds > 0:
                start = (event["ts"] - origin) * 1e-6
                name = event["name"]
                operators.append(TracedKernel(code, "operator", name, int(tid), start, seconds * 1e-6))
    return operators


def clock_shift(kernels: Iterable[TracedKernel], spans: Mapping[int, tuple[float, float]]) -> float:
    """Seconds to take off the kernels' starts; 0 where they lie inside their owners' spans already.

    A trace counts from when the host set the first mark of a step, the marks' events from when the device
    reached it; behind a full queue that is milliseconds later. What a layer launches runs after the event
    before it and ends before the event after it, which bounds how far the two clocks are apart.

    Only the busiest stream counts, which is the one that the events are on. `spans` are first and last moment
    of owners that had one interval. Where no shift fits all, the middle of the bounds is least wrong.
    """
    on_device = [kernel for kernel in kernels if kernel.kind != "operator"]
    if not on_device:
        return 0.0
    stream = Counter(kernel.stream for kernel in on_device).most_common(1)[0][0]
    own = [kernel for kernel in on_device if kernel.stream == stream and kernel.code in spans]
    if not own:
        return 0.0
    least = max(kernel.start_s + kernel.seconds - spans[kernel.code][1] for kernel in own)
    most = min(kernel.start_s - spans[kernel.code][0] for kernel in own)
    return min(max(0.0, least), most) if least <= most else (least + most) / 2


def slowdown_after(
    steps: NDArray[np.int64],
    walls: NDArray[np.float64],
    marked: NDArray[np.bool_],
    *,
    began: int,
    ended: int,
) -> dict[str, Any] | None:
    """Whether kernel traces left a slowdown behind: steps after the last one beside those before the first.

    Compares like with like: bare steps where there are enough, steps with layer marks where not. The ratio
    comes with its interval; None with too few steps to tell.
    """
    for kind, name in ((False, "bare"), (True, "marked")):
        before = walls[(steps < began) & (marked == kind)][-MOST:]
        after = walls[(steps >= ended) & (marked == kind)][:MOST]
        if min(len(before), len(after)) >= FEWEST:
            ratio, low, high = ratio_interval(after.tolist(), before.tolist())
            return {"ratio": ratio, "low": low, "high": high, "clean": low <= 1.0, "steps": name}
    return None
