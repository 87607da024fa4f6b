"""Calls of modules, watched at their classes: nothing is put into a module, so nothing follows its copies.

A class gets a `__call__` of ours while modules of it are watched; which ones is a table beside. An attribute
or a hook of the module itself would be in its `__dict__`, and from there in every pickle, clone and copy
that a script makes of it (`nn.LSTM` pickles all of its `__dict__`; meta-learning clones by copying it).
Putting the watching on and off for a step changes the table alone: Python slows down for good the classes
that are changed often. A class that is watched costs its other modules 0.15 µs a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from laptime.measure.guard import Part, attempt, failed
from laptime.measure.patches import Patches

SLOT = "_compiled_call_impl"  # where `module.compile()` leaves the compiled call

Entering = Callable[[tuple[Any, ...]], None]
Leaving = Callable[[tuple[Any, ...], dict[str, Any], Any], None]

_compiling = torch.compiler.is_compiling
_watched: dict[int, _Watched] = {}  # by the module's id, which is not used again as long as it is here
_classes: dict[type, Patches] = {}
_forwards: dict[type, Patches] = {}  # classes whose `forward` is watched
_on_stranger: Callable[[nn.Module], None] | None = None
_depth = 0  # networks under way: what is called inside them is no stranger


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
    """Call `action` with every module of a watched class that is called and is not watched itself."""
    global _on_stranger
    _on_stranger = action


def call_watched(
    module: nn.Module, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Go on with a call that was under way when its module began to be watched."""
    watched = _watched.get(id(module))
    if watched is None:
        return original(module, *args, **kwargs)
    return watched.call(original, args, kwargs)


def watch_class(kind: type) -> None:
    """Watch a class, so that calls of its modules can be seen."""
    if kind not in _classes:
        patches = _classes[kind] = Patches()
        patches.replace(kind, "__call__", functools.partial(_watching, kind))


def watch_forward(kind: type) -> None:
    """Watch direct calls of `forward`, too, of those modules of a class that are watched."""
    owner = next(base for base in kind.__mro__ if "forward" in vars(base))
    function = vars(owner)["forward"]
    if owner not in _forwards and isinstance(function, FunctionType):
        patches = _forwards[owner] = Patches()
        patches.replace_body(function, _watching_forward)


def keep_classes(kinds: set[type]) -> None:
    """Leave all other classes as they were."""
    for kind in [kind for kind in _classes if kind not in kinds]:
        _classes.pop(kind).restore()


def release() -> None:
    """Watch nothing any more."""
    global _depth
    _watched.clear()
    _depth = 0
    for patches in (*_classes.values(), *_forwards.values()):
        patches.restore()
    _classes.clear()
    _forwards.clear()


class _Watched:
    """What is to be done around the calls of one module."""

    __slots__ = ("calls", "enter", "kind", "module", "pairs")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.calls = 0  # under way
        self.kind: type = type(module)
        self.pairs: list[tuple[Entering | None, Leaving | None]] = []
        self.enter: Entering | None = None  # the only thing to do, which is what layers have

    def changed(self) -> None:
        """Actions came or went."""
        alone = len(self.pairs) == 1 and self.pairs[0][1] is None
        self.enter = self.pairs[0][0] if alone else None
        if self.pairs:
            self.kind = type(self.module)  # a lazy module has become another
            watch_class(self.kind)
            _watched[id(self.module)] = self
        else:
            _watched.pop(id(self.module), None)

    def call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's call with all that is to be done around it."""
        for enter, _ in tuple(self.pairs):
            if enter is not None:
                try:
                    enter(args)
                except Exception as error:
                    failed(Part.LAYERS, error)
        return self.run(original, args, kwargs)

    def run(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's call with all that is to be done after it."""
        global _depth
        result = None
        _depth += 1
        self.calls += 1
        try:
            result = original(self.module, *args, **kwargs)
        finally:
            _depth = max(0, _depth - 1)
            self.calls -= 1
            for _, leave in tuple(self.pairs):  # also what was added by an `enter` of this very call
                if leave is not None:
                    try:
                        leave(args, kwargs, result)
                    except Exception as error:
                        failed(Part.RECORDING, error)
            if type(self.module) is not self.kind:
                self.changed()
        return result


def _add(module: nn.Module, enter: Entering | None, leave: Leaving | None) -> Callable[[], None]:
    watched = _watched.get(id(module)) or _Watched(module)
    pair = (enter, leave)
    watched.pairs.insert(0, pair)  # the latest first
    watched.changed()

    def undo() -> None:
        if pair in watched.pairs:
            watched.pairs.remove(pair)
            watched.changed()

    return undo


def _watching(kind: type, original: Callable[..., Any]) -> Callable[..., Any]:
    # Inherited, the call is looked up anew each time: the search for networks replaces `nn.Module.__call__`.
    inherited = "__call__" not in vars(kind)
    above: Any = next(base for base in kind.__mro__[1:] if "__call__" in vars(base))

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        unwatched = above.__call__ if inherited else original
        if _compiling():
            return unwatched(module, *args, **kwargs)
        watched = _watched.get(id(module))
        if watched is None:
            if _on_stranger is None or _depth:
                return unwatched(module, *args, **kwargs)
            attempt(Part.RECORDING, _on_stranger, module)
            return call_watched(module, unwatched, args, kwargs)
        if watched.kind is not kind:  # of a class below, by inheritance or `super()`: that one sees to it
            return unwatched(module, *args, **kwargs)
        enter = watched.enter
        if enter is None:
            return watched.call(unwatched, args, kwargs)
        try:
            enter(args)
        except Exception as error:
            failed(Part.LAYERS, error)
        if watched.enter is enter:
            return unwatched(module, *args, **kwargs)
        return watched.run(unwatched, args, kwargs)

    return functools.wraps(original)(call)


def _watching_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        watched = None if _compiling() else _watched.get(id(module))
        if watched is None or watched.calls:  # or it is called as modules are: its call sees to it
            return original(module, *args, **kwargs)
        return watched.call(original, args, kwargs)

    return forward


def undo_all(actions: list[Callable[[], None]]) -> None:
    """Run and forget."""
    while actions:
        actions.pop()()
