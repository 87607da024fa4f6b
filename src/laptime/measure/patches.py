"""The few places of torch that a recording watches while it is active, all put back when it ends.

Torch has hooks for modules and optimizers. It has none for the start of a backward pass, a loss function, a
loader's wait or a copy to the device, so those entry points are replaced by wrappers that call the originals.
Every wrapper steps aside while torch.compile traces it, so compiled graphs are the same with and without us.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as functional
from torch.nn.modules.loss import _Loss
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_compiling = torch.compiler.is_compiling


class Watcher(Protocol):
    """What the wrappers tell the recorder. Each method brackets one call of the original."""

    def watch_backward(self, call: Callable[[], Any], outputs: Any, *, accumulates: bool) -> Any: ...
    def watch_loss(self, call: Callable[[], Any], *, begins: bool) -> Any: ...
    def watch_data(self, call: Callable[[], Any], source: Any, *, draws: bool) -> Any: ...
    def watch_copy(self, call: Callable[[], Any]) -> Any: ...


# Functional losses, by the names torch.nn.functional gives them.
LOSSES = (
    *sorted(name for name in dir(functional) if name.endswith("_loss") and not name.startswith("_")),
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "kl_div",
)


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

    def restore(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


_active: Watcher | None = None


def active() -> Watcher | None:
    """The recorder that is watching, if any."""
    return _active


def _forget_in_child() -> None:
    # A forked loader worker inherits the wrappers; without this its copy of the timeline would grow for ever.
    global _active
    _active = None


os.register_at_fork(after_in_child=_forget_in_child)


def install(watcher: Watcher) -> Patches:
    """Start telling `watcher` about backward passes, losses, loader waits and copies."""
    global _active
    _active = watcher
    patches = Patches()
    # Tensor.backward, autograd.backward and autograd.grad all end in this one function, under every name a
    # script may have imported them by.
    patches.replace(torch.autograd, "_engine_run_backward", _backward)
    for name in LOSSES:
        patches.replace(functional, name, functools.partial(_loss, begins=False))
    patches.replace(_Loss, "__call__", functools.partial(_loss, begins=True))
    patches.replace(DataLoader, "__iter__", functools.partial(_data, draws=False))
    patches.replace(_BaseDataLoaderIter, "__next__", functools.partial(_data, draws=True))
    for name in ("to", "cuda"):
        patches.replace(torch.Tensor, name, _copy)
    return patches


def uninstall(patches: Patches) -> None:
    """Stop, and leave torch as it was."""
    global _active
    _active = None
    patches.restore()


def _backward(original: Any) -> Any:
    @functools.wraps(original)
    def engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _active is None or _compiling():
            return original(outputs, *args, **kwargs)
        # autograd.grad returns gradients instead of accumulating them, and says so here.
        accumulates = bool(kwargs.get("accumulate_grad", True))
        return _active.watch_backward(
            lambda: original(outputs, *args, **kwargs), outputs, accumulates=accumulates
        )

    return engine_run_backward


def _loss(original: Any, *, begins: bool) -> Any:
    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or _active is None:
            return original(*args, **kwargs)
        return _active.watch_loss(lambda: original(*args, **kwargs), begins=begins)

    return loss


def _data(original: Any, *, draws: bool) -> Any:
    @functools.wraps(original)
    def data(loader: Any) -> Any:
        if _active is None:
            return original(loader)
        return _active.watch_data(lambda: original(loader), loader, draws=draws)

    return data


def _copy(original: Any) -> Any:
    @functools.wraps(original)
    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or _active is None:
            return original(tensor, *args, **kwargs)
        return _active.watch_copy(lambda: original(tensor, *args, **kwargs))

    return copy
