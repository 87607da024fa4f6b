"""What the patches see, as marks: backward passes, losses, loader waits and copies between the phases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from laptime.measure.arguments import batch_size
from laptime.measure.graph import sequence_number
from laptime.measure.instruments import Instruments
from laptime.measure.timeline import (
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
from laptime.workload import Phase

NO_LOSS = (0, -2)


class Watch:
    """Turns what happens between the phases of a step into marks, on the recorded thread alone."""

    def __init__(self, timeline: Timeline, instruments: Instruments) -> None:
        self.open = False  # a step is running
        self.samples: int | None = None  # in the batch that was drawn last
        self.before_draw: Callable[[Any], None] | None = None  # set by `laptime run`, whose steps start there
        self._timeline = timeline
        self._instruments = instruments
        self._thread = threading.get_ident()
        self._loss_end = NO_LOSS  # (mark, sequence number) where the last loss ended
        self._in_loss = False

    def begin(self) -> None:
        """The first step opens, on the thread whose loop is recorded."""
        self.open = True
        self._thread = threading.get_ident()

    def elsewhere(self) -> bool:
        """Whether this is another thread than the recorded one, or no step is open yet."""
        return threading.get_ident() != self._thread or not self.open

    def next_step(self) -> None:
        """Forget the loss of the step that ended."""
        self._loss_end, self._in_loss = NO_LOSS, False

    def watch_backward(self, call: Callable[[], Any], outputs: Any, *, accumulates: bool) -> Any:
        """A backward pass, or a gradient taken by hand."""
        if self.elsewhere() and not (self._instruments.backward_depth and _is_engine_thread()):
            return call()
        if not self._instruments.backward_depth:
            self.relabel_loss_tail()
        return self._instruments.run_backward(call, outputs, accumulates=accumulates)

    def watch_loss(self, call: Callable[[], Any], *, begins: bool) -> Any:
        """A loss function. `begins`: it is a criterion module, so its start is the start of the loss."""
        instruments, timeline = self._instruments, self._timeline
        if self.elsewhere() or self._in_loss or instruments.backward_depth:
            return call()
        earlier = timeline.owner & ~RETURN
        inside = instruments.forward_depth > 0
        mark, number = instruments.forward_end
        if begins and not inside and earlier == LOSS and number == sequence_number():
            timeline.relabel_since(mark, LOSS, HOST)
        if timeline.owner & ~RETURN != LOSS:
            timeline.mark(LOSS)
            instruments.entries.enter(LOSS_BACKWARD)
        self._in_loss = True
        reading = instruments.reading
        try:
            return call() if reading is None else reading.around(call, Phase.LOSS)
        finally:
            self._in_loss = False
            self._loss_end = (len(timeline.owners), sequence_number())
            timeline.give_back(earlier if inside else LOSS)
            if inside and earlier >= UNITS:
                instruments.entries.enter(earlier + 1)  # forward codes are even, their backward codes follow

    def relabel_loss_tail(self) -> None:
        """After the loss, time without a single new autograd node is Python, not loss."""
        mark, number = self._loss_end
        if mark and number == sequence_number():
            self._timeline.relabel_since(mark, LOSS, HOST)
        self._loss_end = NO_LOSS

    def end_loss(self) -> None:
        """The loss is complete: what ran since its last operation, and what comes, is host time."""
        self.relabel_loss_tail()
        if self._timeline.owner & ~RETURN == LOSS and not self.elsewhere():
            self._timeline.mark(HOST)

    def aside(self, call: Callable[[], Any]) -> Any:
        """Run what is host time even between the operations of a loss: logging makes autograd nodes too."""
        if self.elsewhere() or self._inside() or self._timeline.owner & ~RETURN != LOSS:
            return call()
        self.end_loss()
        try:
            return call()
        finally:
            self._loss_end = (len(self._timeline.owners), sequence_number())
            self._timeline.give_back(LOSS)

    def watch_data(self, call: Callable[[], Any], source: Any, *, draws: bool) -> Any:
        """A loader starts its workers, or is asked for a batch."""
        if self.elsewhere() or self._inside() or self._timeline.owner & ~RETURN == DATA_WAIT:
            return call()
        if draws and self.before_draw is not None:
            self.before_draw(source)
        self._timeline.mark(DATA_WAIT)
        try:
            result = call()
        finally:
            self._timeline.mark(HOST)
        if draws:
            self.samples = batch_size(result)
        return result

    def watch_copy(self, call: Callable[[], Any]) -> Any:
        """A tensor moves between the phases: the batch goes to the device."""
        owner = self._timeline.owner & ~RETURN if self.open else HOST
        if self.elsewhere() or self._inside() or self._in_loss or owner not in (HOST, LOSS):
            return call()
        self._timeline.mark(COPY)
        try:
            return call()
        finally:
            self._timeline.give_back(owner)

    def _inside(self) -> bool:
        owner = self._timeline.owner & ~RETURN
        updating = OPTIMIZERS <= owner < UNITS
        return bool(self._instruments.forward_depth or self._instruments.backward_depth or updating)


def _is_engine_thread() -> bool:
    """Whether this thread belongs to autograd's engine: Python's threading did not start it."""
    return isinstance(threading.current_thread(), threading._DummyThread)
