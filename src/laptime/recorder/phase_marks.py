"""What the patches see, as marks: backward passes, losses, loader waits and copies between the phases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from laptime.model import Phase
from laptime.recorder.arguments import batch_size
from laptime.recorder.autograd_graph import graph_roots
from laptime.recorder.guard import Part, shielded
from laptime.recorder.network_hooks import Instruments
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


class Watch:
    """Turns what happens between the phases of a step into marks, on the recorded thread alone."""

    def __init__(self, timeline: Timeline, instruments: Instruments) -> None:
        self.samples: int | None = None  # in the batch that was drawn last
        self.before_draw: Callable[[Any], None] | None = None  # set by `laptime run`, whose steps start there
        self.before_backward: Callable[[], None] | None = None  # likewise
        self._timeline = timeline
        self._instruments = instruments
        self._in_loss = False

    @property
    def open(self) -> bool:
        """Whether a step is running."""
        return self._timeline.open

    def begin(self) -> None:
        """The first step opens, on the thread whose loop is recorded."""
        self._timeline.open = True
        self._timeline.thread = threading.get_ident()

    def elsewhere(self) -> bool:
        """Whether this is another thread than the recorded one, or no step is open yet."""
        return threading.get_ident() != self._timeline.thread or not self.open

    def next_step(self) -> None:
        """Forget the loss of the step that ended."""
        self._instruments.loss.forget()
        self._in_loss = False

    @shielded(Part.RECORDING)
    def enter_backward(self, outputs: Any, *, accumulates: bool) -> Leave | None:
        """A backward pass, or a gradient taken by hand."""
        instruments = self._instruments
        if self.elsewhere() and not (instruments.backward_depth and _is_engine_thread()):
            return None
        if not instruments.backward_depth:
            instruments.loss.close(roots=graph_roots(outputs))
            if accumulates and self.before_backward is not None:
                self.before_backward()
        return instruments.enter_backward(outputs, accumulates=accumulates)

    @shielded(Part.RECORDING)
    def enter_loss(self) -> Leave | None:
        """A loss function, or a criterion module."""
        instruments, timeline = self._instruments, self._timeline
        if self.elsewhere() or self._in_loss or instruments.backward_depth:
            return None
        inside = instruments.forward_depth > 0
        earlier = timeline.owner & ~RETURN
        instruments.loss.close()
        if timeline.owner & ~RETURN != LOSS:
            timeline.mark(LOSS)
        if earlier != LOSS:
            instruments.entries.enter(LOSS_BACKWARD)
        self._in_loss = True
        stop_reading = instruments.read(Phase.FORWARD)

        @shielded(Part.RECORDING)
        def leave(result: Any) -> None:
            stop_reading()
            self._in_loss = False
            if inside:
                timeline.give_back(earlier)
                if earlier >= UNITS:
                    instruments.entries.enter(earlier + 1)  # backward codes follow their forward codes
            elif torch.is_grad_enabled():
                timeline.give_back(LOSS)
                instruments.loss.open(complete=isinstance(result, torch.Tensor) and result.dim() == 0)
            else:
                timeline.mark(HOST)

        return leave

    @shielded(Part.RECORDING)
    def end_loss(self) -> None:
        """The loss is complete: what ran since its last operation, and what comes, is host time."""
        if not self.elsewhere():
            self._instruments.loss.close()
            if self._timeline.owner & ~RETURN == LOSS:
                self._timeline.mark(HOST)

    @shielded(Part.RECORDING)
    def enter_aside(self) -> Leave | None:
        """What is host time even between the operations of a loss: logging makes autograd nodes too."""
        if self.elsewhere() or self._inside() or self._timeline.owner & ~RETURN != LOSS:
            return None
        self.end_loss()
        return self._back_to_loss

    @shielded(Part.RECORDING)
    def _back_to_loss(self, _: Any) -> None:
        self._timeline.give_back(LOSS)
        self._instruments.loss.open(complete=False)

    @shielded(Part.WORKLOAD)
    def before_trace(self) -> None:
        """`torch.jit.trace` begins: beside a mode that reads operations it would make constants of them."""
        self._instruments.loss.close()  # with it goes the mode that looks for its end
        if self._instruments.reading is not None:
            self._instruments.reading.give_up("torch.jit.trace was used in the first step")
            self._instruments.reading = None

    @shielded(Part.RECORDING)
    def enter_data(self, source: Any, *, draws: bool) -> Leave | None:
        """A loader starts its workers, or is asked for a batch."""
        if self.elsewhere() or self._inside() or self._timeline.owner & ~RETURN == DATA_WAIT:
            return None
        if draws and self.before_draw is not None:
            self.before_draw(source)
        in_loss = self._timeline.owner & ~RETURN == LOSS
        self._instruments.loss.close()
        self._timeline.mark(DATA_WAIT)

        @shielded(Part.RECORDING)
        def leave(batch: Any) -> None:
            if in_loss:  # fetched ahead: the loss is still to come, or to go on
                self._back_to_loss(None)
            else:
                self._timeline.mark(HOST)
            if draws and batch is not None:
                self.samples = batch_size(batch)

        return leave

    @shielded(Part.RECORDING)
    def enter_copy(self) -> Leave | None:
        """A tensor moves between the phases: the batch goes to the device."""
        owner = self._timeline.owner & ~RETURN if self.open else HOST
        if self.elsewhere() or self._inside() or self._in_loss or owner not in (HOST, LOSS):
            return None
        self._instruments.loss.close()
        self._timeline.mark(COPY)
        return self._back_to_loss if owner == LOSS else self._back_to_host

    @shielded(Part.RECORDING)
    def _back_to_host(self, _: Any) -> None:
        self._timeline.give_back(HOST)

    def _inside(self) -> bool:
        owner = self._timeline.owner & ~RETURN
        updating = OPTIMIZERS <= owner < UNITS
        return bool(self._instruments.forward_depth or self._instruments.backward_depth or updating)


def _is_engine_thread() -> bool:
    """Whether this thread belongs to autograd's engine: Python's threading did not start it."""
    return isinstance(threading.current_thread(), threading._DummyThread)
