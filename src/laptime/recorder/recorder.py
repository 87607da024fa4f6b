"""The recorder: any PyTorch loop, per layer, with the books closed.

Accounts are kept on every step; layers on the steps that the budget draws, or on all; kernels on the steps
that were asked for. The training thread only sets marks. A background thread closes the books of the steps
that the device has finished and hands them to the store.
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
from laptime.model import Account
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
from laptime.recorder.breakdown import Books, rehearse
from laptime.recorder.budget import Budget
from laptime.recorder.clocks import Clock, clock_for
from laptime.recorder.collectives import Collectives
from laptime.recorder.environment import environment
from laptime.recorder.finished_steps import FLUSH_S, Settling
from laptime.recorder.guard import Part, attempt, shielded, warn, watch_faults
from laptime.recorder.kernel_trace import KernelTracer
from laptime.recorder.layer_division import Granularity
from laptime.recorder.network_hooks import Instruments
from laptime.recorder.network_info import NetworkFiles
from laptime.recorder.optimizer_steps import tidy
from laptime.recorder.phase_marks import Watch
from laptime.recorder.run_summary import summarize_run
from laptime.recorder.steps import Steps
from laptime.recorder.timeline import CODE, HOST, RETURN, Timeline
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


class Recorder(Steps):
    """Records a training loop. Made by `laptime.record`; used as a context manager."""

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
    ) -> None:
        if not 0 < budget <= 1:
            raise RecordingError(f"budget={budget} is a share of step time, such as 0.02 for 2 %")
        super().__init__(
            Budget(budget, every_step=every_step, never=layers is None),
            rank=rank,
            counts=resumed.counts if resumed else (0, 0, 0),
        )
        self.out = Path(out)
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
        self._tell_trouble = tell  # how a disk that fails is told; by default as a warning
        self._joins = joins  # the run of the other ranks, though rank 0 may have ended it already
        self._status: str | None = None
        self.give_way: Callable[[], None] | None = None  # to another recording that is about to begin
        self._several = len(self._given) > 1
        self._lost: set[Part] = set()  # what a fault of ours has ended

    def start(self) -> Recorder:
        """Attach to the networks and open the first step."""
        global _current
        if _current is not None and _current.active and _current.give_way is not None:
            _current.give_way()
        if torch_patches.active() is not None:
            raise AlreadyRecording(
                "a recording is active in this process already; end it before starting another"
            )
        if self._status is not None:
            raise RecordingError("this recording has ended; call laptime.record again for a new one")
        device = device_of(self._given.values())
        clock = self._clock_in_use = self._clock or clock_for(device)
        for name in self._given:
            refuse_nested(name, self._given)
        self.timeline = Timeline(clock)
        self.instruments = Instruments(self.timeline, self._granularity)
        try:
            for name, network in self._given.items():
                self.add_network(name, network)
            # Only now: what is refused leaves no directory, so the corrected call can have the same one.
            self._writer = self._open_writer(environment(device))
            self._writer.tell = self._tell_trouble or self._writer.tell
        except BaseException:
            self.instruments.detach()
            raise
        for optimizer in self._optimizers:
            self.instruments.updates.add(optimizer)
        self._given, self._optimizers = {}, []  # no recording keeps a network alive
        self._network_files = NetworkFiles(self._writer, self.instruments, self.facts)
        self.instruments.on_network_resolved = self._network_files.write_layers
        self.instruments.updates.watch()
        self.instruments.too_dear = self._too_dear
        if self._rank == 0 and self._resumed is None and not self._budget.never:
            self.instruments.reading = self._network_files.reading
        self._books = Books(clock, self.instruments, layers=not self._budget.never)
        self._books.elapsed_s = self._resumed.elapsed_s if self._resumed else 0.0
        rehearse()
        self._tracer = KernelTracer(self._wanted_kernels, cuda=clock.device.startswith("cuda"))
        self.watch = Watch(self.timeline, self.instruments)
        self._patches = torch_patches.install(self.watch)
        self._collectives = Collectives(self.timeline, self.watch, self.instruments)
        _current = self
        watch_faults(self._end_part)
        attempt(Part.COMMUNICATION, self._collectives.start)
        self._depth_limit = sys.getrecursionlimit()
        sys.setrecursionlimit(FRAMES * self._depth_limit)  # a watched call is deeper by a few frames
        self._active = True
        self._budget.mark_s = _mark_cost(clock)
        if clock.deferred:
            self._budget.hook_s = 0.0  # measured together with the event
        self._settling = Settling(
            clock, self._books, self.facts, self._budget, self._writer, flush_s=self._flush_s
        )
        return self

    def _open_writer(self, here: Mapping[str, Any]) -> RunWriter:
        if self._resumed is not None:
            return RunWriter.resume(self.out, environment=here, rank=self._rank)
        return RunWriter.create(
            self.out, config=self._config, environment=here, rank=self._rank, joins=self._joins
        )

    def stop(self, status: str = "finished") -> None:
        """Detach, close the books and the run. A step that was not finished is dropped. Idempotent.

        In a fork of the process that records, it only detaches: the run is its parent's.
        """
        if not self._active:
            return
        self._active = False
        self._status = status
        for action in (
            self._collectives.stop,
            partial(torch_patches.uninstall, self._patches),
            self.instruments.detach,
            self._restore_depth_limit,
            self._collect_trace,
            self._settle,
            self._network_files.write_layers,
            partial(self._close_run, status),
        ):
            attempt(Part.RECORDING, action)
        watch_faults(None)

    def _restore_depth_limit(self) -> None:
        if sys.getrecursionlimit() == FRAMES * self._depth_limit:
            sys.setrecursionlimit(self._depth_limit)

    def _settle(self) -> None:
        self.timeline.on_mark = None
        self._settling.finish()
        self.facts.host_s = self._last_lap - self._began_steps
        self.facts.notes += self._books.problems
        self.facts.dropped_traces = self._tracer.dropped
        if self._tracer.problem is not None:
            self.facts.note(self._tracer.problem)

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
        self._writer.close(status, {**summary, "workload": self._network_files.reading.facts})

    def _end_part(self, part: Part, reason: str) -> None:
        """Something of ours failed: go on without it."""
        if part in self._lost or self._abandoned is not None:
            return
        self._lost.add(part)
        text = f"{part} ended at step {self._step}, and the training goes on without ({reason})"
        self.facts.note(text)
        if part is Part.RECORDING:
            self._abandoned = text
            self.stop("interrupted")
        elif part is Part.LAYERS:
            self._budget.stop()
            self._instrumented = False
            self.instruments.end_layers()
        elif part is Part.WORKLOAD:
            self._network_files.reading.give_up(reason)
            self.instruments.reading = None
        elif part is Part.COMMUNICATION:
            self._collectives.stop()
        else:
            self.timeline.on_mark = None
            self._tracer.give_up(reason)
        warn(text)

    def leave_in_child(self) -> None:
        """In a forked process: the run is the parent's, and what trains here is not recorded in it."""
        self._active = False
        self._abandoned = "the run belongs to another process"
        self._collectives.stop()
        torch_patches.uninstall(self._patches)
        self.instruments.detach()
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

    @property
    def run(self) -> Run:
        """The run as it is on disk now; complete once the recording has ended."""
        if self._active:
            self._settling.flush()
        return load(self.out)

    def add_network(self, name: str, network: nn.Module) -> None:
        """Watch one more network. With several, a layer's name begins with its network's.

        A first network that has steps on disk already keeps the names that they have.
        """
        refuse_replicas(network)
        several = self._several or bool(self.instruments.networks)
        if several and len(self.instruments.networks) == 1 and self._step == 0:
            self.instruments.rename(f"{self.instruments.networks[0].name}.")
        self.instruments.add_network(name, network, prefix=f"{name}." if several else "")
        if self._active and self._unnamed:
            self.update(config={"network": class_names(one.root for one in self.instruments.networks)})

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run whose books are closed."""
        return self._books.elapsed_s

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
        attempt(Part.RECORDING, self.instruments.loss.close)
        earlier = self.timeline.owner & ~RETURN
        attempt(Part.RECORDING, self.timeline.mark, code)
        try:
            yield
        finally:
            attempt(Part.RECORDING, self.timeline.give_back, earlier)

    @shielded(Part.RECORDING)
    def flush(self) -> None:
        """Wait for the device and write every step that has ended: before a checkpoint that follows them."""
        self._settling.flush(wait=True)

    @shielded(Part.RECORDING)
    def note(self, text: str) -> None:
        """Keep a remark with the run's summary."""
        self.facts.note(text)

    def checkpoint_failed(self, reason: str) -> None:
        """Count a checkpoint that could not be written in the run's health."""
        self._writer.checkpoint_failed(reason)

    @shielded(Part.RECORDING)
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
