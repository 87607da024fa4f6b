"""Marks for what lies between the calls of a network: backward passes, losses, loader waits and copies.

Torch has hooks for modules and optimizers. It has none for the start of a backward pass, a loss function, a
loader's wait or a copy to the device, so those entry points are replaced by wrappers that call the originals.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as functional
from torch.nn.modules.loss import _Loss
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from laptime.model import Phase
from laptime.recorder.arguments import batch_size
from laptime.recorder.backends import accelerators
from laptime.recorder.guard import RecordingPart, shielded
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.timeline import (
    COLLECTIVES,
    COPY,
    DATA_WAIT,
    HOST,
    LOSS,
    LOSS_BACKWARD,
    OPTIMIZERS,
    UNITS,
    LoopListener,
)
from laptime.recorder.torch_patches import Leave, Patches, watched

# Functional losses, by the names torch.nn.functional gives them.
LOSSES = (
    *sorted(name for name in dir(functional) if name.endswith("_loss") and not name.startswith("_")),
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "kl_div",
)


class PhaseMarks:
    """Turns what happens between the phases of a step into marks, on the recorded thread alone.

    Each `enter_` is given the arguments of a call of torch before it is made. None says that this call is not
    watched; otherwise what is returned is called with the result, None after an exception.
    """

    def __init__(self, hooks: NetworkHooks, listener: LoopListener) -> None:
        self._timeline = hooks.timeline
        self._hooks = hooks
        self._step = hooks.step
        self._listener = listener
        self._patches = Patches()

    def install(self) -> None:
        """Watch backward passes, losses, loader waits and copies from here on."""
        replace, loss = self._patches.replace, partial(watched, self.enter_loss)
        # Tensor.backward, autograd.backward and autograd.grad all end in this one function, under every name
        # a script may have imported them by.
        replace(torch.autograd, "_engine_run_backward", partial(watched, self._hooks.enter_backward))
        for name in LOSSES:
            function = getattr(functional, name)
            if isinstance(function, FunctionType):
                self._patches.replace_body(function, loss)
            else:  # a script has put something of its own there
                replace(functional, name, loss)
        # Its call is looked up anew each time: torch.fx replaces it while it traces.
        replace(_Loss, "__call__", lambda _: loss(lambda *args, **kw: torch.nn.Module.__call__(*args, **kw)))
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            replace(owner, "zero_grad", partial(watched, self.enter_zero_grad))
        replace(DataLoader, "__iter__", partial(watched, partial(self.enter_data, draws=False)))
        replace(_BaseDataLoaderIter, "__next__", partial(watched, partial(self.enter_data, draws=True)))
        for trace in (torch.jit.trace, torch.jit.trace_module):
            self._patches.replace_body(trace, partial(watched, self.enter_trace))  # type: ignore[arg-type]
        for name in ("to", *(name for backend in accelerators() for name in backend.copies)):
            replace(torch.Tensor, name, lambda copy: _Standin(copy, watched(self.enter_copy, copy)))

    def uninstall(self) -> None:
        """Stop, and leave torch as it was; what another patch still calls does nothing."""
        self._timeline.open = False
        self._step.backward_depth = 0
        self._patches.restore()

    @shielded(RecordingPart.RECORDING)
    def enter_loss(self, *_: Any, **__: Any) -> Leave | None:
        """A loss function, or a criterion module."""
        hooks, timeline = self._hooks, self._timeline
        if timeline.elsewhere() or self._step.in_loss or self._step.backward_depth:
            return None
        inside = self._step.forward_depth > 0
        earlier = timeline.owner
        hooks.loss.close()
        if timeline.owner != LOSS:
            timeline.mark(LOSS)
        if earlier != LOSS:
            hooks.entries.enter(LOSS_BACKWARD)
        self._step.in_loss = True
        reading = not hooks.reading.done and hooks.reading.enter(Phase.FORWARD)

        @shielded(RecordingPart.RECORDING)
        def leave(result: Any) -> None:
            if reading:
                hooks.reading.leave()
            self._step.in_loss = False
            if inside:
                timeline.give_back(earlier)
                if earlier >= UNITS:
                    hooks.entries.enter(earlier + 1)  # backward codes follow their forward codes
            elif torch.is_grad_enabled():
                timeline.give_back(LOSS)
                hooks.loss.open(complete=isinstance(result, torch.Tensor) and result.dim() == 0)
            else:
                timeline.mark(HOST)

        return leave

    @shielded(RecordingPart.RECORDING)
    def end_loss(self) -> None:
        """The loss is complete: what ran since its last operation, and what comes, is host time."""
        if not self._timeline.elsewhere():
            self._hooks.loss.close()
            if self._timeline.owner == LOSS:
                self._timeline.mark(HOST)

    @shielded(RecordingPart.RECORDING)
    def enter_zero_grad(self, *_: Any, **__: Any) -> Leave | None:
        """`zero_grad` begins, which is host time also between the operations of a loss."""
        if self._timeline.elsewhere() or self._inside() or self._timeline.owner != LOSS:
            return None
        self.end_loss()
        return self._back_to_loss

    @shielded(RecordingPart.RECORDING)
    def _back_to_loss(self, _: Any) -> None:
        self._timeline.give_back(LOSS)
        self._hooks.loss.open(complete=False)

    @shielded(RecordingPart.WORKLOAD)
    def enter_trace(self, *_: Any, **__: Any) -> None:
        """`torch.jit.trace` begins: under a torch function mode it would record constants, not operations."""
        self._hooks.loss.close()  # with it goes the mode that looks for its end
        if not self._hooks.reading.done:
            self._hooks.reading.give_up("torch.jit.trace was used in the first step")

    @shielded(RecordingPart.RECORDING)
    def enter_data(self, source: Any, *, draws: bool) -> Leave | None:
        """A loader starts its workers, or is asked for a batch."""
        if self._timeline.elsewhere() or self._inside() or self._timeline.owner == DATA_WAIT:
            return None
        if draws:
            self._listener.before_draw(source)
        in_loss = self._timeline.owner == LOSS
        self._hooks.loss.close()
        self._timeline.mark(DATA_WAIT)

        @shielded(RecordingPart.RECORDING)
        def leave(batch: Any) -> None:
            if in_loss:  # fetched ahead: the loss is still to come, or to go on
                self._back_to_loss(None)
            else:
                self._timeline.mark(HOST)
            if draws and batch is not None:
                self._step.samples = batch_size(batch)

        return leave

    @shielded(RecordingPart.RECORDING)
    def enter_copy(self, *_: Any, **__: Any) -> Leave | None:
        """A tensor moves between the phases: the batch goes to the device."""
        owner = self._timeline.owner if self._timeline.open else HOST
        if self._timeline.elsewhere() or self._inside() or self._step.in_loss or owner not in (HOST, LOSS):
            return None
        self._hooks.loss.close()
        self._timeline.mark(COPY)
        return self._back_to_loss if owner == LOSS else self._back_to_host

    @shielded(RecordingPart.RECORDING)
    def _back_to_host(self, _: Any) -> None:
        self._timeline.give_back(HOST)

    def _inside(self) -> bool:
        updating = OPTIMIZERS <= self._timeline.owner < COLLECTIVES
        return bool(self._step.forward_depth or self._step.backward_depth or updating)


class _Standin:
    """Replaces a method that torch has in C by a function of ours; equal to the method, and pickled as it.

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
