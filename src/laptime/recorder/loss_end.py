"""Splits the time after a forward pass into loss and host time.

In that stretch a script computes its loss, and whatever else it likes: the next batch, an environment's step,
a plot. Differentiable operations make autograd nodes, the rest makes none: the loss ends with the last node,
and a pause of a millisecond before a node is not its either. When nodes are made is told by a mode of torch
that sees every function call; it is on in such stretches of marked steps, and of the others once Python was
found to follow a loss. It stays off where it would be felt: in a process that compiles, whose graphs it would
change, and beside other modes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch._ops import OperatorBase, OpOverloadPacket
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from laptime.recorder.autograd_graph import ACCUMULATE, sequence_number
from laptime.recorder.backends import Stamp
from laptime.recorder.guard import RecordingPart, attempt
from laptime.recorder.optimizer_steps import listen
from laptime.recorder.timeline import HOST, LOSS, RETURN, RunningStep, Timeline

NOTICEABLE_NS = 50_000  # of Python after a loss: enough to look for it in every step
PAUSE_NS = 1_000_000  # between two operations of a loss: no longer the loss's own Python
MOST_STRETCHES = 256  # of a step that are told apart
MOST_NODES = 64  # walked in the graph of a loss that is scaled


class LossStretch(TorchFunctionMode):
    """The open stretch of loss time, if any; as a mode, it notices when autograd nodes are made.

    Changes nothing of what is called.
    """

    def __init__(self, timeline: Timeline, step: RunningStep) -> None:
        super().__init__()
        self._timeline = timeline
        self._step = step
        self._mark = -1  # where its last part begins; -1: none is open
        self._number = 0  # the sequence number at its begin
        self._complete = False
        self._place = 0  # of the stretch among those of the step
        self._python_follows: set[int] = set()  # the stretches, by their place, that Python was found in
        # As a mode.
        self._on = False
        self._left = False  # still on torch's stack, looking away
        self._calling = 0  # calls under way, during which torch has taken it off by itself
        self._node = 0  # the number of the last node, and when it was made
        self._node_ns = 0
        self._node_stamp: Stamp | None = None  # the same on the timeline; None before the first node

    def open(self, *, complete: bool) -> None:
        """It begins with the last mark. `complete`: the loss has its value; what may follow is small."""
        self._mark = len(self._timeline.owners) - 1
        self._number, self._complete = sequence_number(), complete
        self._place += 1
        if self._step.marked or self._place in self._python_follows:
            self._watch()

    def forget(self) -> None:
        self._look_away()
        self._mark, self._place = -1, 0

    def end(self) -> None:
        """Leave torch's mode stack; during a call through this mode, at the next update."""
        self.forget()
        if not self._left:
            return

        def take_off(*_: Any) -> None:
            self._look_away()
            unlisten()

        unlisten = listen(take_off, take_off)

    def close(self, *, roots: Iterable[Any] = (), instead: int = LOSS) -> bool:
        """Something else begins: what came after the last node is host time. Whether there was a node.

        `roots`: nodes where a backward pass begins; `instead`: who the operations belong to.
        """
        mark, self._mark = self._mark, -1
        last = self._look_away()
        owners = self._timeline.owners
        if mark < 0 or mark != len(owners) - 1 or owners[mark] & ~RETURN != LOSS:
            return False
        number = sequence_number()
        if number == self._number:
            owners[mark] = HOST
            return False
        if instead != LOSS:
            owners[mark] = instead
        if last is not None and self._node == number:
            if time.perf_counter_ns() - self._node_ns > NOTICEABLE_NS and self._place < MOST_STRETCHES:
                self._python_follows.add(self._place)
            else:
                self._python_follows.discard(self._place)
            self._timeline.insert(last, HOST)
        elif self._complete and _only_scales(roots, self._number):
            owners[mark] = HOST
        return True

    # -- when nodes are made -----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start watching, unless that could disturb the training."""
        modes = _get_current_function_mode_stack()
        if not _UNTOUCHED or compiles() or self._calling or any(mode is not self for mode in modes):
            return
        if self._timeline.on_mark is not None:  # a kernel trace finds marks by when they were set
            return
        self._node, self._node_stamp, self._node_ns = sequence_number(), None, time.perf_counter_ns()
        self._on = True
        if not modes:
            self.__enter__()

    def _look_away(self) -> Stamp | None:
        """Stop watching; returns when the last node was made."""
        last, self._node_stamp = (self._node_stamp if self._on else None), None
        if self._on or self._left:
            modes = _get_current_function_mode_stack()
            if modes and modes[-1] is self:
                self.__exit__(None, None, None)
                self._left = False
            else:  # under somebody's mode, or torch puts it back after this call: the next time, then
                self._left = True
        self._on = False
        return last

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = attempt(RecordingPart.LAYERS, self._begin) if self._on else None
        function = attempt(RecordingPart.LAYERS, _unpatched, func) or func
        self._calling += 1
        try:
            result = function(*args, **(kwargs or {}))
        finally:
            self._calling -= 1
        if self._on:
            attempt(RecordingPart.LAYERS, self._look, begin)
        return result

    def _begin(self) -> Stamp | None:
        """After a pause, the moment at which a function is called."""
        paused = time.perf_counter_ns() - self._node_ns > PAUSE_NS
        return self._timeline.clock.now() if paused else None

    def _look(self, begin: Stamp | None) -> None:
        """A function was called: note the node that it made; a pause before that was host time."""
        number, timeline, last = sequence_number(), self._timeline, self._node_stamp
        if number == self._node:
            if begin is not None:
                timeline.clock.recycle([begin])
            return
        if begin is not None:
            if last is None:
                timeline.owners[self._mark] = HOST  # since the stretch began
            else:
                timeline.insert(last, HOST)
            timeline.insert(begin, LOSS | RETURN)
            self._mark = len(timeline.owners) - 1
        elif last is not None:
            timeline.clock.recycle([last])
        self._node, self._node_ns = number, time.perf_counter_ns()
        self._node_stamp = timeline.clock.now()


_SPACES: tuple[Any, ...] = (torch.Tensor, torch, torch.nn.functional)
# What torch itself has there, kept before a script can put something of its own in its place.
_ORIGINALS = {id(space): {name: getattr(space, name) for name in dir(space)} for space in _SPACES}


# Operators, too: optimizers and DDP call one for the profiler, which would be looked for in vain.
_TORCHS_TYPES = (
    BuiltinFunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
    OperatorBase,
    OpOverloadPacket,
)


def _is_torchs(function: Any) -> bool:
    """Whether a function is torch's own: written in C, or in its package."""
    if isinstance(function, FunctionType):
        return (function.__module__ or "").startswith("torch")
    return isinstance(function, _TORCHS_TYPES)


# Functions that were patched before this import cannot be told from the originals.
_UNTOUCHED = all(
    _is_torchs(value) or (value.__module__ or "").partition(".")[0] in sys.stdlib_module_names
    for originals in _ORIGINALS.values()
    for value in originals.values()
    if isinstance(value, FunctionType)
)


def _unpatched(func: Any) -> Any:
    """The function that torch was about to call: a mode is given the attribute of that name.

    Where a script, or laptime, has put a function of its own under that name, calling it would call it twice.
    """
    if _is_torchs(func):
        return func
    for space in _SPACES:
        for name, value in vars(space).items():
            if value is func and name in _ORIGINALS[id(space)]:
                return _ORIGINALS[id(space)][name]
    return func


def holds_loss(output: Any) -> bool:
    """Whether a network's output holds a loss: a differentiable scalar, alone or among other values."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    items = output[:8] if isinstance(output, list | tuple) else (output,)
    return any(isinstance(item, torch.Tensor) and item.dim() == 0 and item.requires_grad for item in items)


def _only_scales(roots: Iterable[Any], number: int) -> bool:
    """Whether all nodes since a loss are of single numbers: it was scaled, or added to another."""
    stack, known = list(roots), set()
    while stack:
        node = stack.pop()
        if node is None or node in known or not number <= node._sequence_nr() < ACCUMULATE:
            continue
        known.add(node)
        metadata = getattr(node, "_input_metadata", None)  # of a Python function: unknown
        if (
            len(known) > MOST_NODES
            or metadata is None
            or any(math.prod(entry.shape) != 1 for entry in metadata)
        ):
            return False
        stack += [parent for parent, _ in node.next_functions]
    return bool(known)


def compiles() -> bool:
    """Whether torch.compile was called in this process; torch's optimizers use dynamo without a backend."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(dynamo, "cached_backends", {}).values())
