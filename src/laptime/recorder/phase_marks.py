"""Marks for what the patches report: backward passes, losses, loader waits and copies between phases."""

from __future__ import annotations

import threading
from typing import Any

import torch

from laptime.model import Phase
from laptime.recorder.arguments import batch_size
from laptime.recorder.autograd_graph import graph_roots
from laptime.recorder.guard import RecordingPart, shielded
from laptime.recorder.loop_listener import LoopListener
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.timeline import (
    COPY,
    DATA_WAIT,
    HOST,
    LOSS,
    LOSS_BACKWARD,
    OPTIMIZERS,
    RETURN,
    UNITS,
    Timeline,
)
from laptime.recorder.torch_patches import Leave


class PhaseMarks:
    """Turns what happens between the phases of a step into marks, on the recorded thread alone."""

    def __init__(self, timeline: Timeline, hooks: NetworkHooks, listener: LoopListener) -> None:
        self._timeline = timeline
        self._hooks = hooks
        self._step = hooks.step
        self._listener = listener
        self._in_loss = False

    def next_step(self) -> None:
        """Forget the loss of the step that ended."""
        self._hooks.loss.forget()
        self._in_loss = False

    @shielded(RecordingPart.RECORDING)
    def enter_backward(self, outputs: Any, *, accumulates: bool) -> Leave | None:
        """A backward pass, or a gradient taken by hand."""
        hooks, step = self._hooks, self._step
        if self._timeline.elsewhere() and not (step.backward_depth and _is_engine_thread()):
            return None
        if not step.backward_depth:
            hooks.loss.close(roots=graph_roots(outputs))
            if accumulates:
                self._listener.before_backward()
        return hooks.enter_backward(outputs, accumulates=accumulates)

    @shielded(RecordingPart.RECORDING)
    def enter_loss(self) -> Leave | None:
        """A loss function, or a criterion module."""
        hooks, timeline = self._hooks, self._timeline
        if self._timeline.elsewhere() or self._in_loss or self._step.backward_depth:
            return None
        inside = self._step.forward_depth > 0
        earlier = timeline.owner & ~RETURN
        hooks.loss.close()
        if timeline.owner & ~RETURN != LOSS:
            timeline.mark(LOSS)
        if earlier != LOSS:
            hooks.entries.enter(LOSS_BACKWARD)
        self._in_loss = True
        stop_reading = hooks.read(Phase.FORWARD)

        @shielded(RecordingPart.RECORDING)
        def leave(result: Any) -> None:
            stop_reading()
            self._in_loss = False
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
            if self._timeline.owner & ~RETURN == LOSS:
                self._timeline.mark(HOST)

    @shielded(RecordingPart.RECORDING)
    def enter_aside(self) -> Leave | None:
        """What is host time even between the operations of a loss: logging makes autograd nodes too."""
        if self._timeline.elsewhere() or self._inside() or self._timeline.owner & ~RETURN != LOSS:
            return None
        self.end_loss()
        return self._back_to_loss

    @shielded(RecordingPart.RECORDING)
    def _back_to_loss(self, _: Any) -> None:
        self._timeline.give_back(LOSS)
        self._hooks.loss.open(complete=False)

    @shielded(RecordingPart.WORKLOAD)
    def before_trace(self) -> None:
        """`torch.jit.trace` begins: beside a mode that reads operations it would make constants of them."""
        self._hooks.loss.close()  # with it goes the mode that looks for its end
        if not self._hooks.reading.done:
            self._hooks.reading.give_up("torch.jit.trace was used in the first step")

    @shielded(RecordingPart.RECORDING)
    def enter_data(self, source: Any, *, draws: bool) -> Leave | None:
        """A loader starts its workers, or is asked for a batch."""
        if self._timeline.elsewhere() or self._inside() or self._timeline.owner & ~RETURN == DATA_WAIT:
            return None
        if draws:
            self._listener.before_draw(source)
        in_loss = self._timeline.owner & ~RETURN == LOSS
        self._hooks.loss.close()
        self._timeline.mark(DATA_WAIT)

        @shielded(RecordingPart.RECORDING)
        def leave(batch: Any) -> None:
            if in_loss:  # fetched ahead: the loss is still to come, or to go on
                self._back_to_loss(None)
            else:
                self._timeline.mark(HOST)
            if draws and batch is not None:
                self._step.drew(batch_size(batch))

        return leave

    @shielded(RecordingPart.RECORDING)
    def enter_copy(self) -> Leave | None:
        """A tensor moves between the phases: the batch goes to the device."""
        owner = self._timeline.owner & ~RETURN if self._timeline.open else HOST
        if self._timeline.elsewhere() or self._inside() or self._in_loss or owner not in (HOST, LOSS):
            return None
        self._hooks.loss.close()
        self._timeline.mark(COPY)
        return self._back_to_loss if owner == LOSS else self._back_to_host

    @shielded(RecordingPart.RECORDING)
    def _back_to_host(self, _: Any) -> None:
        self._timeline.give_back(HOST)

    def _inside(self) -> bool:
        owner = self._timeline.owner & ~RETURN
        updating = OPTIMIZERS <= owner < UNITS
        return bool(self._step.forward_depth or self._step.backward_depth or updating)


def _is_engine_thread() -> bool:
    """Whether this thread belongs to autograd's engine: Python's threading did not start it."""
    return isinstance(threading.current_thread(), threading._DummyThread)
