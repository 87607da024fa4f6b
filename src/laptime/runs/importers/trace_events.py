"""The events of a Kineto trace that matter here, small: names shared, most arguments dropped.

A trace of 200 MB with 680,000 events took 360 MB of memory to collect, 25,000 steps of it; most of a trace
with stacks (Python frames that are no module) is not kept at all.
"""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any

from laptime.model import Account
from laptime.model.layers import LOSS_LAYER
from laptime.runs.importers.source import ChromeTrace, integer, mapping, name_of, span, thread_id

# -- what names mean -------------------------------------------------------------------------------

MODULE = "nn.Module: "
STEP = re.compile(r"ProfilerStep#(\d{1,18})")
EVALUATE = "autograd::engine::evaluate_function"
# `NllLossBackward`, `ReluBackward1`, `torch::autograd::AccumulateGrad`: what a node is called where the
# engine does not say that it evaluates one.
_NODE = re.compile(r"\w+Backward\d*$|(struct )?torch::autograd::\w+$")
LOSS_NAME = re.compile(r"loss|cross_entropy|criterion", re.IGNORECASE)
LOSS_OPERATOR = re.compile(r"aten::\w*(loss|cross_entropy|kl_div)\w*$")
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")  # the loop looks at a number
_HOST_RANGES = (
    (
        re.compile(r"enumerate\(DataLoader\)|data_?load|(get|next|load|fetch|wait_for)_batch", re.IGNORECASE),
        Account.DATA_WAIT,
    ),
    (re.compile(r"copy_batch", re.IGNORECASE), Account.COPY),
    (re.compile(r"Optimizer\.step#|optimizer[._ ]?step", re.IGNORECASE), Account.UPDATE),
    (re.compile(r"Optimizer\.zero_grad#|zero_grad", re.IGNORECASE), Account.HOST),
    (re.compile(r"ccl:|gloo:|mpi:|ucc:|c10d|all_?reduce", re.IGNORECASE), Account.COMMUNICATION),
)
# Kernels of NCCL, of those that stand in for it, and of the one-shot collectives of inference engines.
_COLLECTIVE = re.compile(
    r"nccl|rccl|hccl|xccl|oneccl|\bccl_|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
    r"cross_device_reduce",
    re.IGNORECASE,
)
_COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms")
_COPY = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory")
_UPDATE = ("aten::_foreach_", "aten::_fused_")
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


def host_account(name: str) -> Account | None:
    """The account of a range that is no layer, by its name; None of any other range."""
    return next((account for pattern, account in _HOST_RANGES if pattern.search(name)), None)


def operator_account(name: str, done: bool) -> Account:
    """Where an operator that is in no range and no module belongs; `done` is after a backward pass."""
    if name.startswith(_COMMUNICATION):
        return Account.COMMUNICATION
    if name in _COPY:
        return Account.COPY
    if done or name in _READS:
        return Account.UPDATE if name.startswith(_UPDATE) else Account.HOST
    return Account.FORWARD


@lru_cache(maxsize=10_000)
def _is_collective(kernel: str) -> bool:
    """By the kernel's own name: what it is a template of does not count."""
    own = kernel.replace("(anonymous namespace)::", "").partition("(")[0].partition("<")[0]
    return _COLLECTIVE.search(own) is not None


@dataclass(frozen=True, slots=True)
class Owner:
    """What a moment of a traced step is charged to: an account, and a layer where it belongs to one."""

    account: Account
    layer: str | None = None


LOSS = Owner(Account.LOSS, LOSS_LAYER)
NOBODY = Owner(Account.UNEXPLAINED)


# -- events ----------------------------------------------------------------------------------------


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

    @property
    def length(self) -> float:
        return self.end - self.start


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
    def begin(self) -> float:
        """When the trace began on the host; without a host, when its first kernel ran."""
        host = (*self.operators, *self.ranges, *self.modules, *self.launches.values())
        return min((event.start for event in host or self.kernels), default=math.inf)

    @property
    def main_thread(self) -> Any:
        """The thread of the profiler's steps; else the one with most work that is no backward pass."""
        for event in (*(step for step in self.ranges if STEP.match(step.name)), *self.modules):
            return event.thread
        work: dict[Any, float] = {}
        for thread, events in by_thread(self.operators).items():
            tops = (operator for operator in outermost(events) if not operator.node)
            work[thread] = sum(operator.length for operator in tops)
        return max(work, key=lambda candidate: work[candidate]) if work else None

    @property
    def backward_nodes(self) -> list[Event]:
        """The backward pass, node by node. A graph inside a node (checkpointing) is part of it."""
        threads = by_thread(self.operators).values()
        nodes = (operator for events in threads for operator in outermost(events) if operator.node)
        return sorted(nodes, key=lambda node: node.start)


class Spans:
    """Events of one thread, none in another, in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = list(events)
        self._starts = [event.start for event in self._events]

    def begun(self, moment: float) -> Event | None:
        """The last that began by a moment."""
        place = bisect_right(self._starts, moment) - 1
        return self._events[place] if place >= 0 else None

    def around(self, event: Event) -> Event | None:
        """The one that an event lies in."""
        outer = self.begun(event.start)
        return outer if outer is not None and event.end <= outer.end else None


def outermost(events: Iterable[Event]) -> Iterator[Event]:
    """Those of one thread's events that lie in no other."""
    end = -math.inf
    for event in events:
        if event.start >= end:
            yield event
            end = event.end


def leaves(events: Iterable[Event]) -> list[Event]:
    """Those of one thread's events in which no other lies."""
    ordered = list(events)
    inner = [following.start < event.end for event, following in pairwise(ordered)]
    return [event for event, outer in zip_longest(ordered, inner) if not outer]


def by_thread(events: Iterable[Event]) -> dict[Any, list[Event]]:
    """Events of each thread, in the order given."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    return dict(threads)


# -- reading ---------------------------------------------------------------------------------------


def read_trace(source: ChromeTrace) -> Trace:
    """The trace, read event by event."""
    trace = Trace()
    mixed: list[Event] = []  # operators and annotations of PyTorch 1.9 and before
    calls: list[Event] = []  # of the runtime, without a correlation
    categories: set[str] = set()
    for given in source.events():
        if given.get("ph") != "X":
            continue
        kind = name_of(given.get("cat")).lower()
        kind = _OLD_NAMES.get(kind, kind)
        name = sys.intern(name_of(given.get("name")))
        times = span(given)
        if times is None or (kind == "python_function" and not name.startswith(MODULE)):
            continue
        args = mapping(given.get("args"))
        event = Event(name, thread_id(given.get("tid")), *times)
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
            event.number = integer(args.get("correlation"), -1)
            event.kind = "copy" if name == "dma_request" else _DEVICE_KINDS[kind]  # an MTIA's copies
            event.stream = integer(args.get("stream"), 0)
            event.communicates = "Collective name" in args or _is_collective(name)
            trace.kernels.append(event)
    _separate(mixed, trace)
    for events in (trace.operators, trace.ranges, trace.modules, trace.kernels):
        events.sort(key=_time_order)
    # Nodes are what the engine evaluates; before PyTorch 1.10 a trace has only what they compute.
    nodes = [operator for operator in trace.operators if operator.name.startswith(EVALUATE)]
    for node in nodes or [operator for operator in trace.operators if _NODE.match(operator.name)]:
        node.node = True
    _link(trace, calls)
    _describe(trace, source.about, categories)
    return trace


def _time_order(event: Event) -> tuple[float, float]:
    return event.start, -event.end


def _separate(mixed: list[Event], trace: Trace) -> None:
    """Operators and annotations of PyTorch 1.9 and before, where all have the category `Operator`.

    An annotation has no `::` in its name, and either torch's own `#` or something inside: `detach_` wraps
    nothing.
    """
    mixed.sort(key=_time_order)
    for events in by_thread(mixed).values():
        for place, event in enumerate(events):
            wraps = place + 1 < len(events) and events[place + 1].start < event.end
            plain = "::" not in event.name and not _NODE.match(event.name)
            (trace.ranges if plain and (wraps or "#" in event.name) else trace.operators).append(event)


def _link(trace: Trace, calls: list[Event]) -> None:
    """The launch of each kernel: by correlation, else the call or the operator with its external id."""
    external = {event.external: event for event in (*trace.operators, *calls) if event.external > 0}
    alone = [kernel for kernel in trace.kernels if kernel.number not in trace.launches]
    unused = max(trace.launches, default=0)
    for kernel in alone:
        if kernel.external in external:
            unused += 1
            kernel.number, trace.launches[unused] = unused, external[kernel.external]


def _describe(trace: Trace, about: dict[str, Any], categories: set[str]) -> None:
    """Rank, device and its name, from what the file says of itself."""
    distributed = mapping(about.get("distributedInfo"))
    rank = integer(distributed.get("rank"), -1)
    trace.rank = rank if 0 <= rank < 1 << 31 else None
    devices = about.get("deviceProperties")
    first = mapping(devices[0] if isinstance(devices, list) and devices else None)
    trace.device_name = name_of(first.get("name")) or None
    if trace.kernels:
        told = (*categories, name_of(distributed.get("backend")))
        others = (prefix for prefix in _OTHER_DEVICES if any(text.startswith(prefix) for text in told))
        trace.device_type = next(others, "cuda")
