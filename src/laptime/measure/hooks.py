"""Calls of a module, watched from in front of it: the watching comes off again and follows no copy or file.

Torch looks at `module._compiled_call_impl` first and calls what it finds there; `module.compile()` uses it.
A wrapper in that slot costs 0.1 µs a call where a forward hook costs 1.2, since a module with any hook leaves
torch's fast path. Torch leaves the slot out of pickles and copies, and out of the graphs that it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

SLOT = "_compiled_call_impl"

Entering = Callable[[tuple[Any, ...]], None]
Leaving = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


def compiled_call(module: nn.Module) -> Any:
    """The call that `module.compile()` made, if it did."""
    present = vars(module).get(SLOT)
    return present.compiled if isinstance(present, _Watched) else present


def is_watched(module: nn.Module) -> bool:
    """Whether something of ours is in front of a module."""
    return isinstance(vars(module).get(SLOT), _Watched)


def before(module: nn.Module, action: Entering) -> Callable[[], None]:
    """Call `action` with the arguments of each call of a module, before all its hooks; returns the undo."""
    return _Watched.of(module).add(action, None)


def after(module: nn.Module, action: Leaving) -> Callable[[], None]:
    """Call `action` with the arguments and the result of each call of a module; returns the undo."""

    def leave(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if result is not None:
            action(args, kwargs, result)

    return _Watched.of(module).add(None, leave)


def around(module: nn.Module, enter: Callable[[], None], leave: Callable[[Any], None]) -> Callable[[], None]:
    """Call `enter`, and `leave` with the output, around each call of a module; returns the undo.

    `leave` is called after an exception too, with None: a loop may catch it, skip the batch and go on.
    """
    return _Watched.of(module).add(lambda _: enter(), lambda _, __, result: leave(result))


class _Watched:
    """A module's call with what is to be done around it, in the place of the call."""

    __slots__ = ("_call", "_enter", "_module", "_pairs", "compiled")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.compiled: Any = vars(module).get(SLOT)  # what `module.compile()` left there
        self._call: Callable[..., Any] = self.compiled or module._call_impl
        self._pairs: list[tuple[Entering | None, Leaving | None]] = []
        self._enter: Entering | None = None  # the only thing to do, which is what layers have

    @classmethod
    def of(cls, module: nn.Module) -> _Watched:
        """The wrapper that is there already, or a new one."""
        present = vars(module).get(SLOT)
        return present if isinstance(present, cls) else cls(module)

    def add(self, enter: Entering | None, leave: Leaving | None) -> Callable[[], None]:
        """Call both around the module's call; returns the undo."""
        pair = (enter, leave)
        self._pairs.insert(0, pair)  # the latest first
        self._changed()

        def undo() -> None:
            self._pairs.remove(pair)
            self._changed()

        return undo

    def _changed(self) -> None:
        alone = len(self._pairs) == 1 and self._pairs[0][1] is None
        self._enter = self._pairs[0][0] if alone else None
        # Not by setattr: what `torch.compile` returns passes that on to the module inside.
        slots = vars(self._module)
        if slots.get(SLOT) not in (self, self.compiled):
            return  # the module was compiled meanwhile
        if self._pairs:
            slots[SLOT] = self
        elif self.compiled is not None:
            slots[SLOT] = self.compiled
        else:
            slots.pop(SLOT, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # for a module that pickles its whole __dict__: None is an empty slot

    def __deepcopy__(self, _: Any) -> Any:
        return self.compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        enter = self._enter
        if enter is not None:
            enter(args)
            if self._enter is enter:
                return self._call(*args, **kwargs)
        else:
            for enter, _ in tuple(self._pairs):
                if enter is not None:
                    enter(args)
        result = None
        try:
            result = self._call(*args, **kwargs)
        finally:
            for _, leave in tuple(self._pairs):  # also what was added by an `enter` of this very call
                if leave is not None:
                    leave(args, kwargs, result)
        return result


def undo_all(actions: list[Callable[[], None]]) -> None:
    """Run and forget."""
    while actions:
        actions.pop()()
