"""The steps of a recording: where each begins and ends, and what it carries: nothing, layers or kernels."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from laptime.errors import RecordingError
from laptime.model import Stage, Step
from laptime.model.columns import columns_of
from laptime.recorder.arguments import as_number, batch_size
from laptime.recorder.budget import EARLY, Budget
from laptime.recorder.clocks import Clock, Stamp
from laptime.recorder.finished_steps import Settling
from laptime.recorder.guard import Part, attempt, shielded, warn
from laptime.recorder.kernel_trace import KernelTracer
from laptime.recorder.network_hooks import Instruments
from laptime.recorder.network_info import NetworkFiles
from laptime.recorder.phase_marks import Watch
from laptime.recorder.run_summary import Facts
from laptime.recorder.step_evidence import Seen
from laptime.recorder.timeline import DATA_WAIT, HOST, RawStep, Timeline

LONG_STEP_SHARE = 0.05  # of a step with very many marks that these may take, though the first are marked
LOGGED = tuple(column.name for column in columns_of(Step) if column.logged)


class Steps:
    """Cuts a recording into steps. A `Recorder` is one instead of holding one: a lap is a single call."""

    # There once the recording has started.
    timeline: Timeline
    instruments: Instruments
    watch: Watch
    _clock_in_use: Clock
    _tracer: KernelTracer
    _settling: Settling
    _network_files: NetworkFiles

    def __init__(self, budget: Budget, *, rank: int, counts: tuple[int, int, int]) -> None:
        self.facts = Facts()
        self._budget = budget
        self._rank = rank
        self._attempt, self._step, self._optimizer_step = counts
        self._active = False
        self._abandoned: str | None = None  # why a fault of ours has ended the recording
        self._epoch = -1
        self._stage: Stage | None = None
        self._logged: dict[str, Any] = {}
        self._instrumented = False
        self._complete = True  # marks were on to the end of the step
        # Steps to go through before chance decides: the first of a stage warms up, the next few are marked.
        self._early = {} if budget.never else dict.fromkeys(Stage, EARLY + 1)
        self._mark_next = False
        self._disturbed = False
        self._traced: list[tuple[int, RawStep]] = []
        self._began_steps = self._last_lap = time.perf_counter()
        self._lap_s = 0.0

    @property
    def active(self) -> bool:
        """Whether the recording is running."""
        return self._active

    @property
    def step_number(self) -> int:
        """The number of the running step."""
        return self._step

    @property
    def seen(self) -> Seen:
        """What has happened in the running step so far."""
        return self.instruments.seen

    def open(self) -> None:
        """Open the first step here, for loops that are cut by `lap` alone."""
        self._open(HOST)

    def steps(
        self, loader: Iterable[Any], *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[Any]:
        """Each batch of the loader, a step apiece, from the end of the previous step to its own end."""
        wanted = Stage(stage) if stage is not None else None
        if self._running():
            attempt(Part.RECORDING, self._begin_epoch, wanted, epoch)
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                if self._active:
                    attempt(Part.RECORDING, self.timeline.mark, HOST)
                return
            if not self._active:
                yield batch
                continue
            attempt(Part.RECORDING, self._drawn, batch, wanted)
            finished, number = False, self._step
            try:
                yield batch
                finished = True
            finally:
                # After `break` only a step that did its work counts; after an exception, none does.
                if self._active and self._step != number and not self._works():
                    attempt(Part.RECORDING, self.timeline.mark, DATA_WAIT)  # a loop within has closed it
                elif self._active and (finished or self.instruments.seen.update):
                    self.lap(then=DATA_WAIT if finished else HOST)

    def _works(self) -> bool:
        """Whether the running step has done anything but wait."""
        seen = self.instruments.seen
        return seen.forward or seen.backward or seen.update

    def _begin_epoch(self, stage: Stage | None, epoch: int | None) -> None:
        if self.watch.open and self._works():
            self._lap(stage=None, samples=None, epoch=None, then=DATA_WAIT)  # of the loop around this one
        if stage is not Stage.VALIDATION:
            self._epoch = self._epoch + 1 if epoch is None else epoch
        self._open(DATA_WAIT)
        if self.timeline.owner != DATA_WAIT:
            self.timeline.mark(DATA_WAIT)

    def _drawn(self, batch: Any, stage: Stage | None) -> None:
        self.timeline.follow_up(HOST)
        self._stage, self.watch.samples = stage, batch_size(batch)

    @contextmanager
    def step(
        self, batch: Any = None, *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """One step around any code. Time since the previous step belongs to it: waiting for data, mostly."""
        wanted = Stage(stage) if stage is not None else None
        if self._running():
            attempt(Part.RECORDING, self._begin_step, batch, wanted, epoch)
        yield
        if self._active:
            self.lap()

    def _begin_step(self, batch: Any, stage: Stage | None, epoch: int | None) -> None:
        self._open(HOST)
        self._stage = stage
        if batch is not None:
            self.watch.samples = batch_size(batch)
        if epoch is not None:
            self._epoch = epoch

    def log(self, **values: Any) -> None:
        """Loss, top1 or topn of the running step: a number, or a function that gives one at the flush.

        Tensors are read at the flush: this never synchronises. What cannot be kept is told once, not raised:
        nobody's training ends over a number for a log.
        """
        for name, value in values.items():
            attempt(Part.RECORDING, self._log, name, value)

    def _log(self, name: str, value: Any) -> None:
        if name not in LOGGED:
            self._tell(f"log() keeps {', '.join(LOGGED)}; {name!r} is not one of them and was left out")
            return
        if isinstance(value, torch.Tensor):
            if value.numel() != 1 or value.is_complex() or value.device.type == "meta":
                what = f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
                self._tell(f"log({name}=…) takes one number; {what} was left out")
                return
            value = value.detach()
            if value.device.type == "cpu":
                value = float(value)
        elif not callable(value) and as_number(value) is None:
            self._tell(f"log({name}=…) takes one number; a {type(value).__name__} was left out")
            return
        version = value._version if isinstance(value, torch.Tensor) else 0
        if self._active:
            self._logged[name] = (value, version)

    def _tell(self, text: str) -> None:
        """Warn of something, and keep it with the run; once."""
        if text not in self.facts.notes:
            self.facts.note(text)
            warn(text)

    def lap(
        self,
        *,
        stage: Stage | str | None = None,
        samples: int | None = None,
        epoch: int | None = None,
        then: int = HOST,
    ) -> None:
        """Close the running step and open the next, whose time goes to `then` first."""
        if self._running():
            wanted = Stage(stage) if stage is not None else None
            attempt(Part.RECORDING, self._lap, stage=wanted, samples=samples, epoch=epoch, then=then)

    def _lap(self, *, stage: Stage | None, samples: int | None, epoch: int | None, then: int) -> None:
        if not self.watch.open:
            self._open(HOST)
            return
        self.instruments.loss.close()
        stamps, owners = self.timeline.cut()
        began, self._last_lap = self._last_lap, time.perf_counter()
        self._lap_s = self._last_lap - began
        seen = self.instruments.next_step()
        self._close(stamps, owners, seen, stage=stage, samples=samples, epoch=epoch)
        self.watch.next_step()
        self._clock_in_use.follow()
        if self._prepare() or not self._clock_in_use.deferred:
            self.timeline.mark(then)
        else:
            self.timeline.relabel(then)  # nothing was done on the device's time: spare it an event

    @shielded(Part.RECORDING)
    def lap_at(self, mark: int, *, samples: int | None = None, epoch: int | None = None) -> None:
        """Close the running step at an earlier mark: only now has it shown that another began there."""
        if self._tracer.running:
            return  # a trace knows marks by their number
        self.instruments.loss.close()
        stamps, owners = self.timeline.cut_at(mark)
        self._close(stamps, owners, self.seen, samples=samples, epoch=epoch)
        self.watch.next_step()

    def _too_dear(self, marks: int, walked_s: float) -> bool:
        """Whether the running step had better go on without layer marks; its layers are not told then."""
        if self._budget.every_step or self._tracer.running:
            return False
        passed_s = time.perf_counter() - self._last_lap
        self._complete = self._budget.price(marks) + walked_s < LONG_STEP_SHARE * passed_s
        return not self._complete

    def begin_anew(self) -> None:
        """Begin the running step anew, in this thread: what it holds is no training."""
        self.watch.begin()
        self.instruments.loss.forget()
        self.instruments.forward_depth = 0
        self.instruments.seen = Seen()
        self.timeline.clear()
        self.timeline.mark(HOST)
        self._last_lap = time.perf_counter()

    def _running(self) -> bool:
        """Whether there is something to record; False after a fault of ours has ended the recording."""
        if not self._active and self._abandoned is None:
            raise RecordingError(
                "the recording is not running; use it as `with laptime.record(…) as recording:`"
            )
        return self._active

    def _open(self, code: int) -> None:
        """Open the first step of the run."""
        if not self.watch.open:
            self.watch.begin()
            self._clock_in_use.follow()
            self._prepare()
            self.timeline.clear()
            self.timeline.mark(code)
            self._began_steps = self._last_lap = time.perf_counter()

    def _close(
        self,
        stamps: list[Stamp],
        owners: list[int],
        seen: Seen,
        *,
        stage: Stage | str | None = None,
        samples: int | None = None,
        epoch: int | None = None,
    ) -> None:
        decided = Stage(stage) if stage is not None else self._stage or seen.stage
        self._instrumented = self._instrumented and self._complete
        self._complete = True
        self.facts.count(seen, decided)
        self._mark_next = decided in self._early and self._goes_early(decided, len(owners))
        if self.instruments.reading is not None:
            drawn = samples if samples is not None else self.watch.samples
            attempt(Part.WORKLOAD, self._network_files.end_step, seen, drawn)
        self._optimizer_step += self.instruments.updates.new()
        raw = RawStep(
            stamps=stamps,
            owners=owners,
            instrumented=self._instrumented,
            perturbed=self._tracer.running or self._disturbed,
            logged=self._logged,
            fields={
                "step": self._step,
                "stage": decided,
                "attempt": self._attempt,
                "rank": self._rank,
                "epoch": max(0, self._epoch) if epoch is None else epoch,
                "optimizer_step": self._optimizer_step,
                "samples": samples if samples is not None else self.watch.samples,
            },
        )
        self._logged, self.watch.samples, self._stage = {}, None, None
        self._disturbed = False
        self._step += 1
        if self._tracer.tracing:
            attempt(Part.KERNELS, self._tracer.on_end)
            self._traced.append((self._tracer.number, raw))
        else:
            self._settling.take(raw)

    def _goes_early(self, stage: Stage, marks: int) -> bool:
        """A stage's early step has ended; whether the next one is to be marked in any case."""
        left = self._early[stage]
        if left <= EARLY:
            if self._lap_s:
                self._budget.glance(self._lap_s, marks=marks, instrumented=self._instrumented)
            left += not self._instrumented
        self._early[stage] = left - 1
        if left == 1:
            del self._early[stage]
        return left > 1

    def _prepare(self) -> bool:
        """Decide what the coming step carries: bare, layers or kernels. Returns whether that took work."""
        worked = self._tracer.running or self._tracer.tracing
        if self._traced and self._tracer.ends_before(self._step):
            self._collect_trace()
        traced = bool(attempt(Part.KERNELS, self._tracer.plan, self._step))
        self.timeline.on_mark = self._tracer.on_mark if traced else None
        discovering = any(network.discovery for network in self.instruments.networks)
        # Warm-up of a trace perturbs its step, so that one stays bare.
        draw = (
            traced or discovering or (not self._tracer.running and self._budget.draw(early=self._mark_next))
        )
        worked = worked or traced or draw != self.instruments.armed
        if draw and not self.instruments.armed:
            attempt(Part.LAYERS, self.instruments.arm)
        elif not draw and self.instruments.armed:
            attempt(Part.LAYERS, self.instruments.disarm)
        self._instrumented = self.instruments.loss.marked_step = draw and self.instruments.armed
        if traced:
            self._tracer.on_mark(0)  # the step's first mark was set when the one before was cut
        return worked

    def search(self) -> None:
        """Look again, in the step that begins here, for parts of a network that are called by themselves."""
        attempt(Part.LAYERS, self._search)

    def _search(self) -> None:
        if self._budget.never:
            return
        self.instruments.search()
        if any(network.discovery for network in self.instruments.networks):
            self.instruments.arm()
            self._instrumented = True

    def _collect_trace(self) -> None:
        """End the profiler session and give each traced step its kernels."""
        if not self._tracer.running:
            return
        try:
            self._tracer.collect(self._traced, self.instruments.is_layer())
        except Exception as error:  # a full disk under the temporary folder, a trace torch cannot write
            self.facts.note(f"a kernel trace was lost ({type(error).__name__}: {error})")
            self._tracer.give_up(str(error))
        first = min((raw.fields["step"] for _, raw in self._traced), default=self._step)
        self.facts.detach.session(began=first - 1, ended=self._step)  # a warm-up step comes first
        for _, raw in self._traced:
            raw.read = self._clock_in_use.read(raw.stamps)
            self._settling.take(raw)
        self._traced = []
        self._disturbed = True  # reading the trace took the coming step's time
