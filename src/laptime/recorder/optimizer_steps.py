"""Optimizers: their steps are marked as updates, and counted."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from laptime.recorder.guard import RecordingPart, attempt
from laptime.recorder.timeline import (
    HOST,
    MOST_OPTIMIZERS,
    OPTIMIZERS,
    LoopListener,
    RunningStep,
    Timeline,
    in_engine_thread,
)
from laptime.recorder.torch_patches import Leave, tracing, watched

_STEPS = Optimizer.profile_hook_step.__code__.co_filename  # where torch wraps the steps of all optimizers


class Updates:
    """The optimizers of a recording, by their place in the list."""

    def __init__(
        self, timeline: Timeline, step: RunningStep, begun: Callable[[], object], listener: LoopListener
    ) -> None:
        self._charged: list[list[weakref.ref[Optimizer]]] = []  # by the place that they are charged to
        self._places: dict[int, int] = {}  # by identity: asked four times a step
        self._timeline = timeline
        self._step = step
        self._begun = begun
        self._listener = listener
        self._depth = 0
        self._passed = 0  # the id of an unknown optimizer whose step has begun
        self.total = 0
        self._new: list[int] = []
        self.detach: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Watch updates, including what the optimizers' own hooks do."""
        self.detach = listen(self._before_update, self._after_update)

    @property
    def places(self) -> int:
        return len(self._charged)

    @property
    def optimizers(self) -> list[Optimizer]:
        return [optimizer for place in range(len(self._charged)) for optimizer in self.charged_to(place)]

    def charged_to(self, place: int) -> list[Optimizer]:
        """The optimizers that share a place: one, but for the last."""
        return [optimizer for reference in self._charged[place] if (optimizer := reference()) is not None]

    def add(self, optimizer: Optimizer) -> None:
        """Charge this optimizer's steps as updates; those past the number of places share the last."""
        key = id(optimizer)
        if len(self._charged) < MOST_OPTIMIZERS:
            self._charged.append([])
            self._new.append(0)
        self._places[key] = len(self._charged) - 1
        last = self._charged[-1]
        last[:] = [reference for reference in last if reference() is not None]
        last.append(weakref.ref(optimizer, lambda _: self._places.pop(key, None)))

    def next_step(self) -> None:
        """Forget an update that never ended; one under way, whose closure begins a step, goes on."""
        if self._depth:
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame.f_code.co_filename != _STEPS:
                frame = frame.f_back
            if frame is None:  # no optimizer's step is among the callers
                self._depth = 0

    def new(self) -> int:
        """Updates since this was last asked; of several optimizers in turns, those of the busiest."""
        most = max(self._new, default=0)
        if most:
            self._new = [0] * len(self._new)
        return most

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._timeline.thread and not in_engine_thread()

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self._elsewhere():
            return None
        if id(optimizer) not in self._places:
            self._listener.unknown_optimizer(optimizer)
        index = self._places.get(id(optimizer))
        if index is None:
            self._passed = id(optimizer)
            return None
        self._depth += 1
        if self._depth > 1:
            return None  # a subclass calls its parent's step
        self._listener.before_update(optimizer)
        code = OPTIMIZERS + index
        self._begun()
        self._timeline.follow_up(code)
        return _with_closure(args, kwargs, self._timeline, code)

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._elsewhere():
            return
        if id(optimizer) not in self._places and self._passed != id(optimizer):
            # Its step, with a closure, began before the recording.
            self._listener.unknown_optimizer(optimizer)
            self._depth = 1 if id(optimizer) in self._places else self._depth
        index = self._places.get(id(optimizer))
        if index is None or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._timeline.mark(HOST)
            self._new[index] += 1
            self.total += 1
            self._step.evidence.update = True
            self._listener.after_update(optimizer)


class Hook:
    """A hook of ours in torch's tables, from where a class that is pickled by its value takes it along.

    It is pickled as something that takes the same arguments and does nothing, in any process.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return None if tracing() else attempt(RecordingPart.RECORDING, self._function, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


Listener = Callable[[Optimizer, Any, Any], Any]
_listeners: list[tuple[Listener, Listener]] = []  # before and after a step
_handles: list[RemovableHandle] = []
_telling = 0


def listen(before: Listener, after: Listener) -> Callable[[], None]:
    """Watch every optimizer's steps, outside its own hooks; returns the undo.

    Torch walks its table of hooks while it calls them, and raises if that changes: so ours are one pair,
    which is taken off only while no optimizer makes a step.
    """
    pair = (before, after)
    _listeners.append(pair)
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(Hook(partial(_tell, 0))))
        _handles.append(register_optimizer_step_post_hook(Hook(partial(_tell, 1))))

    def undo() -> None:
        if pair in _listeners:
            _listeners.remove(pair)
        tidy()

    return undo


def tidy() -> None:
    while _handles and not _telling and not _listeners:
        _handles.pop().remove()


def _tell(moment: int, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    global _telling
    changed = None
    _telling += 1
    try:
        for pair in tuple(_listeners):
            changed = pair[moment](optimizer, args, kwargs) or changed
    finally:
        _telling -= 1
    return changed


def _with_closure(args: Sequence[Any], kwargs: dict[str, Any], timeline: Timeline, code: int) -> Any:
    """A closure runs a forward and a backward pass inside `step`: its Python is host time, not update."""
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    if not isinstance(closure, FunctionType | MethodType | partial):
        return None  # an optimizer's own argument, such as the network

    def enter(*_: Any, **__: Any) -> Leave:
        attempt(RecordingPart.RECORDING, timeline.mark, HOST)
        return lambda _: attempt(RecordingPart.RECORDING, timeline.give_back, code)

    if kwargs.get("closure") is closure:
        return tuple(args), {**kwargs, "closure": watched(enter, closure)}
    return (args[0], watched(enter, closure), *args[2:]), kwargs
