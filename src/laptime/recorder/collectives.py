"""Waiting for other ranks, charged to `communication` wherever a training waits for them.

Whatever a script calls, exchanges of Python end in methods of torch's `ProcessGroup` and waits in those of
`Work`, so these are watched: names that a script imported before, and what torch.compile makes of
collectives, stay as they are. DDP's reducer and FSDP wait inside callbacks that autograd runs after its last
node. A callback queued at the first node runs before theirs: from there to the end of the pass nothing is
left to compute. On CUDA each mark is an event on the compute stream, so what is charged is *exposed* time:
an exchange that runs beside the computation costs nothing here.

Each exchange is counted by its kind, with the bytes of its tensors and the time from the call until its
result is there, which includes waiting for ranks that come late; a wait is charged to the kind of what is
waited for. DDP's own reducer exchanges in C++: with it, only the end of the backward pass is known.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd import Variable

from laptime.recorder.autograd_graph import Boundary, graph_roots
from laptime.recorder.backends import Clock, Stamp, backend_of
from laptime.recorder.guard import RecordingPart, attempt, failed, shielded
from laptime.recorder.loss_end import LossStretch
from laptime.recorder.timeline import (
    BUBBLES,
    CAUSES,
    COLLECTIVES,
    COMMUNICATION,
    KINDS,
    LOSS,
    POINT_TO_POINT,
    Exchange,
    RunningStep,
    Timeline,
)
from laptime.recorder.torch_patches import Leave, Patches, undo_all, watched

FIRST = -1  # the key of our hook among those of a loss; torch counts its own from 0

# Methods of `ProcessGroup`, by kind of collective.
_EXCHANGES: Mapping[str, str] = {
    "all_gather": """_allgather_base all_gather_single all_gather_single_coalesced allgather
        allgather_coalesced allgather_into_tensor_coalesced""",
    "all_reduce": "allreduce allreduce_coalesced",
    "all_to_all": "all_to_all_single alltoall alltoall_base",
    "barrier": "barrier monitored_barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "recv": "recv recv_anysource",
    "reduce": "reduce",
    "reduce_scatter": """_reduce_scatter_base reduce_scatter reduce_scatter_single
        reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced""",
    "scatter": "scatter",
    "send": "send",
}
_FUNCTIONAL = "torch.distributed._functional_collectives"
_SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class _WatchedFunction(NamedTuple):
    """A function that exchanges something, or waits for what is under way."""

    owner: Any
    name: str
    kind: str = ""  # of collective; empty: that of what is waited for
    counts: bool = True  # as a call; a wait does not


# Owners in modules that are looked up, never imported: without them there is nothing to watch.
ELSEWHERE = (
    _WatchedFunction(_FUNCTIONAL, "wait_tensor"),
    # DTensor's exchanges: what they call is C++.
    _WatchedFunction(_FUNCTIONAL, "all_gather_single", "all_gather"),
    _WatchedFunction(_FUNCTIONAL, "all_gather_tensor", "all_gather"),
    _WatchedFunction(_FUNCTIONAL, "all_reduce", "all_reduce"),
    _WatchedFunction(_FUNCTIONAL, "all_to_all_single", "all_to_all"),
    _WatchedFunction(_FUNCTIONAL, "broadcast", "broadcast"),
    _WatchedFunction(_FUNCTIONAL, "reduce_scatter_single", "reduce_scatter"),
    _WatchedFunction(_FUNCTIONAL, "reduce_scatter_tensor", "reduce_scatter"),
    # On CUDA the compute stream waits here for gathered parameters; no `Work` is waited for.
    _WatchedFunction(f"{_SHARDED}:FSDPParamGroup", "wait_for_unshard", "all_gather", counts=False),
    _WatchedFunction(
        "torch.distributed.fsdp._runtime_utils", "_pre_forward_unshard", "all_gather", counts=False
    ),
)


def several() -> bool:
    """Whether this process trains together with others."""
    if not dist.is_available():
        return False
    world = dist.distributed_c10d.GroupMember.WORLD
    return world is not None and world.size() > 1


class Collectives:
    """Marks what a recorded thread exchanges with other ranks."""

    def __init__(self, timeline: Timeline, loss: LossStretch, step: RunningStep) -> None:
        self._timeline = timeline
        self._loss = loss
        self._step = step
        self._on = False
        self._patches = Patches()
        self._exchanged: list[Exchange] = []  # in the running step
        self._under_way: dict[int, Exchange] = {}  # by the id of what is waited for
        self._last: Exchange | None = None  # the latest: of waits for something else, as a future
        self._arrivals: Clock | None = None  # stamps results that come while nobody waits
        self._carried: int | None = None  # the bucket of gradients that the next exchange carries
        self._buckets: dict[int, tuple[int, ...]] = {}  # the ids of the parameters of each
        self.bucket_layers: dict[int, tuple[str, ...]] = {}
        self.bubble: str | None = None  # why a stage of a pipeline waits for others; None: there is none
        self._exchanging = False  # a collective may be made of others: the outermost counts
        self._awaiting = False  # the first node of a backward pass
        self._engine = 0  # the thread that runs the nodes of the pass: another one on CUDA
        self._boundary = Boundary(self._reached)

    def start(self) -> None:
        if not dist.is_available():
            return
        for owner, name, kind, counts in _places():
            if name in vars(owner):
                enter = partial(self._begin if counts and kind else self._wait, kind)
                self._patches.replace(owner, name, partial(watched, enter))
        self._on = True

    def stop(self) -> None:
        self._on = False
        self._patches.restore()

    @shielded(RecordingPart.COMMUNICATION)
    def _begin(self, kind: str, *given: Any, **named: Any) -> Leave | None:
        """An exchange begins; returns what ends it, or None where it is not recorded."""
        if self._exchanging or not self._mine() or not several():
            return None
        every = (*given, *named.values())
        size = max(map(_bytes, every), default=0)
        unawaited = any(getattr(each, "asyncOp", False) for each in every)
        earlier = self._enter(kind)
        exchange = Exchange(kind, size, 0.0, self._timeline.stamps[-1], bucket=self._carried)
        self._carried = None
        return partial(self._began, earlier, exchange, _group_size(given), unawaited)

    @shielded(RecordingPart.COMMUNICATION)
    def _wait(self, kind: str, awaited: Any = None, *_: Any, **__: Any) -> Leave | None:
        """A wait begins for an exchange that is under way."""
        if self._exchanging or not self._mine() or not several():
            return None
        awaited_one = None if kind else self._awaited(awaited)
        earlier = self._enter(awaited_one.kind if awaited_one else kind)
        return partial(self._waited, earlier, awaited_one)

    def _awaited(self, awaited: Any) -> Exchange | None:
        """The exchange that brings a result: of a view of one, the first that nobody has waited for.

        An id may be that of an earlier result, which is gone.
        """
        exchange = self._under_way.pop(id(awaited), None)
        if exchange is not None and exchange.end is None:
            return exchange
        waiting = (each for each in self._exchanged if each.end is None and each.returned is not None)
        return next(waiting, self._last)

    def _enter(self, kind: str) -> int:
        """Waiting begins; returns who was charged until here."""
        earlier = self._timeline.owner
        self._loss.close()
        self._timeline.mark(self._charged_to(kind))
        self._exchanging = True
        return earlier

    def _charged_to(self, kind: str) -> int:
        if self.bubble is not None and kind in POINT_TO_POINT:
            place = POINT_TO_POINT.index(kind)
            return BUBBLES + CAUSES.index(self.bubble) * len(POINT_TO_POINT) + place
        return COLLECTIVES + KINDS.index(kind) if kind else COMMUNICATION

    @shielded(RecordingPart.COMMUNICATION)
    def _began(self, earlier: int, exchange: Exchange, ranks: int, unawaited: bool, result: Any) -> None:
        exchange.bytes = max(exchange.bytes, _bytes(result))
        exchange.wire_bytes = exchange.bytes * _crossing(exchange.kind, ranks)
        self._exchanged.append(exchange)
        self._last = exchange
        self._leave(earlier)
        if result is None:  # it has waited inside
            exchange.end = self._timeline.stamps[-1]
            return
        if exchange.bucket is not None:  # who carries gradients tells when they have arrived
            return
        self._under_way[id(getattr(result, "elem", result))] = exchange  # DTensor waits for what is inside
        if not unawaited:
            exchange.returned = self._timeline.stamps[-1]
        else:
            with suppress(RuntimeError):  # not every backend has futures: then the wait for it ends it
                result.get_future().add_done_callback(partial(self._arrived, exchange))

    @shielded(RecordingPart.COMMUNICATION)
    def _arrived(self, exchange: Exchange, _: Any = None) -> None:
        """The result is there; called by whichever thread brought it, on CUDA on the stream that did."""
        clock = self._timeline.clock
        if clock.deferred:
            if self._arrivals is None:
                self._arrivals = backend_of(clock.device).clock(torch.device(clock.device))
            clock = exchange.end_clock = self._arrivals
            clock.follow()
        exchange.end = clock.now()

    @shielded(RecordingPart.COMMUNICATION)
    def _waited(self, earlier: int, exchange: Exchange | None, _: Any) -> None:
        self._leave(earlier)
        if exchange is not None and exchange.end is None:
            exchange.end = self._timeline.stamps[-1]

    def _leave(self, earlier: int) -> None:
        self._exchanging = False
        self._timeline.give_back(earlier)
        if earlier == LOSS:
            self._loss.open(complete=False)

    @contextmanager
    def exchange(self, kind: str, size: int) -> Iterator[None]:
        """The enclosed code exchanges so many bytes, half of them in either direction, by other means."""
        leave = attempt(RecordingPart.COMMUNICATION, self._enter_by_hand, kind, size)
        try:
            yield
        finally:
            if leave is not None:
                attempt(RecordingPart.COMMUNICATION, leave)

    def _enter_by_hand(self, kind: str, size: int) -> Callable[[], None] | None:
        if not self._mine():
            return None
        earlier = self._enter(kind)
        self._exchanging = False
        exchange = Exchange(kind, size, size / 2, self._timeline.stamps[-1])
        self._exchanged.append(exchange)
        return partial(self._waited, earlier, exchange, None)

    def carries(
        self, bucket: int, parameters: Iterable[torch.Tensor], layers: Callable[[], Mapping[int, str]]
    ) -> None:
        """The next exchange carries the gradients of these parameters; `layers` by a parameter's id."""
        self._carried = bucket
        parts = tuple(map(id, parameters))
        if self._buckets.get(bucket) != parts:  # DDP makes other buckets after its first pass
            self._buckets[bucket] = parts
            known = layers()
            names = [known[part] for part in parts if part in known]
            self.bucket_layers[bucket] = tuple(dict.fromkeys(reversed(names)))

    def arrival(self) -> Callable[[], None] | None:
        """To be called when the bucket has arrived that was sent last; None where it is not recorded."""
        last = self._last
        return partial(self._arrived, last) if last is not None and last.bucket is not None else None

    def exchanged(self) -> list[Exchange]:
        """The exchanges of the step that ends here."""
        taken, self._exchanged = self._exchanged, []
        for exchange in taken:
            exchange.end = exchange.returned if exchange.end is None else exchange.end
        self._under_way.clear()  # another object may come to have the same id
        self._last = self._carried = None
        return taken

    def _mine(self) -> bool:
        """Whether this is the recorded thread, or the autograd thread that runs its backward pass."""
        if not self._on or not self._timeline.open:
            return False
        engine = self._step.backward_depth > 0 and threading.get_ident() == self._engine
        return engine or not self._timeline.elsewhere()

    # -- the end of a backward pass ----------------------------------------------------------------------

    def before_backward(self, outputs: Any) -> Callable[[], None] | None:
        """A backward pass is about to begin; returns what is to be undone after it."""
        if not self._on:
            return None
        undo: list[Callable[[], None]] = []
        try:
            self._awaiting = several()
            if self._awaiting:
                self._hook(outputs, undo)
        except Exception as error:
            failed(RecordingPart.COMMUNICATION, error)
        return partial(undo_all, undo) if undo else None

    def _hook(self, outputs: Any, undo: list[Callable[[], None]]) -> None:
        for output in outputs:
            hooks = getattr(output, "_backward_hooks", None)
            if isinstance(output, torch.Tensor) and isinstance(hooks, OrderedDict):
                # FSDP queues its callback from a hook on the network's output: where that is the loss, ours
                # has to come before it. Torch calls them in the order of insertion.
                later = dict(hooks)
                hooks.clear()
                hooks.update({FIRST: self._reached} | later)
                undo.append(partial(hooks.pop, FIRST, None))
        for node in graph_roots(outputs):
            self._boundary.put_on(node)

    @shielded(RecordingPart.COMMUNICATION)
    def _reached(self, _: Any) -> None:
        """The first node of the pass."""
        if self._awaiting and self._on:
            self._awaiting = False
            self._engine = threading.get_ident()
            Variable._execution_engine.queue_callback(self._computed)

    @shielded(RecordingPart.COMMUNICATION)
    def _computed(self) -> None:
        """Every node of the pass has run: what comes before its end is waiting for other ranks."""
        if self._on and self._step.backward_depth:
            self._timeline.mark(self._charged_to(self._last.kind if self._last else ""))
            stamp: Stamp = self._timeline.stamps[-1]
            for exchange in self._exchanged:
                if exchange.bucket is not None and exchange.computed is None:
                    exchange.computed = stamp


def _bytes(given: Any) -> int:
    """Of a tensor, or of tensors in lists."""
    if isinstance(given, torch.Tensor):
        return given.numel() * given.element_size()
    return sum(map(_bytes, given)) if isinstance(given, (list, tuple)) else 0


def _group_size(given: tuple[Any, ...]) -> int:
    """Ranks of the group whose method is called; all, where it is a function."""
    group = given[0] if given and isinstance(given[0], dist.ProcessGroup) else None
    return int(dist.get_world_size(group))


def _crossing(kind: str, ranks: int) -> float:
    """The share of its bytes that a rank sends or receives at least, as rings do."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def _places() -> Iterator[_WatchedFunction]:
    native = torch._C._distributed_c10d
    for kind, names in _EXCHANGES.items():
        for name in names.split():
            yield _WatchedFunction(native.ProcessGroup, name, kind)
    yield _WatchedFunction(native.ProcessGroup, "_end_coalescing")
    for name in ("wait", "synchronize", "block_current_stream"):
        yield _WatchedFunction(native.Work, name)
    yield _WatchedFunction(torch._C.Future, "wait")
    # DDP, after its first pass: rank 0 broadcasts the new buckets.
    yield _WatchedFunction(native.Reducer, "_rebuild_buckets", "broadcast", counts=False)
    yield _WatchedFunction(dist, "_broadcast_coalesced", "broadcast")  # DDP's buffers
    for place in ELSEWHERE:
        module, _, inside = place.owner.partition(":")
        loaded = sys.modules.get(module)
        owner = getattr(loaded, inside, None) if inside else loaded
        if owner is not None:
            yield place._replace(owner=owner)
