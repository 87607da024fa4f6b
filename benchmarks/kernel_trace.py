"""A kernel trace attributed to layers without any of laptime's marks or code.

Forward: the layer whose range was open on the host when the operator ran; a range goes on until the next
layer starts. Backward: an autograd node carries the sequence number of the operator that made it, and that
operator has a layer; `AccumulateGrad` has no number and belongs to the node before it. A kernel belongs to
the operator that launched it, found by the correlation number. On the CPU the operators stand for kernels.
"""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import profile

Key = tuple[str, str]  # layer, phase
Event = Mapping[str, Any]

PREFIX = "bench "
EVALUATE = "autograd::engine::evaluate_function"
LOSS = "(loss)"  # no layer: what runs after the network, and a cross-entropy inside it
UNKNOWN = "(unknown)"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")


def say(text: str) -> None:
    """Leave a zero-length annotation in the trace."""
    with record_function(PREFIX + text):
        pass


def mark_layers(network: nn.Module) -> Callable[[], None]:
    """Annotate where each module that owns a weight matrix starts, and where the network starts and ends."""
    handles = [
        network.register_forward_pre_hook(lambda *_: say("forward")),
        network.register_forward_hook(lambda *_: say("loss")),
    ]
    for path, module in network.named_modules():
        if path and any(parameter.dim() >= 2 for parameter in module.parameters(recurse=False)):
            handles.append(module.register_forward_pre_hook(_saying(f"layer {path}")))

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _saying(text: str) -> Callable[..., None]:
    return lambda *_: say(text)


def events_of(profiler: profile) -> list[Event]:
    """The complete events of a stopped profiler's Chrome trace, by time."""
    with tempfile.TemporaryDirectory(prefix="laptime-bench-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_bytes())["traceEvents"]
    # Longer first where two start together: the outer one.
    return sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["ts"], -e["dur"]))


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel or operator: who it belongs to, when the host asked for it, when it ran. Microseconds."""

    key: Key | None
    asked: float
    start: float
    duration: float


@dataclass(frozen=True, slots=True)
class Traced:
    """Seconds per layer and phase, a mapping per complete step."""

    busy: list[dict[Key, float]]
    spans: list[dict[Key, float]]
    dropped: int  # steps with fewer kernel records than launches
    unknown_share: float  # of busy time in backward nodes whose forward operator is not in the trace


def attribute(events: Sequence[Event], *, skip: int) -> Traced:
    """Busy time and spans of each step after the first `skip`."""
    owners = Owners(events)
    on_device = any(event.get("cat") in DEVICE for event in events)
    pieces, missing = _kernels(events, owners) if on_device else (_operators(events, owners), set[int]())
    steps: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        steps[owners.step(piece.asked)].append(piece)
    chosen = [index for index in sorted(steps) if skip <= index < owners.steps]
    whole = [index for index in chosen if index not in missing]
    busy = [_busy(steps[index]) for index in whole]
    total = sum(sum(one.values()) for one in busy)
    unknown = sum(seconds for one in busy for (layer, _), seconds in one.items() if layer == UNKNOWN)
    passed = _Passed(pieces)
    return Traced(
        busy=busy,
        spans=[_spans(owners.turns(index), passed) for index in whole],
        dropped=len(chosen) - len(whole),
        unknown_share=unknown / (total or 1.0),
    )


class Owners:
    """Who owned the host at a moment, and who made a backward node."""

    def __init__(self, events: Sequence[Event]) -> None:
        said = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith(PREFIX)]
        marks = [(e["ts"], e["name"].removeprefix(PREFIX)) for e in said]
        self._steps = [ts for ts, text in marks if text == "step"]
        self.steps = len(self._steps) - 1  # the last mark closes the last step
        self._times = [ts for ts, _ in marks]
        self._owners = _owners([text for _, text in marks])
        self.main = said[0]["tid"] if said else None
        self.tops = {tid: top_level(found) for tid, found in _by_thread(events).items()}
        self._starts = {tid: [e["ts"] for e in found] for tid, found in self.tops.items()}
        self._evaluated = sorted(
            event["ts"]
            for found in self.tops.values()
            for event in found
            if event["name"].startswith(EVALUATE)
        )
        self._backward = self._nodes(self._numbers(events))

    def step(self, ts: float) -> int:
        """Number of the step in which the host was; -1 before the first."""
        return bisect_right(self._steps, ts) - 1

    def turns(self, step: int) -> list[tuple[float, Key | None]]:
        """Whose turn it was on the host during a step, and from when on."""
        begin, end = self._steps[step], self._steps[step + 1]
        turns: list[tuple[float, Key | None]] = [
            (ts, (owner, "forward") if owner is not None else None)
            for ts, owner in zip(self._times, self._owners, strict=True)
        ]
        for tid, events in self.tops.items():
            for event in events:
                ts, after = event["ts"], event["ts"] + event["dur"]
                if event["name"].startswith(EVALUATE):
                    turns.append((ts, (self._backward.get((tid, ts), UNKNOWN), "backward")))
                    if self._next_node(ts) > self._next_mark(ts):
                        turns.append((after, None))  # the last node of a backward pass
                elif tid == self.main and "cross_entropy" in event["name"]:
                    inside = self.owner(tid, after + 1e-3)  # transformers' loss, inside the network
                    turns += [(ts, self.owner(tid, ts)), (after, inside)]
        return sorted((one for one in turns if begin <= one[0] <= end), key=lambda one: one[0])

    def _next_node(self, ts: float) -> float:
        place = bisect_right(self._evaluated, ts)
        return self._evaluated[place] if place < len(self._evaluated) else float("inf")

    def _next_mark(self, ts: float) -> float:
        place = bisect_right(self._times, ts)
        return self._times[place] if place < len(self._times) else float("inf")

    def top(self, tid: Any, ts: float) -> Event | None:
        """The outermost operator that was open on a thread."""
        position = bisect_right(self._starts.get(tid, []), ts) - 1
        event = self.tops[tid][position] if position >= 0 else None
        return event if event is not None and ts <= event["ts"] + event["dur"] else None

    def owner(self, tid: Any, ts: float) -> Key | None:
        """Layer and phase of what the host did on a thread at a moment; None outside the network."""
        top = self.top(tid, ts)
        if top is not None and top["name"].startswith(EVALUATE):
            layer = self._backward.get((tid, top["ts"]), UNKNOWN)
            return (layer, "backward")
        layer_now = self._forward(ts, top) if tid == self.main else None
        return (layer_now, "forward") if layer_now is not None else None

    def _forward(self, ts: float, top: Event | None) -> str | None:
        position = bisect_right(self._times, ts) - 1
        inside = self._owners[position] if position >= 0 else None
        if inside == LOSS and bisect_right(self._evaluated, ts) > bisect_right(
            self._evaluated, self._times[position]
        ):
            return None  # the backward pass has begun: what follows on this thread is the update
        # transformers' networks compute their loss themselves.
        return LOSS if inside is not None and top is not None and "cross_entropy" in top["name"] else inside

    def _numbers(self, events: Sequence[Event]) -> dict[int, str]:
        """Layer by sequence number. An operator without a node carries the next node's: the last counts."""
        found: dict[int, str] = {}
        for event in events:
            number = event.get("args", {}).get("Sequence number", -1)
            if event.get("cat") == "cpu_op" and number >= 0 and event["tid"] == self.main:
                top = self.top(event["tid"], event["ts"])
                if top is not None and not top["name"].startswith(EVALUATE):
                    owner = self._forward(event["ts"], top)
                    if owner is not None:
                        found[number] = owner
        return found

    def _nodes(self, numbers: Mapping[int, str]) -> dict[tuple[Any, float], str]:
        found: dict[tuple[Any, float], str] = {}
        for tid, events in self.tops.items():
            before = UNKNOWN
            for event in events:
                if event["name"].startswith(EVALUATE):
                    number = event.get("args", {}).get("Sequence number", -1)
                    if number >= 0:
                        before = numbers.get(number, UNKNOWN)
                    found[tid, event["ts"]] = before
        return found


def _owners(marks: Sequence[str]) -> list[str | None]:
    """The layer from each mark on. What a network does before its first layer belongs to that layer."""
    owners: list[str | None] = []
    following: str | None = None
    for text in reversed(marks):
        if text.startswith("layer "):
            following = text.removeprefix("layer ")
        owners.append({"step": None, "loss": LOSS, "forward": following}.get(text, following))
    return owners[::-1]


def _by_thread(events: Iterable[Event]) -> dict[Any, list[Event]]:
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    return threads


def top_level(events: Iterable[Event]) -> list[Event]:
    """Those of one thread's events that lie in no other. Sorted by start, the outer ones first."""
    found: list[Event] = []
    end = float("-inf")
    for event in events:
        if event["ts"] >= end:
            found.append(event)
            end = event["ts"] + event["dur"]
    return found


def _operators(events: Sequence[Event], owners: Owners) -> list[Piece]:
    return [
        Piece(owners.owner(tid, event["ts"]), event["ts"], event["ts"], event["dur"])
        for tid, tops in owners.tops.items()
        for event in tops
    ]


def _kernels(events: Sequence[Event], owners: Owners) -> tuple[list[Piece], set[int]]:
    """Every kernel, copy and memset, and the steps of which some launches left no record."""
    calls = {e["args"].get("correlation"): e for e in events if e.get("cat") in RUNTIME}
    launches: dict[int, int] = defaultdict(int)
    for call in calls.values():
        launches[owners.step(call["ts"])] += "LaunchKernel" in call["name"]
    pieces: list[Piece] = []
    for event in events:
        if event.get("cat") in DEVICE and event["args"].get("correlation") in calls:
            asked = calls[event["args"]["correlation"]]
            launches[owners.step(asked["ts"])] -= event["cat"] == "kernel"
            key = owners.owner(asked["tid"], asked["ts"])
            pieces.append(Piece(key, asked["ts"], event["ts"], event["dur"]))
    return pieces, {index for index, left in launches.items() if left > 0}


def _busy(pieces: Iterable[Piece]) -> dict[Key, float]:
    found: dict[Key, float] = defaultdict(float)
    for piece in pieces:
        if piece.key is not None:
            found[piece.key] += piece.duration * 1e-6
    return dict(found)


class _Passed:
    """When the device was done with everything that the host had asked for by some moment."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        ordered = sorted(pieces, key=lambda piece: piece.asked)
        self._asked = [piece.asked for piece in ordered]
        self._done = list(accumulate((piece.start + piece.duration for piece in ordered), max))

    def at(self, ts: float) -> float:
        """The moment itself if nothing was outstanding then."""
        before = bisect_left(self._asked, ts)
        return max(ts, self._done[before - 1]) if before else ts


def _spans(turns: Sequence[tuple[float, Key | None]], passed: _Passed) -> dict[Key, float]:
    """A layer's span begins when the host has entered it and the device has done all that came before."""
    found: dict[Key, float] = defaultdict(float)
    for (begin, key), (end, _) in pairwise(turns):
        if key is not None:
            found[key] += (passed.at(end) - passed.at(begin)) * 1e-6
    return dict(found)


def medians(steps: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Median over the steps of each layer and phase; a step without it counts as zero."""
    keys = sorted({key for step in steps for key in step})
    return {key: float(np.median([step.get(key, 0.0) for step in steps])) for key in keys}
