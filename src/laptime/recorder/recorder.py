"""The recorder: any PyTorch loop, per layer, with accounts that add up to the wall time.

The life of a step, from mark to disk:

1. `hooks` (layers, passes, updates) and `marks` (losses, loaders, copies) set marks on the `timeline`, which
   the backend's clock stamps. That is all the training thread does within a step. `step` is what has happened
   in it so far.
2. Where a step ends, `_steps` cuts the timeline, decides what the next step carries (nothing, layer marks or
   a kernel trace, as `_budget` and `_tracer` say) and hands the finished one to `_finished`.
3. `_finished` reads the stamps once the device has passed them. Its background thread has `_breakdown` turn
   many steps at once into rows, tells `facts` and `_budget` what they took, and gives the rows to `_writer`.
4. `_writer` flushes rows to part files every two seconds, and closes the run.

Accounts are kept on every step; layers on sampled steps, or on all; kernels on the steps that were asked for.
A fault of ours ends the part of the recording that it is in (`_end_part`), never the training.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from laptime.errors import AlreadyRecording, RecordingError
from laptime.model import Account, Stage
from laptime.recorder import torch_patches
from laptime.recorder.arguments import (
    Networks,
    Optimizers,
    check_optimizers,
    class_names,
    device_of,
    listed,
    named,
    refuse_nested,
    refuse_replicas,
    step_numbers,
)
from laptime.recorder.backends import backend_of
from laptime.recorder.breakdown import Breakdown, rehearse
from laptime.recorder.budget import Budget
from laptime.recorder.clocks import Clock
from laptime.recorder.collectives import Collectives
from laptime.recorder.environment import environment
from laptime.recorder.finished_steps import FLUSH_S, FinishedSteps
from laptime.recorder.guard import RecordingPart, attempt, shielded, warn, watch_faults
from laptime.recorder.kernel_trace import KernelTracer
from laptime.recorder.layer_division import Granularity
from laptime.recorder.live_workload import Reading
from laptime.recorder.loop_listener import LoopListener
from laptime.recorder.loss_end import LossStretch
from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.network_info import NetworkFiles
from laptime.recorder.optimizer_steps import tidy
from laptime.recorder.phase_marks import PhaseMarks
from laptime.recorder.run_summary import Facts, summarize_run
from laptime.recorder.running_step import RunningStep, StepEvidence
from laptime.recorder.steps import StepCutter, loggable
from laptime.recorder.timeline import CODE, DATA_WAIT, HOST, RETURN, Timeline
from laptime.runs import Run, RunWriter, load

FRAMES = 3  # of a watched call, at most, for one of a call that is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run to go on with: which attempt this is, and the numbers of its first step and last update."""

    attempt: int
    step: int
    optimizer_step: int
    elapsed_s: float = 0.0  # where the timeline goes on

    @property
    def counts(self) -> tuple[int, int, int]:
        """Attempt, step, optimizer step."""
        return self.attempt, self.step, self.optimizer_step


class Recorder:
    """Records a training loop. Made by `laptime.record`; used as a context manager."""

    # There once the recording has started.
    timeline: Timeline
    step_so_far: RunningStep
    hooks: NetworkHooks
    marks: PhaseMarks
    _steps: StepCutter
    _finished: FinishedSteps
    _breakdown: Breakdown
    _tracer: KernelTracer
    _collectives: Collectives
    _writer: RunWriter
    _network_files: NetworkFiles

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
        self._resumed = resumed
        self._tell_trouble = tell  # reports a failing disk; by default a warning
        self._joins = joins  # the run of the other ranks, though rank 0 may have ended it already
        self._listener = listener or LoopListener()  # who cuts steps, if not the loop
        self._status: str | None = None
        self._several = len(self._given) > 1
        self._active = False
        self._abandoned: str | None = None  # the internal error that ended the recording
        self._lost: set[RecordingPart] = set()  # parts that internal errors have ended

    @property
    def active(self) -> bool:
        """Whether the recording is running."""
        return self._active

    @property
    def step_number(self) -> int:
        """The number of the running step."""
        return self._steps.number

    @property
    def evidence(self) -> StepEvidence:
        """What has happened in the running step so far."""
        return self.step_so_far.evidence

    # -- beginning and end ---------------------------------------------------------------------------------

    def start(self) -> Recorder:
        """Attach to the networks and open the first step."""
        global _current
        if _current is not None and _current.active:
            _current._listener.give_way()
        if torch_patches.active() is not None:
            raise AlreadyRecording(
                "a recording is active in this process already; end it before starting another"
            )
        if self._status is not None:
            raise RecordingError("this recording has ended; call laptime.record again for a new one")
        device = device_of(self._given.values())
        clock = self._clock or backend_of(device).clock(device)
        for name in self._given:
            refuse_nested(name, self._given)
        self._assemble_hooks(clock)
        try:
            for name, network in self._given.items():
                self.add_network(name, network)
            # Only now: what is refused leaves no directory, so the corrected call can have the same one.
            self._writer = self._open_writer(environment(device))
        except BaseException:
            self.hooks.detach()
            raise
        for optimizer in self._optimizers:
            self.hooks.updates.add(optimizer)
        self._given, self._optimizers = {}, []  # no recording keeps a network alive
        self._assemble_steps(clock)
        self.hooks.updates.watch()
        rehearse()
        self._patches = torch_patches.install(self.marks)
        _current = self
        watch_faults(self._end_part)
        attempt(RecordingPart.COMMUNICATION, self._collectives.start)
        self._depth_limit = sys.getrecursionlimit()
        sys.setrecursionlimit(FRAMES * self._depth_limit)  # a watched call is deeper by a few frames
        self._active = True
        # On a device the hook is measured together with its event.
        self._budget.price_marks(_mark_cost(clock), **({"hook_s": 0.0} if clock.deferred else {}))
        self._finished.start()
        return self

    def _assemble_hooks(self, clock: Clock) -> None:
        """What sets marks."""
        self.timeline = timeline = Timeline(clock)
        self.step_so_far = step = RunningStep()
        loss = LossStretch(timeline, step)
        self._collectives = Collectives(timeline, loss, step)
        self.hooks = NetworkHooks(
            timeline,
            step,
            loss,
            self._collectives,
            granularity=self._granularity,
            budget=self._budget,
            reading=Reading(wanted=self._rank == 0 and self._resumed is None and not self._budget.never),
            listener=self._listener,
        )
        self.marks = PhaseMarks(timeline, self.hooks, self._listener)

    def _assemble_steps(self, clock: Clock) -> None:
        """What makes steps of the marks, and rows of the steps."""
        self._network_files = NetworkFiles(self._writer, self.hooks, self.facts)
        self._breakdown = Breakdown(
            clock,
            self.hooks,
            layers=not self._budget.never,
            elapsed_s=self._resumed.elapsed_s if self._resumed else 0.0,
        )
        self._tracer = KernelTracer(self._wanted_kernels, backend_of(clock.device))
        self._finished = FinishedSteps(
            clock, self._breakdown, self.facts, self._budget, self._writer, flush_s=self._flush_s
        )
        self._steps = StepCutter(
            self.hooks,
            self.marks,
            self._tracer,
            self._budget,
            self.facts,
            self._network_files,
            self._finished,
            rank=self._rank,
            counts=self._resumed.counts if self._resumed else (0, 0, 0),
        )

    def _open_writer(self, here: Mapping[str, Any]) -> RunWriter:
        if self._resumed is not None:
            return RunWriter.resume(self.out, environment=here, rank=self._rank, tell=self._tell_trouble)
        return RunWriter.create(
            self.out,
            config=self._config,
            environment=here,
            rank=self._rank,
            joins=self._joins,
            tell=self._tell_trouble,
        )

    def stop(self, status: str = "finished") -> None:
        """Detach, write what there is and close the run. A step that was not finished is dropped. Idempotent.

        In a fork of the process that records, it only detaches: the run is its parent's.
        """
        if not self._active:
            return
        self._active = False
        self._status = status
        for action in (
            self._collectives.stop,
            partial(torch_patches.uninstall, self._patches),
            self.hooks.detach,
            self._restore_depth_limit,
            self._steps.collect_trace,
            self._finish_steps,
            self._network_files.write_layers,
            partial(self._close_run, status),
        ):
            attempt(RecordingPart.RECORDING, action)
        watch_faults(None)

    def _restore_depth_limit(self) -> None:
        if sys.getrecursionlimit() == FRAMES * self._depth_limit:
            sys.setrecursionlimit(self._depth_limit)

    def _finish_steps(self) -> None:
        self.timeline.trace(None)
        self._finished.finish()
        self.facts.finish(
            host_s=self._steps.host_s,
            background_s=self._finished.background_s,
            dropped_traces=self._tracer.dropped,
            notes=[*self._breakdown.problems, self._tracer.problem],
        )

    def _close_run(self, status: str) -> None:
        if self._rank:  # rank 0 tells about the run
            self._writer.close(status)
            return
        try:
            summary = summarize_run(self.facts, self._budget, load(self.out))
        except (
            Exception
        ) as error:  # someone removed the directory, or its disk: the training itself went well
            summary = {"notes": [f"no summary could be made ({type(error).__name__}: {error})"]}
            warn(summary["notes"][0])
        self._network_files.write_workload()  # again: an optimizer may have shown itself since
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
            self._collectives.stop()
        else:
            self.timeline.trace(None)
            self._tracer.give_up(reason)
        warn(text)

    def leave_in_child(self) -> None:
        """In a forked process: the run is the parent's, and what trains here is not recorded in it."""
        self._active = False
        self._abandoned = "the run belongs to another process"
        self._collectives.stop()
        torch_patches.uninstall(self._patches)
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

    # -- steps ---------------------------------------------------------------------------------------------

    def steps(
        self, loader: Iterable[Any], *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[Any]:
        """Each batch of the loader, a step apiece, from the end of the previous step to its own end."""
        wanted = Stage(stage) if stage is not None else None
        if self._running():
            attempt(RecordingPart.RECORDING, self._steps.begin_epoch, wanted, epoch)
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
            attempt(RecordingPart.RECORDING, self._steps.drawn, batch, wanted)
            finished, number = False, self._steps.number
            try:
                yield batch
                finished = True
            finally:
                # After `break` only a step that did its work counts; after an exception, none does.
                if self._active and self._steps.number != number and not self.evidence.works:
                    attempt(RecordingPart.RECORDING, self.timeline.mark, DATA_WAIT)  # a loop within closed it
                elif self._active and (finished or self.evidence.update):
                    self.lap(then=DATA_WAIT if finished else HOST)

    @contextmanager
    def step(
        self, batch: Any = None, *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """One step around any code. Time since the previous step belongs to it: waiting for data, mostly."""
        wanted = Stage(stage) if stage is not None else None
        if self._running():
            attempt(RecordingPart.RECORDING, self._steps.begin_step, batch, wanted, epoch)
        yield
        if self._active:
            self.lap()

    def open(self) -> None:
        """Open the first step here, for loops that are cut by `lap` alone."""
        self._steps.open_first(HOST)

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
            attempt(
                RecordingPart.RECORDING,
                self._steps.close,
                stage=wanted,
                samples=samples,
                epoch=epoch,
                then=then,
            )

    @shielded(RecordingPart.RECORDING)
    def lap_at(self, mark: int, *, samples: int | None = None, epoch: int | None = None) -> None:
        """Close the running step at an earlier mark: only now has it shown that another began there."""
        self._steps.close_at(mark, samples=samples, epoch=epoch)

    def begin_anew(self) -> None:
        """Begin the running step anew, in this thread: what it holds is no training."""
        self._steps.begin_anew()

    def search(self) -> None:
        """Look again, in the step that begins here, for parts of a network that are called by themselves."""
        attempt(RecordingPart.LAYERS, self._steps.look_again)

    def log(self, **values: Any) -> None:
        """Loss, top1 or topn of the running step: a number, or a function that gives one at the flush.

        Tensors are read at the flush: this never synchronises. What cannot be kept is told once, not raised:
        nobody's training ends over a number for a log.
        """
        for name, value in values.items():
            attempt(RecordingPart.RECORDING, self._log, name, value)

    def _log(self, name: str, value: Any) -> None:
        kept = loggable(name, value)
        if isinstance(kept, str):
            self._tell(kept)
        elif self._active:
            self._steps.keep(name, kept)

    def _tell(self, text: str) -> None:
        """Warn of something, and keep it with the run; once."""
        if text not in self.facts.notes:
            self.facts.note(text)
            warn(text)

    def _running(self) -> bool:
        """Whether there is something to record; False after a fault of ours has ended the recording."""
        if not self._active and self._abandoned is None:
            raise RecordingError(
                "the recording is not running; use it as `with laptime.record(…) as recording:`"
            )
        return self._active

    # -- other calls from a loop ---------------------------------------------------------------------------

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
        several = self._several or bool(self.hooks.networks)
        if several and len(self.hooks.networks) == 1 and not (self._active and self.step_number):
            self.hooks.rename(f"{self.hooks.networks[0].name}.")
        self.hooks.add_network(name, network, prefix=f"{name}." if several else "")
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
        earlier = self.timeline.owner & ~RETURN
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
    def note(self, text: str) -> None:
        """Keep a remark with the run's summary."""
        self.facts.note(text)

    def checkpoint_failed(self, reason: str) -> None:
        """Count a checkpoint that could not be written in the run's health."""
        self._writer.checkpoint_failed(reason)

    @shielded(RecordingPart.RECORDING)
    def update(self, **facts: Mapping[str, Any]) -> None:
        """Add to the run's `summary`, `config` or `outputs`; the next flush writes it."""
        self._writer.update(**facts)


_current: Recorder | None = None


def _leave_in_child() -> None:
    # A forked loader worker inherits the hooks; without this its copy of the timeline would grow for ever.
    global _current
    if _current is not None and _current.active:
        _current.leave_in_child()
    _current = None


os.register_at_fork(after_in_child=_leave_in_child)


def _mark_cost(clock: Clock) -> float:
    """Seconds that one mark keeps the host busy, the hook that sets it included."""
    scratch = Timeline(clock)
    begin = time.perf_counter()
    for _ in range(64):
        scratch.mark(HOST)
    each = (time.perf_counter() - begin) / 64
    clock.recycle(scratch.stamps)
    # A watched call and a boundary are 1 to 2 µs. On CUDA an event in a step costs more than in this loop, is
    # read, and leaves a bubble on the device: about 8 µs on the host of our H200 (docs/log.md).
    return each + (8e-6 if clock.deferred else 2e-6)
