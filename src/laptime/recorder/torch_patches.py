"""How torch is watched while a recording is active; everything is put back when it ends.

`Patches` replaces attributes and the bodies of functions. Calls of modules are watched in one place, the body
of `nn.Module.__call__`: nothing is put into a module or its class, so nothing follows a copy, a clone of its
`__dict__`, a pickle or a class that is saved by its value. The function stays the same object, which
torch.compile, torch.fx and TorchScript know it by. Which modules are watched is a table beside; a module that
is not costs 0.1 µs a call. Whatever is replaced steps aside while torch.compile traces it, so compiled graphs
are the same with and without us.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn

from laptime.recorder.guard import RecordingPart, attempt, failed


def tracing() -> bool:
    """Whether torch reads the code that runs instead of only running it: then we step aside."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _call_replacement(*args: Any, **kwargs: Any) -> Any:
    replacement: Any = "the replacement"
    return replacement(*args, **kwargs)


class Patches:
    """Replaced attributes and how to put them back, in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`; an inherited attribute is deleted again on restore."""
        inherited = name not in vars(owner)
        kept = vars(owner).get(name)  # as it is there: a C++ method got by getattr would never bind again
        replacement = make(getattr(owner, name))
        setattr(owner, name, replacement)

        def undo() -> None:
            # Somebody who patched after us wraps our wrapper: leave theirs alone, ours then does nothing.
            if vars(owner).get(name) is replacement:
                if inherited:
                    delattr(owner, name)
                else:
                    setattr(owner, name, kept)

        self._undo.append(undo)

    def replace_body(
        self,
        function: FunctionType,
        make: Callable[[Any], Any],
        *,
        template: Any = _call_replacement,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Have a function do what `make(original)` does, and stay the same object.

        Functions are pickled by their name, and pickle refuses one that its name does not lead to: with
        another function in its place, a network that keeps `F.cross_entropy` could not be saved. TorchScript
        reads source and signature, which stay as well. The new body is that of `template`, in whose constants
        are put the replacement, the original and what else is given for strings that say so.
        """
        code, attributes = function.__code__, dict(vars(function))
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        put = {"the replacement": make(original), "the original": original, **(constants or {})}
        function.__dict__["__signature__"] = inspect.signature(function)
        body = template.__code__
        assert not body.co_freevars, "a template has no variables of its surroundings: Python would crash"
        function.__code__ = body.replace(
            co_consts=tuple(
                put.get(value, value) if isinstance(value, str) else value for value in body.co_consts
            ),
            co_filename=code.co_filename,
            co_firstlineno=code.co_firstlineno,
            co_name=code.co_name,
            co_qualname=code.co_qualname,
            co_freevars=code.co_freevars,  # Python asks for as many as the function has cells
        )

        def undo() -> None:
            function.__code__ = code
            vars(function).clear()
            vars(function).update(attributes)

        self._undo.append(undo)

    def __bool__(self) -> bool:
        return bool(self._undo)

    def restore(self) -> None:
        undo_all(self._undo)


Leave = Callable[[Any], None]
"""Ends what was begun around a call, with the call's result; None after an exception."""


def watched(enter: Callable[..., Leave | None], original: Any) -> Any:
    """Calls `enter` with the arguments, then the original, then with its result what `enter` returned."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        leave = None if tracing() else enter(*args, **kwargs)
        if leave is None:
            return original(*args, **kwargs)
        result = None
        try:
            result = original(*args, **kwargs)
        finally:
            leave(result)
        return result

    return call


def undo_all(actions: list[Callable[[], None]]) -> None:
    """Run every undo function and clear the list."""
    while actions:
        actions.pop()()


# -- calls of modules ----------------------------------------------------------------------------------------

Entering = Callable[[tuple[Any, ...]], None]
Leaving = Callable[[tuple[Any, ...], dict[str, Any], Any], None]

_watched: dict[int, _Watched] = {}  # by the module's id; an entry goes when its module does
_outside: list[None] = []  # not empty while modules that are not watched are looked at, too
_patches = Patches()
_on_stranger: Callable[[nn.Module], None] | None = None
_depth = 0  # running networks: modules called inside them are part of a network


def is_watched(module: nn.Module) -> bool:
    return id(module) in _watched


def watch(
    module: nn.Module, enter: Entering | None = None, leave: Leaving | None = None
) -> Callable[[], None]:
    """Call `enter` before each call of a module and all its hooks, `leave` after it; returns the undo.

    `leave` is called after an exception too, with None: a loop may catch it, skip the batch and go on.
    """
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


def _watch_calls() -> None:
    if not _patches:
        body = nn.Module.__call__
        assert isinstance(body, FunctionType)
        constants = {"watched modules": _watched, "whether strangers count": _outside}
        _patches.replace_body(body, _watching, template=_call, constants=constants)


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
        if watched is None and _on_stranger is not None and not _depth:
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
