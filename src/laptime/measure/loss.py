"""Where the loss ends and Python begins, in the stretch between a forward pass and what comes next.

In that stretch a script computes its loss, and whatever else it likes: the next batch, an environment's step,
a plot. Differentiable operations make autograd nodes, the rest makes none, so the loss ends with the last
node. When that was is told by a mode of torch that sees every function call; it is on in such stretches of
marked steps, and of the others once Python was found to follow a loss. It stays off where it would be felt:
in a process that compiles, whose graphs it would change, and beside other modes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from laptime.measure.clocks import Stamp
from laptime.measure.graph import ACCUMULATE, sequence_number
from laptime.measure.guard import Part, failed
from laptime.measure.timeline import HOST, LOSS, RETURN, Timeline

NOTICEABLE_NS = 50_000  # of Python after a loss: enough to look for it in every step
MOST_NODES = 64  # walked in the graph of a loss that is scaled


class LossStretch:
    """The stretch that is open, if one is."""

    def __init__(self, timeline: Timeline) -> None:
        self.marked_step = False
        self._timeline = timeline
        self._mark = -1  # where it begins; -1: none is open
        self._number = 0  # the sequence number there
        self._complete = False
        self._mode = _LastNode(timeline)
        self._python_follows = False

    def open(self, *, complete: bool) -> None:
        """It begins with the last mark. `complete`: the loss has its value; what may follow is small."""
        self._mark = len(self._timeline.owners) - 1
        self._number, self._complete = sequence_number(), complete
        if self.marked_step or self._python_follows:
            self._mode.put_on()

    def forget(self) -> None:
        """The step is over."""
        self._mode.take_off()
        self._mark = -1

    def close(self, *, roots: Iterable[Any] = (), instead: int = LOSS) -> bool:
        """Something else begins: what came after the last node is host time. Whether there was a node.

        `roots`: nodes where a backward pass begins; `instead`: who the operations belong to.
        """
        mark, self._mark = self._mark, -1
        seen = self._mode.take_off()
        owners = self._timeline.owners
        if mark < 0 or mark != len(owners) - 1 or owners[mark] & ~RETURN != LOSS:
            return False
        number = sequence_number()
        if number == self._number:
            owners[mark] = HOST
            return False
        if instead != LOSS:
            owners[mark] = instead
        if seen is not None and seen.number == number:
            self._python_follows = time.perf_counter_ns() - seen.at_ns > NOTICEABLE_NS
            self._timeline.insert(seen.stamp, HOST)
        elif self._complete and _only_scales(roots, self._number):
            owners[mark] = HOST
        return True


class _Seen:
    """The last node that was made: its number, and when."""

    __slots__ = ("at_ns", "number", "stamp")

    def __init__(self, number: int, stamp: Stamp, at_ns: int) -> None:
        self.number, self.stamp, self.at_ns = number, stamp, at_ns


class _LastNode(TorchFunctionMode):
    """Notices when the last autograd node was made. Changes nothing of what is called."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline
        self._clock = timeline.clock
        self._on = False
        self._left = False  # still on torch's stack, looking away
        self._calling = 0  # calls under way, during which torch has taken it off by itself
        self._number = 0
        self._last: _Seen | None = None

    def put_on(self) -> None:
        """Look, unless that could be felt."""
        traced = self._timeline.on_mark is not None  # its marks are found by when they were set
        modes = _get_current_function_mode_stack()
        if traced or compiles() or self._calling or any(one is not self for one in modes):
            return
        self._number, self._last = sequence_number(), None
        self._on = True
        if not modes:
            self.__enter__()

    def take_off(self) -> _Seen | None:
        """Look away; what was seen."""
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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calling += 1
        try:
            result = _unpatched(func)(*args, **(kwargs or {}))
        finally:
            self._calling -= 1
        if self._on:
            try:
                self._look()
            except Exception as error:
                self._on = False
                failed(Part.LAYERS, error)
        return result

    def _look(self) -> None:
        number = sequence_number()
        if number != self._number:
            self._number = number
            if self._last is not None:
                self._clock.recycle([self._last.stamp])
            self._last = _Seen(number, self._clock.now(), time.perf_counter_ns())


_BINDINGS = ((torch.Tensor, torch._C.TensorBase), (torch, torch._C._VariableFunctions))
_unpatched_functions: dict[Any, Any] = {}


def _unpatched(func: Any) -> Any:
    """What torch was about to do: it tells a mode the function by its name.

    Where a script, or laptime, has put a function of its own under that name, calling it would call it twice.
    """
    if not isinstance(func, FunctionType) or (func.__module__ or "").startswith("torch"):
        return func
    if func not in _unpatched_functions:
        names = ((base, name) for owner, base in _BINDINGS for name, one in vars(owner).items() if one is func)
        found = next((getattr(base, name) for base, name in names if hasattr(base, name)), func)
        _unpatched_functions[func] = found
    return _unpatched_functions[func]


def holds_loss(output: Any) -> bool:
    """Whether a network has given its own loss: a differentiable number, alone or among other things."""
    if isinstance(output, torch.Tensor):
        return output.dim() == 0 and output.requires_grad
    if isinstance(output, Mapping):
        output = tuple(output.values())
    return isinstance(output, list | tuple) and any(
        isinstance(one, torch.Tensor) and one.dim() == 0 and one.requires_grad for one in output[:8]
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
        if len(known) > MOST_NODES or metadata is None or any(_size(one.shape) != 1 for one in metadata):
            return False
        stack += [parent for parent, _ in node.next_functions]
    return bool(known)


def _size(shape: Iterable[int]) -> int:
    size = 1
    for one in shape:
        size *= int(one)
    return size


def compiles() -> bool:
    """Whether torch.compile was called in this process; torch's optimizers use dynamo without a backend."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return any(one is not None for one in getattr(dynamo, "cached_backends", {}).values())
