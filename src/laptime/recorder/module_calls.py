"""Calls of modules, watched in one place: the body of `nn.Module.__call__`.

Nothing is put into a module or its class, so nothing follows a copy, a clone of its `__dict__`, a pickle or a
class that is saved by its value. The function stays the same object, which torch.compile, torch.fx and
TorchScript know it by. Which modules are watched is a table beside; a module that is not costs 0.1 µs a call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

from laptime.recorder.guard import RecordingPart, attempt, failed
from laptime.recorder.torch_patches import Patches, tracing

SLOT = "_compiled_call_impl"  # where `module.compile()` leaves the compiled call

Entering = Callable[[tuple[Any, ...]], None]
Leaving = Callable[[tuple[Any, ...], dict[str, Any], Any], None]

_watched: dict[int, _Watched] = {}  # by the module's id; an entry goes when its module does
_outside: list[None] = []  # not empty while modules that are not watched are looked at, too
_patches = Patches()
_on_stranger: Callable[[nn.Module], None] | None = None
_depth = 0  # running networks: modules called inside them are part of a network


def compiled_call(module: nn.Module) -> Any:
    """The call that `module.compile()` made, if it did."""
    return vars(module).get(SLOT)


def is_watched(module: nn.Module) -> bool:
    """Whether calls of a module are watched."""
    return id(module) in _watched


def before(module: nn.Module, action: Entering) -> Callable[[], None]:
    """Call `action` with the arguments of each call of a module, before all its hooks; returns the undo."""
    return _add(module, action, None)


def after(module: nn.Module, action: Leaving) -> Callable[[], None]:
    """Call `action` with the arguments and the result of each call of a module; returns the undo."""

    def leave(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if result is not None:
            action(args, kwargs, result)

    return _add(module, None, leave)


def around(module: nn.Module, enter: Callable[[], None], leave: Callable[[Any], None]) -> Callable[[], None]:
    """Call `enter`, and `leave` with the output, around each call of a module; returns the undo.

    `leave` is called after an exception too, with None: a loop may catch it, skip the batch and go on.
    """
    return _add(module, lambda _: enter(), lambda _, __, result: leave(result))


def on_stranger(action: Callable[[nn.Module], None] | None) -> None:
    """Call `action` with every module that is called from outside of networks and is not watched."""
    global _on_stranger
    _on_stranger = action
    _outside[:] = [None] if action is not None else []
    if action is not None:
        _watch_calls()


def watch_forward(kind: type) -> None:
    """See direct calls of `forward`, too, of those modules of a class that are watched."""
    function = next(vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base))
    if isinstance(function, FunctionType):
        _patches.replace_body(function, _watching_forward)


def release() -> None:
    """Watch nothing any more."""
    global _depth
    _watched.clear()
    _depth = 0
    if _on_stranger is None:
        _patches.restore()


class _Watched:
    """What is to be done around the calls of one module."""

    __slots__ = ("calls", "enter", "pairs", "reference")

    def __init__(self, module: nn.Module) -> None:
        key = id(module)
        self.reference = weakref.ref(module, lambda _: _watched.pop(key, None))
        self.calls = 0  # under way
        self.pairs: list[tuple[Entering | None, Leaving | None]] = []
        self.enter: Entering | None = None  # the only thing to do, which is what layers have

    def changed(self) -> None:
        """Called after actions were added or removed."""
        alone = len(self.pairs) == 1 and self.pairs[0][1] is None
        self.enter = self.pairs[0][0] if alone else None
        module = self.reference()
        if module is not None and self.pairs:
            _watched[id(module)] = self
        elif module is not None:
            _watched.pop(id(module), None)

    def call(self, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's call with all that is to be done around it."""
        for enter, _ in tuple(self.pairs):
            if enter is not None:
                try:
                    enter(args)
                except Exception as error:
                    failed(RecordingPart.LAYERS, error)
        return self.run(original, module, args, kwargs)

    def run(self, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's call with all that is to be done after it."""
        global _depth
        result = None
        _depth += 1
        self.calls += 1
        _outside.clear()
        try:
            result = original(module, *args, **kwargs)
        finally:
            _depth = max(0, _depth - 1)
            self.calls -= 1
            if not _depth and _on_stranger is not None:
                _outside[:] = [None]
            for _, leave in tuple(self.pairs):  # also what was added by an `enter` of this very call
                if leave is not None:
                    try:
                        leave(args, kwargs, result)
                    except Exception as error:
                        failed(RecordingPart.RECORDING, error)
        return result


def _add(module: nn.Module, enter: Entering | None, leave: Leaving | None) -> Callable[[], None]:
    _watch_calls()
    watched = _watched.get(id(module)) or _Watched(module)
    pair = (enter, leave)
    watched.pairs.insert(0, pair)  # the latest first
    watched.changed()

    def undo() -> None:
        if pair in watched.pairs:
            watched.pairs.remove(pair)
            watched.changed()

    return undo


def _watch_calls() -> None:
    if not _patches:
        body = nn.Module.__call__
        assert isinstance(body, FunctionType)
        _patches.replace_body(body, _watching, template=_call, constants={TABLE: _watched, OUTSIDE: _outside})


TABLE, OUTSIDE = "watched modules", "whether strangers count"


def _call(self, *args, **kwargs):  # type: ignore[no-untyped-def]
    """A template: see `Patches.replace_body`."""
    watched: Any = "watched modules"
    outside: Any = "whether strangers count"
    replacement: Any = "the replacement"
    original: Any = "the original"
    if id(self) in watched or outside:
        return replacement(self, args, kwargs)
    return original(self, *args, **kwargs)


def _watching(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if tracing():
            return original(module, *args, **kwargs)
        watched = _watched.get(id(module))
        if watched is None:
            if _on_stranger is None or _depth:
                return original(module, *args, **kwargs)
            attempt(RecordingPart.RECORDING, _on_stranger, module)
            watched = _watched.get(id(module))
            if watched is None:
                return original(module, *args, **kwargs)
        enter = watched.enter
        if enter is None:
            return watched.call(original, module, args, kwargs)
        try:
            enter(args)
        except Exception as error:
            failed(RecordingPart.LAYERS, error)
        if watched.enter is enter:
            return original(module, *args, **kwargs)
        return watched.run(original, module, args, kwargs)

    return call


def _watching_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        watched = None if tracing() else _watched.get(id(module))
        if watched is None or watched.calls:  # or it is called as modules are: its call sees to it
            return original(module, *args, **kwargs)
        return watched.call(original, module, args, kwargs)

    return forward


def undo_all(actions: list[Callable[[], None]]) -> None:
    """Run every undo function and clear the list."""
    while actions:
        actions.pop()()
