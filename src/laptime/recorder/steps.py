"""Where each step of a recording begins and ends, and what it carries: nothing, layers or kernels."""

from __future__ import annotations

from typing import Any

import torch

from laptime.model import Stage, Step
from laptime.model.columns import columns_of
from laptime.recorder.arguments import as_number, batch_size
from laptime.recorder.budget import EARLY, Budget
from laptime.recorder.clocks import Stamp
from laptime.recorder.finished_steps import FinishedSteps
from laptime.recorder.guard import RecordingPart, attempt
from laptime.recorder.kernel_trace import KernelTracer
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.network_info import NetworkFiles
from laptime.recorder.phase_marks import PhaseMarks
from laptime.recorder.run_summary import Facts
from laptime.recorder.running_step import StepEvidence
from laptime.recorder.timeline import DATA_WAIT, HOST, RawStep

LOGGED = tuple(column.name for column in columns_of(Step) if column.logged)


LoggedValue = tuple[Any, int]
"""A number, a tensor or a function that gives one at the flush; and the tensor's version when logged."""


def loggable(name: str, value: Any) -> LoggedValue | str:
    """A value as it is kept, or why it cannot be. A tensor on a device is read at the flush."""
    if name not in LOGGED:
        return f"log() keeps {', '.join(LOGGED)}; {name!r} is not one of them and was left out"
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or value.device.type == "meta":
            what = f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
            return f"log({name}=…) takes one number; {what} was left out"
        value = value.detach()
        if value.device.type == "cpu":
            value = float(value)
    elif not callable(value) and as_number(value) is None:
        return f"log({name}=…) takes one number; a {type(value).__name__} was left out"
    return value, value._version if isinstance(value, torch.Tensor) else 0


class StepCutter:
    """Cuts the timeline into steps and hands the finished ones on."""

    def __init__(
        self,
        hooks: NetworkHooks,
        marks: PhaseMarks,
        tracer: KernelTracer,
        budget: Budget,
        facts: Facts,
        network_files: NetworkFiles,
        finished: FinishedSteps,
        *,
        rank: int,
        counts: tuple[int, int, int],
    ) -> None:
        self._timeline = hooks.timeline
        self._clock = hooks.timeline.clock
        self._hooks = hooks
        self._running = hooks.step
        self._marks = marks
        self._tracer = tracer
        self._budget = budget
        self._facts = facts
        self._network_files = network_files
        self._finished = finished
        self._rank = rank
        self._attempt, self.number, self._optimizer_step = counts
        self._epoch = -1
        self._stage: Stage | None = None
        self._logged: dict[str, Any] = {}
        # Steps to go through before chance decides: the first of a stage warms up, the next few are marked.
        self._early = {} if budget.never else dict.fromkeys(Stage, EARLY + 1)
        self._mark_next = False
        self._disturbed = False
        self._traced: list[tuple[int, RawStep]] = []
        self._opened = self._running.began
        self._lap_s = 0.0

    @property
    def host_s(self) -> float:
        """The host's own time for all steps that have ended."""
        return self._running.began - self._opened

    # -- where steps begin and end -------------------------------------------------------------------------

    def open_first(self, code: int) -> None:
        """Open the first step of the run, if none is open."""
        if not self._timeline.open:
            self._timeline.follow_thread()
            self._clock.follow()
            self._prepare()
            self._timeline.clear()
            self._timeline.mark(code)
            self._running.starts()
            self._opened = self._running.began

    def begin_epoch(self, stage: Stage | None, epoch: int | None) -> None:
        """A loop over a loader begins: it waits for its first batch."""
        if self._timeline.open and self._running.evidence.works:
            self.close(then=DATA_WAIT)  # of the loop around this one
        if stage is not Stage.VALIDATION:
            self._epoch = self._epoch + 1 if epoch is None else epoch
        self.open_first(DATA_WAIT)
        if self._timeline.owner != DATA_WAIT:
            self._timeline.mark(DATA_WAIT)

    def drawn(self, batch: Any, stage: Stage | None) -> None:
        """A loader gave the batch of the running step."""
        self._timeline.follow_up(HOST)
        self._stage = stage
        self._running.drew(batch_size(batch))

    def begin_step(self, batch: Any, stage: Stage | None, epoch: int | None) -> None:
        """Code begins that is a step; the time since the previous one belongs to it."""
        self.open_first(HOST)
        self._stage = stage
        if batch is not None:
            self._running.drew(batch_size(batch))
        if epoch is not None:
            self._epoch = epoch

    def close(
        self,
        *,
        stage: Stage | None = None,
        samples: int | None = None,
        epoch: int | None = None,
        then: int = HOST,
    ) -> None:
        """Close the running step here and open the next, whose time goes to `then` first."""
        if not self._timeline.open:
            self.open_first(HOST)
            return
        self._hooks.loss.close()
        stamps, owners = self._timeline.cut()
        self._lap_s = self._running.starts()
        evidence = self._hooks.next_step()
        attempt(RecordingPart.LAYERS, self._network_files.write_new_layers)
        self._hand_on(stamps, owners, evidence, stage=stage, samples=samples, epoch=epoch)
        self._marks.next_step()
        self._clock.follow()
        if self._prepare() or not self._clock.deferred:
            self._timeline.mark(then)
        else:
            self._timeline.relabel(then)  # nothing was done on the device's time: spare it an event

    def close_at(self, mark: int, *, samples: int | None = None, epoch: int | None = None) -> None:
        """Close the running step at an earlier mark: only now has it shown that another began there."""
        if self._tracer.running:
            return  # a trace knows marks by their number
        self._hooks.loss.close()
        stamps, owners = self._timeline.cut_at(mark)
        self._hand_on(stamps, owners, self._running.evidence, samples=samples, epoch=epoch)
        self._marks.next_step()

    def begin_anew(self) -> None:
        """Begin the running step anew, in this thread: what it holds is no training."""
        self._timeline.follow_thread()
        self._hooks.loss.forget()
        self._running.restart()
        self._timeline.clear()
        self._timeline.mark(HOST)

    def look_again(self) -> None:
        """Look again, in the step that begins here, for parts of a network that are called by themselves."""
        if self._budget.never:
            return
        self._hooks.search()
        if self._hooks.discovering:
            self._hooks.arm()
            self._running.carry(layers=True, perturbed=self._tracer.running)

    def keep(self, name: str, value: LoggedValue) -> None:
        """Keep a value with the running step."""
        self._logged[name] = value

    # -- what becomes of a finished step -------------------------------------------------------------------

    def _hand_on(
        self,
        stamps: list[Stamp],
        owners: list[int],
        evidence: StepEvidence,
        *,
        stage: Stage | None = None,
        samples: int | None = None,
        epoch: int | None = None,
    ) -> None:
        decided = stage or self._stage or evidence.stage
        samples = samples if samples is not None else self._running.samples
        marked = self._running.close()
        self._facts.count(evidence, decided)
        self._mark_next = decided in self._early and self._goes_early(decided, len(owners), marked)
        if not self._hooks.reading.done:
            attempt(RecordingPart.WORKLOAD, self._network_files.end_step, evidence, samples)
        self._optimizer_step += self._hooks.updates.new()
        raw = RawStep(
            stamps=stamps,
            owners=owners,
            instrumented=marked,
            perturbed=self._tracer.running or self._disturbed,
            logged=self._logged,
            fields={
                "step": self.number,
                "stage": decided,
                "attempt": self._attempt,
                "rank": self._rank,
                "epoch": max(0, self._epoch) if epoch is None else epoch,
                "optimizer_step": self._optimizer_step,
                "samples": samples,
            },
        )
        self._logged, self._stage = {}, None
        self._disturbed = False
        self.number += 1
        if self._tracer.tracing:
            attempt(RecordingPart.KERNELS, self._tracer.on_end)
            self._traced.append((self._tracer.number, raw))
        else:
            self._finished.take(raw)

    def _goes_early(self, stage: Stage, marks: int, marked: bool) -> bool:
        """A stage's early step has ended; whether the next one is to be marked in any case."""
        left = self._early[stage]
        if left <= EARLY:
            if self._lap_s:
                self._budget.look_early(self._lap_s, marks=marks, instrumented=marked)
            left += not marked
        self._early[stage] = left - 1
        if left == 1:
            del self._early[stage]
        return left > 1

    # -- what the coming step carries ----------------------------------------------------------------------

    def _prepare(self) -> bool:
        """Decide what the coming step carries: bare, layers or kernels. Returns whether that took work."""
        worked = self._tracer.running or self._tracer.tracing
        if self._traced and self._tracer.ends_before(self.number):
            self.collect_trace()
        traced = bool(attempt(RecordingPart.KERNELS, self._tracer.plan, self.number))
        self._timeline.trace(self._tracer.on_mark if traced else None)
        hooks, session = self._hooks, self._tracer.running
        # Warm-up of a trace perturbs its step, so that one stays bare.
        draw = traced or hooks.discovering or (not session and self._budget.draw(early=self._mark_next))
        worked = worked or traced or draw != hooks.armed
        if draw and not hooks.armed:
            attempt(RecordingPart.LAYERS, hooks.arm)
        elif not draw and hooks.armed:
            attempt(RecordingPart.LAYERS, hooks.disarm)
        self._running.carry(layers=draw and hooks.armed, perturbed=session)
        if traced:
            self._tracer.on_mark(0)  # the step's first mark was set when the one before was cut
        return worked

    def collect_trace(self) -> None:
        """End the profiler session and give each traced step its kernels."""
        if not self._tracer.running:
            return
        try:
            self._tracer.collect(self._traced, self._hooks.is_layer())
        except Exception as error:  # a full disk under the temporary folder, a trace torch cannot write
            self._facts.note(f"a kernel trace was lost ({type(error).__name__}: {error})")
            self._tracer.give_up(str(error))
        first = min((raw.fields["step"] for _, raw in self._traced), default=self.number)
        self._facts.detach.session(began=first - 1, ended=self.number)  # a warm-up step comes first
        for _, raw in self._traced:
            raw.read = self._clock.read(raw.stamps)
            self._finished.take(raw)
        self._traced = []
        self._disturbed = True  # reading the trace took the coming step's time
