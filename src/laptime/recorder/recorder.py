"""The recorder: any PyTorch loop, per layer, with accounts that add up to the wall time.

The life of a step, from mark to disk:

1. `hooks` (layers, passes, updates) and `marks` (losses, loaders, copies) set marks on the `timeline`, which
   the backend's clock stamps. That is all the training thread does within a step. `step_so_far` is what has
   happened in it.
2. Where a step ends, `_close` cuts the timeline, `_hand_on` gives the finished step to `_finished`, and
   `_prepare` decides what the next one carries: nothing, layer marks or a kernel trace, as `_budget` and
   `_tracer` say.
3. `_finished` reads the stamps once the device has passed them. Its background thread has `_breakdown` turn
   many steps at once into rows, tells `facts` and `_budget` what they took, and gives the rows to `_writer`.
4. `_writer` flushes rows to part files every two seconds, and closes the run.

Accounts are kept on every step; layers on sampled steps, or on all; kernels on the steps that were asked for.
A fault of ours ends the part of the recording that it is in (`_end_part`), never the training.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from laptime.errors import AlreadyRecording, RecordingError
from laptime.model import Account, Layer, Stage, Step
from laptime.model.exchanges import RankExchanges
from laptime.model.step import columns_of
from laptime.recorder.arguments import (
    Networks,
    Optimizers,
    as_number,
    batch_size,
    check_optimizers,
    class_names,
    device_of,
    listed,
    named,
    refuse_nested,
    refuse_replicas,
    step_numbers,
)
from laptime.recorder.backends import Clock, Stamp, backend_of, environment
from laptime.recorder.breakdown import Breakdown, rehearse
from laptime.recorder.budget import EARLY, Budget
from laptime.recorder.finished_steps import FLUSH_S, Facts, FinishedSteps, summarize_run
from laptime.recorder.guard import RecordingPart, attempt, shielded, warn, watch_faults
from laptime.recorder.kernel_trace import KernelTracer
from laptime.recorder.layer_division import GONE, Granularity
from laptime.recorder.live_workload import Reading
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.optimizer_steps import tidy
from laptime.recorder.phase_marks import PhaseMarks
from laptime.recorder.timeline import (
    CODE,
    DATA_WAIT,
    HOST,
    LoopListener,
    RawStep,
    RunningStep,
    StepEvidence,
    Timeline,
    mark_seconds,
)
from laptime.runs import Run, RunWriter, load

FRAMES = 3  # of a watched call, at most, for one of a call that is not
LOGGED = tuple(column.name for column in columns_of(Step) if column.logged)

LoggedValue = tuple[Any, int]
"""A number, a tensor or a function that gives one at the flush; and the tensor's version when logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run to go on with: which attempt this is, and the numbers of its first step and last update."""

    attempt: int = 0
    step: int = 0
    optimizer_step: int = 0
    elapsed_s: float = 0.0  # where the timeline goes on


class Recorder:
    """Records a training loop. Made by `laptime.record`; used as a context manager."""

    # There once the recording has started.
    timeline: Timeline
    step_so_far: RunningStep
    hooks: NetworkHooks
    marks: PhaseMarks
    _finished: FinishedSteps
    _breakdown: Breakdown
    _tracer: KernelTracer
    _writer: RunWriter

    def __init__(
        self,
        networks: Networks | None,
        optimizers: Optimizers = None,
        *,
        out: str | Path,
        every_step: bool = False,
        budget: float = 0.02,
        layers: Granularity | None = "layer",
        kernels: Iterable[int] = (),
        clock: Clock | None = None,
        config: Mapping[str, Any] | None = None,
        rank: int = 0,
        joins: bool = False,
        resumed: Resumed | None = None,
        flush_s: float = FLUSH_S,
        tell: Callable[[str], None] | None = None,
        listener: LoopListener | None = None,
    ) -> None:
        if not 0 < budget <= 1:
            raise RecordingError(f"budget={budget} is a share of step time, such as 0.02 for 2 %")
        self.out = Path(out)
        self.facts = Facts()
        self._budget = Budget(budget, every_step=every_step, never=layers is None)
        self._rank = rank
        self._given = named(networks)
        self._optimizers = listed(optimizers)
        check_optimizers(self._given, self._optimizers)
        self._granularity: Granularity = layers if layers is not None else "layer"
        self._clock = clock
        self._wanted_kernels = step_numbers(kernels)
        self._config = {"every_step": every_step, "budget": budget, "layers": layers, **(config or {})}
        self._unnamed = resumed is None and not {"network", "target"} & self._config.keys()
        if self._unnamed and self._given:
            self._config["network"] = class_names(self._given.values())
        self._flush_s = flush_s
        self._resumes = resumed is not None
        self._resumed = resumed or Resumed()
        self._tell_trouble = tell  # reports a failing disk; by default a warning
        self._joins = joins  # the run of the other ranks, though rank 0 may have ended it already
        self._listener = listener or LoopListener()  # who cuts steps, if not the loop
        self._status: str | None = None
        self._active = False
        self._abandoned: str | None = None  # the internal error that ended the recording
        self._lost: set[RecordingPart] = set()  # parts that internal errors have ended
        # Of the running step.
        self.step_number = self._resumed.step
        self._optimizer_step = self._resumed.optimizer_step
        self._epoch = -1
        self._stage: Stage | None = None
        self._logged: dict[str, LoggedValue] = {}
        # Steps to go through before chance decides: the first of a stage warms up, the next few are marked.
        self._early = {} if self._budget.never else dict.fromkeys(Stage, EARLY + 1)
        self._mark_next = False
        self._disturbed = False  # by the end of a kernel trace
        self._traced: list[tuple[int, RawStep]] = []  # steps whose kernels are not read yet
        self._opened = 0.0  # when the first step was
        self._lap_s = 0.0  # host seconds of the latest step
        self._layers_version = 0  # of the layers that were written last
        self._others_layers: list[Layer] = []  # of ranks that have another part of the network
        self._read_optimizers = 0  # that the workload was written with

    @property
    def active(self) -> bool:
        """Whether the recording is running."""
        return self._active

    @property
    def evidence(self) -> StepEvidence:
        """What has happened in the running step so far."""
        return self.step_so_far.evidence

    # -- beginning and end ---------------------------------------------------------------------------------

    def start(self) -> Recorder:
        """Attach to the networks and open the first step."""
        global _current
        if (current := active_recording()) is not None:
            current._listener.give_way()
        if active_recording() is not None:
            raise AlreadyRecording(
                "a recording is active in this process already; end it before starting another"
            )
        if self._status is not None:
            raise RecordingError("this recording has ended; call laptime.record again for a new one")
        device = device_of(self._given.values())
        clock = self._clock or backend_of(device).clock(device)
        refuse_nested(self._given)
        self.hooks = NetworkHooks(
            clock,
            granularity=self._granularity,
            budget=self._budget,
            reading=Reading(wanted=self._rank == 0 and not self._resumes and not self._budget.never),
            listener=self._listener,
        )
        self.timeline, self.step_so_far = self.hooks.timeline, self.hooks.step
        self._opened = self.step_so_far.began
        self.marks = PhaseMarks(self.hooks, self._listener)
        try:
            for name, network in self._given.items():
                self.add_network(name, network)
            # Only now: what is refused leaves no directory, so the corrected call can have the same one.
            self._writer = self._opened_run(device)
            self._writer.exchanges(self._exchanged)
        except BaseException:
            self.hooks.detach()
            raise
        for optimizer in self._optimizers:
            self.hooks.updates.add(optimizer)
        self._given, self._optimizers = {}, []  # no recording keeps a network alive
        self._breakdown = Breakdown(
            clock,
            self.hooks,
            self.facts.note,
            layers=not self._budget.never,
            elapsed_s=self._resumed.elapsed_s,
        )
        self._tracer = KernelTracer(self._wanted_kernels, backend_of(clock.device))
        self._finished = FinishedSteps(
            clock, self._breakdown, self.facts, self._budget, self._writer, flush_s=self._flush_s
        )
        self.hooks.updates.watch()
        rehearse()
        self.marks.install()
        _current = self
        watch_faults(self._end_part)
        attempt(RecordingPart.COMMUNICATION, self.hooks.collectives.start)
        self._depth_limit = sys.getrecursionlimit()
        sys.setrecursionlimit(FRAMES * self._depth_limit)  # a watched call is deeper by a few frames
        self._active = True
        # A watched call and a boundary are 1 to 2 µs. On CUDA an event in a step costs more than in a loop,
        # is read, and leaves a bubble on the device: about 8 µs on the host of our H200 (docs/log.md).
        self._budget.mark_s = mark_seconds(clock, 64) + (8e-6 if clock.deferred else 2e-6)
        if clock.deferred:
            self._budget.hook_s = 0.0  # on a device the hook is measured together with its event
        self._finished.start()
        return self

    def _opened_run(self, device: torch.device) -> RunWriter:
        """A writer for a new run, or for the one that is gone on with."""
        rank, tell, about = self._rank, self._tell_trouble, environment(device)
        if self._resumes:
            return RunWriter.resume(self.out, environment=about, rank=rank, tell=tell)
        return RunWriter.create(
            self.out, config=self._config, environment=about, rank=rank, joins=self._joins, tell=tell
        )

    def stop(self, status: str = "finished") -> None:
        """Detach, write what there is and close the run. A step that was not finished is dropped. Idempotent.

        In a fork of the process that records, it only detaches: the run is its parent's.
        """
        if not self._active:
            return
        self._active = False
        self._status = status
        if sys.getrecursionlimit() == FRAMES * self._depth_limit:
            sys.setrecursionlimit(self._depth_limit)
        for action in (
            self.hooks.collectives.stop,
            self.marks.uninstall,
            self.hooks.detach,
            self._collect_trace,
            self._finish_steps,
            self._write_layers,
            partial(self._close_run, status),
        ):
            attempt(RecordingPart.RECORDING, action)
        watch_faults(None)

    def _finish_steps(self) -> None:
        self.timeline.on_mark = None
        self._finished.finish()
        self.facts.host_s = self.step_so_far.began - self._opened
        self.facts.dropped_traces = self._tracer.dropped
        if self._tracer.problem is not None:
            self.facts.note(self._tracer.problem)

    def _close_run(self, status: str) -> None:
        if self._rank:  # rank 0 tells about the run
            self._writer.close(status)
            return
        try:
            summary = summarize_run(self.facts, self._budget, load(self.out))
        except Exception as error:  # someone removed the directory, or its disk: the training went well
            summary = {"notes": [f"no summary could be made ({type(error).__name__}: {error})"]}
            warn(summary["notes"][0])
        # Again: an optimizer may have shown itself since.
        attempt(RecordingPart.WORKLOAD, self._write_workload)
        self._writer.close(status, {**summary, "workload": self.hooks.reading.facts})

    def _end_part(self, part: RecordingPart, reason: str) -> None:
        """Go on without a part of the recording that failed."""
        if part in self._lost or self._abandoned is not None:
            return
        self._lost.add(part)
        text = f"{part} ended at step {self.step_number}, and the training goes on without ({reason})"
        self.facts.note(text)
        if part is RecordingPart.RECORDING:
            self._abandoned = text
            self.stop("interrupted")
        elif part is RecordingPart.LAYERS:
            self._budget.stop()
            self.hooks.end_layers()
        elif part is RecordingPart.WORKLOAD:
            self.hooks.reading.give_up(reason)
        elif part is RecordingPart.COMMUNICATION:
            self.hooks.collectives.stop()
        else:
            self.timeline.on_mark = None
            self._tracer.give_up(reason)
        warn(text)

    def leave_in_child(self) -> None:
        """In a forked process: the run is the parent's, and what trains here is not recorded in it."""
        self._active = False
        self._abandoned = "the run belongs to another process"
        self.hooks.collectives.stop()
        self.marks.uninstall()
        self.hooks.detach()
        watch_faults(None)

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop("finished")
        else:
            interrupted = issubclass(kind, KeyboardInterrupt | GeneratorExit | SystemExit)
            self.facts.note(f"the loop ended by {kind.__name__}")
            self.stop("interrupted" if interrupted else "failed")
        tidy()  # what a fault in the middle of an update had to leave

    # -- where steps begin and end -------------------------------------------------------------------------

    def steps(
        self, loader: Iterable[Any], *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[Any]:
        """Each batch of the loader, a step apiece, from the end of the previous step to its own end."""
        wanted = Stage(stage) if stage is not None else None
        if self._running():
            attempt(RecordingPart.RECORDING, self._begin_epoch, wanted, epoch)
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                if self._active:
                    attempt(RecordingPart.RECORDING, self.timeline.mark, HOST)
                return
            if not self._active:
                yield batch
                continue
            attempt(RecordingPart.RECORDING, self._drawn, batch, wanted)
            finished, number = False, self.step_number
            try:
                yield batch
                finished = True
            finally:
                # After `break` or an exception only a step that has updated the network counts.
                if self._active and self.step_number != number and not self.evidence.works:
                    attempt(RecordingPart.RECORDING, self.timeline.mark, DATA_WAIT)  # a loop within closed it
                elif self._active and (finished or self.evidence.update):
                    self.lap(then=DATA_WAIT if finished else HOST)

    def _begin_epoch(self, stage: Stage | None, epoch: int | None) -> None:
        """A loop over a loader begins: it waits for its first batch."""
        if self.timeline.open and self.evidence.works:
            self._close(DATA_WAIT)  # the step of the loop around this one
        if stage is not Stage.VALIDATION:
            self._epoch = self._epoch + 1 if epoch is None else epoch
        self.open(DATA_WAIT)
        if self.timeline.owner != DATA_WAIT:
            self.timeline.mark(DATA_WAIT)

    def _drawn(self, batch: Any, stage: Stage | None) -> None:
        """A loader gave the batch of the running step."""
        self.timeline.follow_up(HOST)
        self._describe(stage, batch_size(batch), None)

    @contextmanager
    def step(
        self, batch: Any = None, *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """One step around any code. Time since the previous step belongs to it: waiting for data, mostly."""
        wanted = Stage(stage) if stage is not None else None
        if self._running():
            attempt(RecordingPart.RECORDING, self._begin_step, batch, wanted, epoch)
        yield
        if self._active:
            self.lap()

    def _begin_step(self, batch: Any, stage: Stage | None, epoch: int | None) -> None:
        self.open(HOST)
        self._describe(stage, batch_size(batch), epoch)

    def _describe(self, stage: Stage | None, samples: int | None, epoch: int | None) -> None:
        """What the loop says of the running step; None where it says nothing."""
        self._stage = stage or self._stage
        if samples is not None:
            self.step_so_far.samples = samples
        if epoch is not None:
            self._epoch = epoch

    def open(self, code: int = HOST) -> None:
        """Open the first step of the run here, if none is open: for loops that are cut by `lap` alone."""
        if not self.timeline.open:
            self.timeline.follow_thread()
            self.timeline.clock.follow()
            self._prepare()
            self.timeline.clear()
            self.timeline.mark(code)
            self.step_so_far.starts()
            self._opened = self.step_so_far.began

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
            attempt(RecordingPart.RECORDING, self._describe, wanted, samples, epoch)
            attempt(RecordingPart.RECORDING, self._close, then)

    @shielded(RecordingPart.RECORDING)
    def lap_at(self, mark: int, *, samples: int | None = None, epoch: int | None = None) -> None:
        """Close the running step at an earlier mark: only now has it shown that another began there."""
        if self._tracer.running:
            return  # a trace knows marks by their number
        self.hooks.loss.close()
        self._describe(None, samples, epoch)
        self._hand_on(*self.timeline.cut_at(mark), self.evidence)

    def begin_anew(self) -> None:
        """Begin the running step anew, in this thread: what it holds is no training."""
        self.timeline.follow_thread()
        self.hooks.loss.forget()
        self.step_so_far.restart()
        self.timeline.clear()
        self.timeline.mark(HOST)

    @shielded(RecordingPart.LAYERS)
    def search(self) -> None:
        """Look again, in the step that begins here, for parts of a network that are called by themselves."""
        if self._budget.never:
            return
        self.hooks.search()
        if self.hooks.discovering:
            self.hooks.arm()
            self.step_so_far.marked, self.step_so_far.perturbed = True, self._tracer.running

    def _running(self) -> bool:
        """Whether there is something to record; False after a fault of ours has ended the recording."""
        if not self._active and self._abandoned is None:
            raise RecordingError(
                "the recording is not running; use it as `with laptime.record(…) as recording:`"
            )
        return self._active

    # -- from one step to the next -------------------------------------------------------------------------

    def _close(self, then: int) -> None:
        """Close the running step here and open the next, whose time goes to `then` first."""
        clock = self.timeline.clock
        if not self.timeline.open:
            self._stage = None
            self.open(HOST)
            return
        self.hooks.loss.close()
        stamps, owners = self.timeline.cut()
        self._lap_s = self.step_so_far.starts()
        evidence = self.hooks.next_step()
        if self.hooks.version != self._layers_version:  # more layers were discovered
            attempt(RecordingPart.LAYERS, self._write_layers)
        self._hand_on(stamps, owners, evidence)
        clock.follow()
        if self._prepare() or not clock.deferred:
            self.timeline.mark(then)
        else:
            self.timeline.relabel(then)  # nothing was done on the device's time: spare it an event

    def _hand_on(self, stamps: list[Stamp], owners: list[int], evidence: StepEvidence) -> None:
        """Give a finished step to those that read its stamps and write its rows."""
        stage, samples = self._stage or evidence.stage, self.step_so_far.samples
        marked = self.step_so_far.close()
        self.hooks.loss.forget()
        self.facts.count(evidence, stage)
        self._mark_next = stage in self._early and self._goes_early(stage, len(owners), marked)
        if not self.hooks.reading.done:
            attempt(RecordingPart.WORKLOAD, self._end_reading, evidence, samples)
        self._optimizer_step += self.hooks.updates.new()
        raw = RawStep(
            stamps=stamps,
            owners=owners,
            instrumented=marked,
            perturbed=self._tracer.running or self._disturbed,
            logged=self._logged,
            exchanged=self.hooks.collectives.exchanged(),
            fields={
                "step": self.step_number,
                "stage": stage,
                "attempt": self._resumed.attempt,
                "rank": self._rank,
                "epoch": max(0, self._epoch),
                "optimizer_step": self._optimizer_step,
                "samples": samples,
            },
        )
        self._logged, self._stage = {}, None
        self._disturbed = False
        self.step_number += 1
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

    def _end_reading(self, evidence: StepEvidence, samples: int | None) -> None:
        """A step ends whose operations were read."""
        self.hooks.reading.end_step(trains=evidence.backward, samples=samples)
        self._write_workload()

    def _prepare(self) -> bool:
        """Decide what the coming step carries: bare, layers or kernels. Returns whether that took work."""
        hooks, tracer, step = self.hooks, self._tracer, self.step_so_far
        worked = tracer.running or tracer.tracing
        if self._traced and tracer.ends_before(self.step_number):
            self._collect_trace()
        traced = bool(attempt(RecordingPart.KERNELS, tracer.plan, self.step_number))
        self.timeline.on_mark = tracer.on_mark if traced else None
        session = step.perturbed = tracer.running
        # Warm-up of a trace perturbs its step, so that one stays bare.
        draw = traced or hooks.discovering or (not session and self._budget.draw(early=self._mark_next))
        worked = worked or traced or draw != hooks.armed
        if draw and not hooks.armed:
            attempt(RecordingPart.LAYERS, hooks.arm)
        elif not draw and hooks.armed:
            attempt(RecordingPart.LAYERS, hooks.disarm)
        step.marked = draw and hooks.armed
        if traced:
            tracer.on_mark(0)  # the step's first mark was set when the one before was cut
        return worked

    def _collect_trace(self) -> None:
        """End the profiler session and give each traced step its kernels."""
        if not self._tracer.running:
            return
        try:
            self._tracer.collect(self._traced, self.hooks.is_layer())
        except Exception as error:  # a full disk under the temporary folder, a trace torch cannot write
            self.facts.note(f"a kernel trace was lost ({type(error).__name__}: {error})")
            self._tracer.give_up(str(error))
        if self.facts.trace_began is None:
            first = min((raw.fields["step"] for _, raw in self._traced), default=self.step_number)
            self.facts.trace_began = first - 1  # a warm-up step comes first
        self.facts.trace_ended = self.step_number
        for _, raw in self._traced:
            raw.read_stamps(self.timeline.clock)
            self._finished.take(raw)
        self._traced = []
        self._disturbed = True  # reading the trace took the coming step's time

    # -- the files about the network, kept current: layers and optimizers may appear late --------------------

    def _write_layers(self) -> None:
        """The layers as they are known now, with what the traced steps said of their memory."""
        self._layers_version = self.hooks.version
        kept, peak = self.facts.activation_bytes, self.facts.peak_bytes
        mine = [
            replace(layer, activation_bytes=kept.get(at), peak_bytes=peak.get(at))
            for at, layer in self.hooks.layers().items()
        ]
        names = {layer.name for layer in mine}
        self._writer.network([*mine, *(layer for layer in self._others_layers if layer.name not in names)])

    def layers(self) -> list[Layer]:
        """The layers of this rank, as far as they have been called."""
        return list(self.hooks.layers().values())

    def add_layers(self, layers: Iterable[Layer]) -> None:
        """Keep the layers of other ranks with the run, where each has a part of the network."""
        self._others_layers = list(layers)
        attempt(RecordingPart.LAYERS, self._write_layers)

    def _write_workload(self) -> None:
        """The operations of the step that was read, if one was.

        Made here and not at the next flush: networks and optimizers of a script die with its `main()`, and no
        recording keeps them alive. What was made before they died is not made anew.
        """
        divisions, optimizers = self.hooks.divisions, self.hooks.updates.optimizers
        gone = any(division.root is GONE for division in divisions)
        if self.hooks.reading.step is None or gone or len(optimizers) < self._read_optimizers:
            return
        self._read_optimizers = len(optimizers)
        workload = self.hooks.reading.workload(divisions, optimizers)
        if workload is not None:
            self._writer.workload(workload.document)

    # -- other calls from a loop ---------------------------------------------------------------------------

    def log(self, **values: Any) -> None:
        """Loss, top1, topn or staleness of the running step: a number, or a function that is called later.

        Tensors are read at the flush: this never synchronises. What cannot be kept is told once, not raised:
        nobody's training ends over a number for a log.
        """
        for name, value in values.items():
            attempt(RecordingPart.RECORDING, self._log, name, value)

    def _log(self, name: str, value: Any) -> None:
        kept = _loggable(name, value)
        if isinstance(kept, str):
            self._tell(kept)
        elif self._active:
            self._logged[name] = kept

    def _tell(self, text: str) -> None:
        """Warn of something, and keep it with the run; once."""
        if text not in self.facts.notes:
            self.facts.note(text)
            warn(text)

    @property
    def run(self) -> Run:
        """The run as it is on disk now; complete once the recording has ended."""
        if self._active:
            self._finished.flush()
        return load(self.out)

    def add_network(self, name: str, network: nn.Module) -> None:
        """Watch one more network. With several, a layer's name begins with its network's.

        A first network that has steps on disk already keeps the names that they have.
        """
        refuse_replicas(network)
        self.hooks.add_network(name, network, prefix=f"{name}." if self.hooks.networks else "")
        if len(self.hooks.networks) == 2 and not (self._active and self.step_number):
            self.hooks.name_first()
        if self._active and self._unnamed:
            self.update(config={"network": class_names(watched.root for watched in self.hooks.networks)})

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run that have been broken down."""
        return self._breakdown.elapsed_s

    @contextmanager
    def account(self, name: str) -> Iterator[None]:
        """Charge the enclosed code to an account by hand, for what laptime cannot see by itself."""
        code = CODE.get(Account(name)) if name in set(Account) else None
        if code is None:
            known = ", ".join(account.value for account in Account)
            self._tell(f"no account is called {name!r}, so its time stays where it was; one of {known}")
        if not self._active or code is None:
            yield
            return
        attempt(RecordingPart.RECORDING, self.hooks.loss.close)
        earlier = self.timeline.owner
        attempt(RecordingPart.RECORDING, self.timeline.mark, code)
        try:
            yield
        finally:
            attempt(RecordingPart.RECORDING, self.timeline.give_back, earlier)

    @shielded(RecordingPart.RECORDING)
    def flush(self) -> None:
        """Wait for the device and write every step that has ended: before a checkpoint that follows them."""
        self._finished.flush(wait=True)

    @shielded(RecordingPart.RECORDING)
    def updated_elsewhere(self) -> None:
        """Count an update that another process made, such as a parameter server."""
        self._optimizer_step += 1
        self.facts.optimizer_steps += 1

    @shielded(RecordingPart.RECORDING)
    def note(self, text: str) -> None:
        """Keep a remark with the run's summary."""
        self.facts.note(text)

    def bubbles(self, cause: str | None) -> None:
        """Charge waits for other stages to `idle`, by `fill`, `drain` or `imbalance`; None: no longer."""
        self.hooks.collectives.bubble = cause

    def exchange(self, kind: str, size: int) -> AbstractContextManager[None]:
        """The enclosed code exchanges so many bytes in both directions, by other means than collectives."""
        return self.hooks.collectives.exchange(kind, size)

    @shielded(RecordingPart.COMMUNICATION)
    def carries(self, bucket: int, parameters: Iterable[torch.Tensor]) -> None:
        """The next collective carries the gradients of these parameters, as a bucket of DDP does."""
        self.hooks.collectives.carries(bucket, parameters, self.hooks.parameter_layers)

    @shielded(RecordingPart.COMMUNICATION)
    def arrival(self) -> Callable[[], None] | None:
        """What to call when the gradients have arrived that the last collective carries."""
        return self.hooks.collectives.arrival()

    def _exchanged(self) -> RankExchanges | None:
        return self.facts.exchanged(self.hooks.collectives.bucket_layers) if self.facts.exchanges else None

    def checkpoint_failed(self, reason: str) -> None:
        """Count a checkpoint that could not be written in the run's health."""
        self._writer.checkpoint_failed(reason)

    @shielded(RecordingPart.RECORDING)
    def update(self, **facts: Mapping[str, Any]) -> None:
        """Add to the run's `summary`, `config` or `outputs`; the next flush writes it."""
        self._writer.update(**facts)


_current: Recorder | None = None


def active_recording() -> Recorder | None:
    """The recording of this process, if one is running."""
    return _current if _current is not None and _current.active else None


def _leave_in_child() -> None:
    # A forked loader worker inherits the hooks; without this its copy of the timeline would grow for ever.
    global _current
    if (current := active_recording()) is not None:
        current.leave_in_child()
    _current = None


os.register_at_fork(after_in_child=_leave_in_child)


def _loggable(name: str, value: Any) -> LoggedValue | str:
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
