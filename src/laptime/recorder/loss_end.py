"""Splits the time after a forward pass into loss and host time.

In that stretch a script computes its loss, and whatever else it likes: the next batch, an environment's step,
a plot. Differentiable operations make autograd nodes, the rest makes none: the loss ends with the last node,
and a pause of a millisecond before a node is not its either. When nodes are made is told by a mode of torch
that sees every function call; it is on in such stretches of marked steps, and of the others once Python was
found to follow a loss. It stays off where it would be felt: in a process that compiles, whose graphs it would
change, and beside other modes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from laptime.recorder.autograd_graph import ACCUMULATE, sequence_number
from laptime.recorder.clocks import Stamp
from laptime.recorder.guard import RecordingPart, attempt
from laptime.recorder.optimizer_steps import listen
from laptime.recorder.running_step import RunningStep
from laptime.recorder.timeline import HOST, LOSS, RETURN, Timeline

NOTICEABLE_NS = 50_000  # of Python after a loss: enough to look for it in every step
PAUSE_NS = 1_000_000  # between two operations of a loss: no longer the loss's own Python
MOST_STRETCHES = 256  # of a step that are told apart
MOST_NODES = 64  # walked in the graph of a loss that is scaled


class LossStretch:
    """The open stretch of loss time, if any."""

    def __init__(self, timeline: Timeline, step: RunningStep) -> None:
        self._timeline = timeline
        self._step = step
        self._mark = -1  # where its last part begins; -1: none is open
        self._number = 0  # the sequence number at its begin
        self._complete = False
        self._nodes = _Nodes(timeline, self._pause)
        self._place = 0  # of the stretch among those of the step
        self._python_follows: set[int] = set()  # the stretches, by their place, that Python was found in

    def open(self, *, complete: bool) -> None:
        """It begins with the last mark. `complete`: the loss has its value; what may follow is small."""
        self._mark = len(self._timeline.owners) - 1
        self._number, self._complete = sequence_number(), complete
        self._place += 1
        if self._step.marked or self._place in self._python_follows:
            self._nodes.watch()

    def forget(self) -> None:
        """The step is over."""
        self._nodes.look_away()
        self._mark, self._place = -1, 0

    def end(self) -> None:
        """The recording is over."""
        self.forget()
        self._nodes.leave()

    def close(self, *, roots: Iterable[Any] = (), instead: int = LOSS) -> bool:
        """Something else begins: what came after the last node is host time. Whether there was a node.

        `roots`: nodes where a backward pass begins; `instead`: who the operations belong to.
        """
        mark, self._mark = self._mark, -1
        last = self._nodes.look_away()
        owners = self._timeline.owners
        if mark < 0 or mark != len(owners) - 1 or owners[mark] & ~RETURN != LOSS:
            return False
        number = sequence_number()
        if number == self._number:
            owners[mark] = HOST
            return False
        if instead != LOSS:
            owners[mark] = instead
        if last is not None and last.number == number:
            if time.perf_counter_ns() - last.at_ns > NOTICEABLE_NS and self._place < MOST_STRETCHES:
                self._python_follows.add(self._place)
            else:
                self._python_follows.discard(self._place)
            self._timeline.insert(last.stamp, HOST)
        elif self._complete and _only_scales(roots, self._number):
            owners[mark] = HOST
        return True

    def _pause(self, last: _Last | None, until: Stamp) -> None:
        """No node was made between these moments: host time. Without the first, since the stretch began."""
        if last is None:
            self._timeline.owners[self._mark] = HOST
        else:
            self._timeline.insert(last.stamp, HOST)
        self._timeline.insert(until, LOSS | RETURN)
        self._mark = len(self._timeline.owners) - 1


@dataclass(frozen=True, slots=True)
class _Last:
    """The last node that was made: its number, and when."""

    number: int
    stamp: Stamp
    at_ns: int


class _Nodes(TorchFunctionMode):
    """Notices when autograd nodes are made. Changes nothing of what is called."""

    def __init__(self, timeline: Timeline, pause: Callable[[_Last | None, Stamp], None]) -> None:
        super().__init__()
        self._timeline = timeline
        self._clock = timeline.clock
        self._pause = pause
        self._on = False
        self._left = False  # still on torch's stack, looking away
        self._calling = 0  # calls under way, during which torch has taken it off by itself
        self._number = 0
        self._since_ns = 0
        self._last: _Last | None = None

    def watch(self) -> None:
        """Start watching, unless that could disturb the training."""
        modes = _get_current_function_mode_stack()
        if not _UNTOUCHED or compiles() or self._calling or any(mode is not self for mode in modes):
            return
        if self._timeline.traced:  # its marks are found by when they were set
            return
        self._number, self._last, self._since_ns = sequence_number(), None, time.perf_counter_ns()
        self._on = True
        if not modes:
            self.__enter__()

    def look_away(self) -> _Last | None:
        """Stop watching; returns the last node."""
        last, self._last = (self._last if self._on else None), None
        if self._on or self._left:
            modes = _get_current_function_mode_stack()
            if modes and modes[-1] is self:
                self.__exit__(None, None, None)
                self._left = False
            else:  # under somebody's mode, or torch puts it back after this call: the next time, then
                self._left = True
        self._on = False
        return last

    def leave(self) -> None:
        """Leave torch's mode stack; during a call through this mode, at the next update."""
        if not self._left:
            return

        def take_off(*_: Any) -> None:
            self.look_away()
            unlisten()

        unlisten = listen(take_off, take_off)

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
        return self._clock.now() if time.perf_counter_ns() - self._since_ns > PAUSE_NS else None

    def _look(self, begin: Stamp | None) -> None:
        number = sequence_number()
        if number == self._number:
            if begin is not None:
                self._clock.recycle([begin])
            return
        last = self._last
        if begin is not None:
            self._pause(last, begin)
        elif last is not None:
            self._clock.recycle([last.stamp])
        self._number, self._since_ns = number, time.perf_counter_ns()
        self._last = _Last(number, self._clock.now(), self._since_ns)


_SPACES: tuple[Any, ...] = (torch.Tensor, torch, torch.nn.functional)
# What torch itself has there, kept before a script can put something of its own in its place.
_ORIGINALS = {id(space): {name: getattr(space, name) for name in dir(space)} for space in _SPACES}


def _is_torchs(function: Any) -> bool:
    """Whether a function is torch's own: written in C, or in its package."""
    if isinstance(function, FunctionType):
        return (function.__module__ or "").startswith("torch")
    return isinstance(
        function, BuiltinFunctionType | MethodDescriptorType | MethodWrapperType | WrapperDescriptorType
    )


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
    if isinstance(output, torch.Tensor):
        return output.dim() == 0 and output.requires_grad
    if isinstance(output, Mapping):
        output = tuple(output.values())
    return isinstance(output, list | tuple) and any(
        isinstance(item, torch.Tensor) and item.dim() == 0 and item.requires_grad for item in output[:8]
    )


def _only_scales(roots: Iterable[Any], number: int) -> bool:
    """Whether all nodes since a loss are of single numbers: it was scaled, or added to another."""
    stack, known = list(roots), set()
    while stack:
        node = stack.pop()
        if node is None or node in known or not number <= node._sequence_nr() < ACCUMULATE:
            continue
        known.add(node)
        metadata = getattr(node, "_input_metadata", None)  # of a Python function: unknown
        if len(known) > MOST_NODES or metadata is None or any(_size(entry.shape) != 1 for entry in metadata):
            return False
        stack += [parent for parent, _ in node.next_functions]
    return bool(known)


def _size(shape: Iterable[int]) -> int:
    size = 1
    for dimension in shape:
        size *= int(dimension)
    return size


def compiles() -> bool:
    """Whether torch.compile was called in this process; torch's optimizers use dynamo without a backend."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(dynamo, "cached_backends", {}).values())
