"""Hooks on modules that come off again, are never compiled, and follow no module into a copy or a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

Entering = Callable[[tuple[Any, ...]], None]
Leaving = Callable[[Any], None]

_compiling = torch.compiler.is_compiling


class _Hook:
    """A hook of ours. In a deep copy or a pickle of its module it becomes one of Python's that does nothing.

    A script may save a whole module, or copy it to average weights, while it is recorded: the file must load
    where laptime is not installed, and calls of the copy are not calls of the network.
    """

    __slots__ = ("_action",)

    def __init__(self, action: Callable[..., None]) -> None:
        self._action = action

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes anything, returns None

    def __deepcopy__(self, _: Any) -> Any:
        return nullcontext().__exit__


class _Before(_Hook):
    __slots__ = ()

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        if not _compiling():
            self._action(args)


class _After(_Hook):
    __slots__ = ()

    def __call__(self, _: nn.Module, __: Any, output: Any) -> None:
        if not _compiling():
            self._action(output)


class _Called(_Hook):
    __slots__ = ()

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._action(args, kwargs, output)


def before(module: nn.Module, action: Entering) -> Callable[[], None]:
    """Call `action` with the arguments of each call of a module, first of all its hooks; returns the undo."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _CompiledCall.of(module).add(action, None)
    return module.register_forward_pre_hook(_Before(action), prepend=True).remove


def around(module: nn.Module, enter: Callable[[], None], leave: Leaving) -> Callable[[], None]:
    """Call `enter`, and `leave` with the output, around each call of a module; returns the undo."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _CompiledCall.of(module).add(lambda _: enter(), leave)
    undo_enter = before(module, lambda _: enter())
    # Also after an exception, with None: a loop may catch it, skip the batch and go on.
    handle = module.register_forward_hook(_After(leave), always_call=True)

    def undo() -> None:
        undo_enter()
        handle.remove()

    return undo


def after(
    module: nn.Module, action: Callable[[tuple[Any, ...], dict[str, Any], Any], None]
) -> Callable[[], None]:
    """Call `action` with the arguments and the result of each call of a module; returns the undo."""
    return module.register_forward_hook(_Called(action), with_kwargs=True).remove


class _CompiledCall:
    """`module.compile()` compiles the hooks along with the call, so the compiled call itself is wrapped."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._compiled: Any = module._compiled_call_impl
        self._pairs: list[tuple[Entering, Leaving | None]] = []

    @classmethod
    def of(cls, module: nn.Module) -> _CompiledCall:
        """The wrapper that is there already, or a new one."""
        present = module._compiled_call_impl
        return present if isinstance(present, cls) else cls(module)

    def add(self, enter: Entering, leave: Leaving | None) -> Callable[[], None]:
        """Call both around the compiled call; returns the undo."""
        pair = (enter, leave)
        self._pairs.insert(0, pair)  # the latest first, as hooks are
        self._module._compiled_call_impl = self

        def undo() -> None:
            self._pairs.remove(pair)
            if not self._pairs and self._module._compiled_call_impl is self:
                self._module._compiled_call_impl = self._compiled

        return undo

    def __deepcopy__(self, _: Any) -> Any:
        return self._compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for enter, _ in tuple(self._pairs):
            enter(args)
        result = None
        try:
            result = self._compiled(*args, **kwargs)
        finally:
            for _, leave in tuple(self._pairs):
                if leave is not None:
                    leave(result)
        return result


def undo_all(actions: list[Callable[[], None]]) -> None:
    """Run and forget."""
    while actions:
        actions.pop()()
