"""Finished steps: their stamps are read, their time is broken down, their rows are written.

The training thread reads stamps, since only it can do so cheaply; a background thread does the rest.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from laptime.model import Stage
from laptime.recorder.breakdown import Breakdown, ClosedSteps
from laptime.recorder.budget import Budget
from laptime.recorder.clocks import Clock
from laptime.recorder.guard import warn
from laptime.recorder.run_summary import Facts
from laptime.recorder.timeline import RawStep
from laptime.runs import RunWriter

FLUSH_S = 2.0  # well inside the contract's 5 s, so that a slow disk still keeps it
LOOK_S = 0.25
ENOUGH = 64  # steps that make a breakdown worthwhile
BATCH = 256  # steps broken down at once
MOST_PENDING = 4096  # finished steps waiting for their breakdown; beyond this the training thread helps


class FinishedSteps:
    """Takes finished steps and writes them to disk."""

    def __init__(
        self,
        clock: Clock,
        breakdown: Breakdown,
        facts: Facts,
        budget: Budget,
        writer: RunWriter,
        *,
        flush_s: float,
    ) -> None:
        self._clock = clock
        self._breakdown = breakdown
        self._facts = facts
        self._budget = budget
        self._writer = writer
        self._flush_s = flush_s
        self._unread: deque[RawStep] = deque()  # the device may not have passed their last stamp
        self._pending: deque[RawStep] = deque()  # to be broken down
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._updates = 0
        self._end = threading.Event()
        self._background = threading.Thread(target=self._work, name="laptime-writer", daemon=True)
        self.background_s = 0.0  # processor time of the thread that writes, once it has ended

    def start(self) -> None:
        """Write from here on, in a thread of its own."""
        self._background.start()

    def take(self, raw: RawStep) -> None:
        """Pass a finished step on, and read the stamps of those that the device has finished meanwhile.

        Read here and not in the background: with the driver and Python's lock to share, one event takes the
        background thread eight times as long, and the training thread waits for it.
        """
        if self._writer.foreign:  # a fork of the process that records has no background thread
            return
        if self._clock.deferred and raw.read is None:
            self._unread.append(raw)
            self._read_stamps(most=2)
        else:
            self._pending.append(raw)
        if len(self._pending) > MOST_PENDING:
            self._settle()

    def flush(self, *, wait: bool = False) -> None:
        """Write what is known now; with `wait`, once the device has passed every step that has ended."""
        if self._writer.foreign:
            return
        if wait and self._unread:
            self._clock.wait(self._unread[-1].stamps[-1])
        self._read_stamps()
        self._settle()
        self._writer.flush()

    def finish(self) -> None:
        """Wait for the device, break all steps down, write all rows, end the thread."""
        self._end.set()
        self._background.join()
        self.flush(wait=True)
        if self._failure is not None:
            self._facts.note(self._failure)
            warn(self._failure)

    def _read_stamps(self, *, most: int | None = None) -> None:
        while self._unread and most != 0 and self._clock.ready(self._unread[0].stamps[-1]):
            raw = self._unread.popleft()
            raw.read = self._clock.read(raw.stamps)
            self._clock.recycle(raw.stamps[:-1])  # the last stamp is the first of the next step
            raw.stamps = []
            self._pending.append(raw)
            most = None if most is None else most - 1

    def _work(self) -> None:
        try:
            self._keep_writing()
        except Exception as error:  # the training thread goes on, and writes what there is at the end
            reason = f"{type(error).__name__}: {error}"
            self._failure = f"rows were written only at the end ({reason}); please report this"

    def _keep_writing(self) -> None:
        flushed = time.monotonic()
        while not self._end.wait(LOOK_S):
            due = time.monotonic() - flushed >= self._flush_s
            # Breaking down one step costs nearly as much as many, so steps are batched.
            if due or len(self._pending) >= ENOUGH:
                self._settle()
            if due:
                self._writer.flush(patient=True)
                flushed = time.monotonic()
        self.background_s = time.thread_time()

    def _settle(self) -> None:
        """Break down the steps that have been read. An internal error must not end the training."""
        with self._lock:
            while self._pending:
                raws = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH))]
                try:
                    self._enter(self._breakdown.close(raws))
                except Exception as error:
                    first, last = raws[0].fields["step"], raws[-1].fields["step"]
                    reason = f"{type(error).__name__}: {error}"
                    self._failure = (
                        f"steps {first} to {last} could not be recorded ({reason}); please report this"
                    )

    def _enter(self, closed: ClosedSteps) -> None:
        self._facts.take(closed)
        for raw, wall_s in zip(closed.raws, closed.walls.tolist(), strict=True):
            fields = raw.fields
            if fields["stage"] is Stage.TRAIN and fields["step"] > 0 and not raw.perturbed:
                kind = (fields["samples"], fields["optimizer_step"] > self._updates)
                self._budget.observe(wall_s, marks=len(raw.owners), instrumented=raw.instrumented, kind=kind)
            self._updates = fields["optimizer_step"]
        for name in ("steps", "layers", "kernels"):
            table = getattr(closed, name)
            if table is not None:
                self._writer.append(name, table)
