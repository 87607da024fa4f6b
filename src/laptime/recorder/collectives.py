"""Waiting for other ranks, charged to `communication` wherever a training waits for them.

Whatever a script calls, exchanges of Python end in methods of torch's `ProcessGroup` and waits in those of
`Work`, so these are watched: names that a script imported before, and what torch.compile makes of
collectives, stay as they are. DDP's reducer and FSDP wait inside callbacks that autograd runs after its last
node. A callback queued at the first node runs before theirs: from there to the end of the pass nothing is
left to compute. On CUDA each mark is an event on the compute stream, so what is charged is *exposed* time:
an exchange that runs beside the computation costs nothing here.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from laptime.recorder import torch_patches
from laptime.recorder.autograd_graph import Boundary, graph_roots
from laptime.recorder.guard import RecordingPart, failed
from laptime.recorder.loss_end import LossStretch
from laptime.recorder.module_calls import undo_all
from laptime.recorder.running_step import RunningStep
from laptime.recorder.timeline import COMMUNICATION, LOSS, RETURN, Timeline

FIRST = -1  # the key of our hook among those of a loss; torch counts its own from 0

EXCHANGES = (
    "_allgather_base",
    "_end_coalescing",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
# Modules that are looked up, never imported: without them there is nothing to watch.
ELSEWHERE = (
    ("torch.distributed._functional_collectives", "", "wait_tensor"),
    # On CUDA the compute stream waits here for gathered parameters; no `Work` is waited for.
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup", "wait_for_unshard"),
    ("torch.distributed.fsdp._runtime_utils", "", "_pre_forward_unshard"),
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
        self._patches = torch_patches.Patches()
        self._exchanging = False  # a collective may be made of others: the outermost counts
        self._awaiting = False  # the first node of a backward pass
        self._engine = 0  # the thread that runs the nodes of the pass: another one on CUDA
        self._boundary = Boundary(self._reached)

    def start(self) -> None:
        """Watch, until `stop`."""
        if not dist.is_available():
            return
        for owner, name in _places():
            if name in vars(owner):
                self._patches.replace(owner, name, self._watched)
        self._on = True

    def stop(self) -> None:
        """Leave torch as it was."""
        self._on = False
        self._patches.restore()

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def exchange(*args: Any, **kwargs: Any) -> Any:
            earlier = self._enter()
            if earlier is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self._leave(earlier)

        return exchange

    def _enter(self) -> int | None:
        """An exchange begins; returns the owner it interrupts, or None where it is not recorded."""
        try:
            if self._exchanging or torch_patches.tracing() or not self._mine() or not several():
                return None
            earlier = self._timeline.owner & ~RETURN
            self._loss.close()
            self._timeline.mark(COMMUNICATION)
        except Exception as error:
            failed(RecordingPart.COMMUNICATION, error)
            return None
        self._exchanging = True
        return earlier

    def _leave(self, earlier: int) -> None:
        self._exchanging = False
        try:
            self._timeline.give_back(earlier)
            if earlier == LOSS:
                self._loss.open(complete=False)
        except Exception as error:
            failed(RecordingPart.COMMUNICATION, error)

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
        return functools.partial(undo_all, undo) if undo else None

    def _hook(self, outputs: Any, undo: list[Callable[[], None]]) -> None:
        for output in outputs:
            hooks = getattr(output, "_backward_hooks", None)
            if isinstance(output, torch.Tensor) and isinstance(hooks, OrderedDict):
                # FSDP queues its callback from a hook on the network's output: where that is the loss, ours
                # has to come before it. Torch calls them in the order of insertion.
                later = dict(hooks)
                hooks.clear()
                hooks.update({FIRST: self._reached} | later)
                undo.append(functools.partial(hooks.pop, FIRST, None))
        for node in graph_roots(outputs):
            self._boundary.put_on(node)

    def _reached(self, _: Any) -> None:
        """The first node of the pass."""
        if not self._awaiting or not self._on:
            return
        self._awaiting = False
        self._engine = threading.get_ident()
        try:
            Variable._execution_engine.queue_callback(self._computed)
        except Exception as error:
            failed(RecordingPart.COMMUNICATION, error)

    def _computed(self) -> None:
        """Every node of the pass has run: what comes before its end is waiting for other ranks."""
        try:
            if self._on and self._step.backward_depth:
                self._timeline.mark(COMMUNICATION)
        except Exception as error:
            failed(RecordingPart.COMMUNICATION, error)


def _places() -> Iterator[tuple[Any, str]]:
    native = torch._C._distributed_c10d
    for name in EXCHANGES:
        yield native.ProcessGroup, name
    for name in ("wait", "synchronize", "block_current_stream"):
        yield native.Work, name
    yield torch._C.Future, "wait"
    yield native.Reducer, "_rebuild_buckets"  # DDP, after its first pass: rank 0 broadcasts the new buckets
    yield dist, "_broadcast_coalesced"  # DDP's buffers
    for module, owner, name in ELSEWHERE:
        loaded = sys.modules.get(module)
        if loaded is not None and (not owner or hasattr(loaded, owner)):
            yield getattr(loaded, owner) if owner else loaded, name
