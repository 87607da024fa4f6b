"""The events of a Kineto trace that matter here, small: names shared, most arguments dropped.

A trace of 200 MB with 680,000 events took 360 MB of memory to collect, 25,000 steps of it; most of a trace
with stacks (Python frames that are no module) is not kept at all.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from laptime.runs.importers import trace_names
from laptime.runs.importers.json_values import finite, integer, mapping, thread_id
from laptime.runs.importers.json_values import name as name_of
from laptime.runs.importers.source import ChromeTrace

MODULE = "nn.Module: "
# What a device ran, by Kineto's category. An XPU's kernels have the categories of a GPU's.
_DEVICE_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "memset",
    "mtia_ccp_events": "kernel",
    "mtia_insight": "kernel",
}
_OLD_NAMES = {"runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_RUNTIME = ("_runtime", "_driver")  # cuda_runtime (AMD's too), xpu_driver, mtia_runtime, …
_OTHER_DEVICES = ("mtia", "xpu", "privateuse1", "hpu")  # by how their categories and backends begin
_WAITING = ("event_wait", "event_record")  # an MTIA's queue stands still: nothing runs


@dataclass(slots=True, eq=False)
class Event:
    """One span, in microseconds. `number` links: the sequence number of an operator, the correlation else."""

    name: str
    thread: int | str
    start: float
    end: float
    number: int = -1
    external: int = 0  # what a kernel has in common with its operator, where that is told
    stream: int = 0
    kind: str = ""  # of what a device ran
    node: bool = False  # a node of the backward pass
    communicates: bool = False  # a kernel that is a collective


@dataclass(slots=True)
class Trace:
    """A trace by kinds of events, each in order of time, the outer one first where two start together."""

    rank: int | None = None
    device_name: str | None = None
    device_type: str = "cpu"
    operators: list[Event] = field(default_factory=list)
    ranges: list[Event] = field(default_factory=list)  # record_function and the profiler's own
    modules: list[Event] = field(default_factory=list)  # Python frames that are modules
    launches: dict[int, Event] = field(default_factory=dict)  # by correlation
    kernels: list[Event] = field(default_factory=list)

    @property
    def host_known(self) -> bool:
        """Whether the trace says what the host did, or only what a device ran."""
        return bool(self.operators or self.ranges or self.modules)

    @property
    def empty(self) -> bool:
        return not (self.operators or self.kernels or self.ranges)

    @property
    def begin(self) -> float:
        """When the trace began on the host; without a host, when its first kernel ran."""
        host = (self.operators, self.ranges, self.modules, self.launches.values())
        firsts = [min((event.start for event in events), default=math.inf) for events in host]
        return min(firsts) if min(firsts) < math.inf else self.kernels[0].start


def read_trace(source: ChromeTrace) -> Trace:
    """The trace, read event by event."""
    trace = Trace()
    mixed: list[Event] = []  # operators and annotations of PyTorch 1.9 and before
    calls: list[Event] = []  # of the runtime, without a correlation
    categories: set[str] = set()
    for event in source.events():
        if event.get("ph") == "X":
            _take(event, trace, mixed, calls, categories)
    _separate(mixed, trace)
    for events in (trace.operators, trace.ranges, trace.modules, trace.kernels):
        _by_time(events)
    _mark_nodes(trace)
    _link(trace, calls)
    _about(trace, source.about, categories)
    return trace


def _by_time(events: list[Event]) -> None:
    events.sort(key=lambda event: (event.start, -event.end))


def _take(
    given: dict[str, Any], trace: Trace, mixed: list[Event], calls: list[Event], categories: set[str]
) -> None:
    kind = name_of(given.get("cat")).lower()
    kind = _OLD_NAMES.get(kind, kind)
    name = sys.intern(name_of(given.get("name")))
    if kind == "python_function" and not name.startswith(MODULE):
        return
    start, duration = finite(given.get("ts")), finite(given.get("dur", 0))
    if start is None or duration is None:
        return
    args = mapping(given.get("args"))
    event = Event(name, thread_id(given.get("tid")), start, start + max(0.0, duration))
    event.external = integer(args.get("External id", args.get("external id")), 0)
    if kind in ("cpu_op", "operator"):
        event.number = integer(args.get("Sequence number"), -1)
        (trace.operators if kind == "cpu_op" else mixed).append(event)
    elif kind == "user_annotation":
        trace.ranges.append(event)
    elif kind == "python_function":
        trace.modules.append(event)
    elif kind.endswith(_RUNTIME):
        categories.add(kind)
        if (correlation := integer(args.get("correlation"), -1)) >= 0:
            trace.launches[correlation] = event
        else:
            calls.append(event)
    elif kind in _DEVICE_KINDS and name not in _WAITING:
        categories.add(kind)
        event.number, event.kind = integer(args.get("correlation"), -1), _DEVICE_KINDS[kind]
        if name == "dma_request":  # an MTIA's copies
            event.kind = "copy"
        event.stream = integer(args.get("stream"), 0)
        event.communicates = "Collective name" in args or trace_names.communicates(name)
        trace.kernels.append(event)


def _separate(mixed: list[Event], trace: Trace) -> None:
    """Operators and annotations of PyTorch 1.9 and before, where all have the category `Operator`.

    An annotation has no `::` in its name, and either torch's own `#` or something inside: `detach_` wraps
    nothing.
    """
    _by_time(mixed)
    for events in by_thread(mixed).values():
        for place, event in enumerate(events):
            wraps = place + 1 < len(events) and events[place + 1].start < event.end
            plain = "::" not in event.name and not trace_names.NODE.match(event.name)
            (trace.ranges if plain and (wraps or "#" in event.name) else trace.operators).append(event)


def _mark_nodes(trace: Trace) -> None:
    """Nodes are what the engine evaluates; before PyTorch 1.10 a trace has only what they compute."""
    nodes = [operator for operator in trace.operators if operator.name.startswith(trace_names.EVALUATE)]
    for node in nodes or [operator for operator in trace.operators if trace_names.NODE.match(operator.name)]:
        node.node = True


def _link(trace: Trace, calls: list[Event]) -> None:
    """The launch of each kernel: by correlation, else the call or the operator with its external id."""
    alone = [
        kernel for kernel in trace.kernels if kernel.external > 0 and kernel.number not in trace.launches
    ]
    if not alone:
        return
    external = {event.external: event for event in (*trace.operators, *calls) if event.external > 0}
    unused = max(trace.launches, default=0)
    for kernel in alone:
        launch = external.get(kernel.external)
        if launch is not None:
            unused += 1
            kernel.number, trace.launches[unused] = unused, launch


def _about(trace: Trace, about: dict[str, Any], categories: set[str]) -> None:
    """Rank, device and its name, from what the file says of itself."""
    distributed = mapping(about.get("distributedInfo"))
    rank = integer(distributed.get("rank"), -1)
    trace.rank = rank if 0 <= rank < 1 << 31 else None
    devices = about.get("deviceProperties")
    name = mapping(devices[0] if isinstance(devices, list) and devices else None).get("name")
    trace.device_name = name_of(name) or None
    if trace.kernels:
        told = (*categories, name_of(distributed.get("backend")))
        others = (prefix for prefix in _OTHER_DEVICES if any(text.startswith(prefix) for text in told))
        trace.device_type = next(others, "cuda")


def outermost(events: Iterable[Event]) -> Iterator[Event]:
    """Those of one thread's events that lie in no other."""
    end = float("-inf")
    for event in events:
        if event.start >= end:
            yield event
            end = event.end


def leaves(events: Iterable[Event]) -> list[Event]:
    """Those of one thread's events in which no other lies."""
    ordered = list(events)
    return [
        event
        for place, event in enumerate(ordered)
        if place + 1 == len(ordered) or ordered[place + 1].start >= event.end
    ]


def by_thread(events: Iterable[Event]) -> dict[Any, list[Event]]:
    """Events of each thread, in the order given."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    return dict(threads)


def main_thread(trace: Trace) -> Any:
    """The thread that the profiler's steps are on; else the one with most work that is no backward pass."""
    for event in (*(step for step in trace.ranges if trace_names.STEP.match(step.name)), *trace.modules):
        return event.thread
    work: dict[Any, float] = {}
    for thread, events in by_thread(trace.operators).items():
        work[thread] = sum(
            operator.end - operator.start for operator in outermost(events) if not operator.node
        )
    return max(work, key=lambda candidate: work[candidate]) if work else None


def backward_nodes(trace: Trace) -> list[Event]:
    """The backward pass, node by node. A graph inside a node (checkpointing) is part of it."""
    nodes = []
    for events in by_thread(trace.operators).values():
        nodes += [operator for operator in outermost(events) if operator.node]
    return sorted(nodes, key=lambda node: node.start)
