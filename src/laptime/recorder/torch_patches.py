"""The few places of torch that a recording watches while it is active, all put back when it ends.

Torch has hooks for modules and optimizers. It has none for the start of a backward pass, a loss function, a
loader's wait or a copy to the device, so those entry points are replaced by wrappers that call the originals.
Every wrapper steps aside while torch.compile traces it, so compiled graphs are the same with and without us.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
import torch.nn.functional as functional
from torch.nn.modules.loss import _Loss
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from laptime.recorder.backends import accelerators


def tracing() -> bool:
    """Whether torch reads the code that runs instead of only running it: then we step aside."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


Leave = Callable[[Any], None]
"""Ends what was begun around a call, with the call's result; None after an exception."""


class Watcher(Protocol):
    """What the wrappers tell the recorder before they call the original.

    None says that this call is not watched; otherwise what is returned is called after the original. Neither
    may raise.
    """

    def enter_backward(self, outputs: Any, *, accumulates: bool) -> Leave | None: ...
    def enter_loss(self) -> Leave | None: ...
    def enter_data(self, source: Any, *, draws: bool) -> Leave | None: ...
    def enter_copy(self) -> Leave | None: ...
    def enter_aside(self) -> Leave | None: ...
    def before_trace(self) -> None: ...


# Functional losses, by the names torch.nn.functional gives them.
LOSSES = (
    *sorted(name for name in dir(functional) if name.endswith("_loss") and not name.startswith("_")),
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "kl_div",
)


# Constants of templates, in whose place is put what they say.
REPLACEMENT, ORIGINAL = "the replacement", "the original"


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
        original = getattr(owner, name)
        replacement = make(original)
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
        template: Any = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Have a function do what `make(original)` does, and stay the same object.

        Functions are pickled by their name, and pickle refuses one that its name does not lead to: with
        another function in its place, a network that keeps `F.cross_entropy` could not be saved. TorchScript
        reads source and signature, which stay as well. The new body is that of `template`, in whose constants
        are put the replacement, the original and what else is given.
        """
        code, attributes = function.__code__, dict(vars(function))
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        put = {REPLACEMENT: make(original), ORIGINAL: original, **(constants or {})}
        function.__dict__["__signature__"] = inspect.signature(function)
        body = (template or _call_replacement).__code__
        assert not body.co_freevars, "a template has no variables of its surroundings: Python would crash"
        function.__code__ = body.replace(
            co_consts=tuple(put.get(one, one) if isinstance(one, str) else one for one in body.co_consts),
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
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


_active: Watcher | None = None


def active() -> Watcher | None:
    """The recorder that is watching, if any."""
    return _active


def install(watcher: Watcher) -> Patches:
    """Start telling `watcher` about backward passes, losses, loader waits and copies."""
    global _active
    _active = watcher
    patches = Patches()
    # Tensor.backward, autograd.backward and autograd.grad all end in this one function, under every name a
    # script may have imported them by.
    patches.replace(torch.autograd, "_engine_run_backward", _backward)
    for name in LOSSES:
        function = getattr(functional, name)
        if isinstance(function, FunctionType):
            patches.replace_body(function, _loss)
        else:  # a script has put something of its own there
            patches.replace(functional, name, _loss)
    # Its call is looked up anew each time: torch.fx replaces it while it traces.
    patches.replace(
        _Loss, "__call__", lambda _: _loss(lambda *args, **kw: torch.nn.Module.__call__(*args, **kw))
    )
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.replace(owner, "zero_grad", _aside)
    patches.replace(DataLoader, "__iter__", functools.partial(_data, draws=False))
    patches.replace(_BaseDataLoaderIter, "__next__", functools.partial(_data, draws=True))
    for function in (torch.jit.trace, torch.jit.trace_module):
        patches.replace_body(function, _jit_trace)  # type: ignore[arg-type]
    for name in ("to", *(name for backend in accelerators() for name in backend.copies)):
        patches.replace(torch.Tensor, name, _copy)
    return patches


def _call_module(*args: Any, **kwargs: Any) -> Any:
    return torch.nn.Module.__call__(*args, **kwargs)


def uninstall(patches: Patches) -> None:
    """Stop, and leave torch as it was."""
    global _active
    _active = None
    patches.restore()


def _bracketed(leave: Leave | None, original: Any, args: Any, kwargs: Any) -> Any:
    if leave is None:
        return original(*args, **kwargs)
    result = None
    try:
        result = original(*args, **kwargs)
    finally:
        leave(result)
    return result


def _backward(original: Any) -> Any:
    @functools.wraps(original)
    def engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _active is None or tracing():
            return original(outputs, *args, **kwargs)
        # autograd.grad returns gradients instead of accumulating them, and says so here.
        leave = _active.enter_backward(outputs, accumulates=bool(kwargs.get("accumulate_grad", True)))
        return _bracketed(leave, original, (outputs, *args), kwargs)

    return engine_run_backward


def _loss(original: Any) -> Any:
    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if tracing() or _active is None:
            return original(*args, **kwargs)
        return _bracketed(_active.enter_loss(), original, args, kwargs)

    return loss


def _data(original: Any, *, draws: bool) -> Any:
    @functools.wraps(original)
    def data(loader: Any) -> Any:
        if _active is None:
            return original(loader)
        return _bracketed(_active.enter_data(loader, draws=draws), original, (loader,), {})

    return data


def _jit_trace(original: Any) -> Any:
    @functools.wraps(original)
    def trace(*args: Any, **kwargs: Any) -> Any:
        if _active is not None:
            _active.before_trace()
        return original(*args, **kwargs)

    return trace


def _aside(original: Any) -> Any:
    @functools.wraps(original)
    def aside(*args: Any, **kwargs: Any) -> Any:
        if tracing() or _active is None:
            return original(*args, **kwargs)
        return _bracketed(_active.enter_aside(), original, args, kwargs)

    return aside


class _Standin:
    """A method of C in whose place a function of ours is called: equal to it, and pickled as it is.

    Tensor classes with tables of overrides (`HANDLED[torch.Tensor.to] = …`) look methods up in them.
    """

    __slots__ = ("_function", "_original")

    def __init__(self, original: Any, function: Any) -> None:
        self._original, self._function = original, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else MethodType(self._function, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> Any:
        return self._original.__reduce__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _copy(original: Any) -> Any:
    @functools.wraps(original)
    def copy(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
        if tracing() or _active is None:
            return original(tensor, *args, **kwargs)
        return _bracketed(_active.enter_copy(), original, (tensor, *args), kwargs)

    return _Standin(original, copy)
