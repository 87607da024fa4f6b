"""The recorder: any PyTorch loop, per layer, with the books closed.

Accounts are kept on every step; layers on the steps that the budget draws, or on all; kernels on the steps
that were asked for. The training thread only sets marks. A background thread closes the books of the steps
that the device has finished and hands them to the store.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from laptime.errors import AlreadyRecording, RecordingError
from laptime.measure import patches
from laptime.measure.arguments import (
    Networks,
    Optimizers,
    batch_size,
    check_optimizers,
    device_of,
    listed,
    named,
    refuse_nested,
    refuse_replicas,
    step_numbers,
)
from laptime.measure.books import Books, rehearse
from laptime.measure.budget import Budget
from laptime.measure.clocks import Clock, Stamp, clock_for
from laptime.measure.division import Granularity
from laptime.measure.environment import environment
from laptime.measure.instruments import Instruments, Seen
from laptime.measure.kernels import KernelTracer
from laptime.measure.reading import Reading
from laptime.measure.settling import FLUSH_S, Settling
from laptime.measure.summary import Facts, summarize_run
from laptime.measure.timeline import CODE, COMMUNICATION, DATA_WAIT, HOST, RETURN, RawStep, Timeline
from laptime.measure.watch import Watch
from laptime.record import Account, Stage
from laptime.store import Run, RunWriter, load

LOGGED = ("loss", "top1", "topn")


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
        resumed: Resumed | None = None,
        flush_s: float = FLUSH_S,
    ) -> None:
        if not 0 < budget <= 1:
            raise RecordingError(f"budget={budget} is a share of step time, such as 0.02 for 2 %")
        self.out = Path(out)
        self._given = named(networks)
        self._optimizers = listed(optimizers)
        check_optimizers(self._given, self._optimizers)
        self._granularity: Granularity = layers if layers is not None else "layer"
        self._clock = clock
        self._budget = Budget(budget, every_step=every_step, never=layers is None)
        self._wanted_kernels = step_numbers(kernels)
        self._config = {"every_step": every_step, "budget": budget, "layers": layers, **(config or {})}
        self._rank, self._flush_s = rank, flush_s
        self._resumed = resumed
        self.facts = Facts()
        self._active = False
        self._attempt, self._step, self._optimizer_step = resumed.counts if resumed else (0, 0, 0)
        self._status: str | None = None

    # -- starting and stopping -----------------------------------------------------------------------------

    def start(self) -> Recorder:
        """Attach to the networks and open the first step."""
        if patches.active() is not None:
            raise AlreadyRecording(
                "a recording is active in this process already; end it before starting another"
            )
        if self._status is not None:
            raise RecordingError("this recording has ended; call laptime.record again for a new one")
        device = device_of(self._given.values())
        clock = self._clock or clock_for(device)
        self._clock = clock
        for name in self._given:
            refuse_nested(name, self._given)
        self._writer = self._open_writer(environment(device))
        self.timeline = Timeline(clock)
        self.instruments = Instruments(self.timeline, self._granularity)
        try:
            for name, network in self._given.items():
                self.add_network(name, network)
        except BaseException:
            self.instruments.detach()
            self._writer.close("failed", {})
            raise
        for optimizer in self._optimizers:
            self.instruments.updates.add(optimizer)
        self.instruments.on_network_resolved = self._publish_layers
        self.instruments.updates.watch()
        self._reading = Reading()
        if self._rank == 0 and self._resumed is None and not self._budget.never:
            self.instruments.reading = self._reading
        self._books = Books(clock, self.instruments, layers=not self._budget.never)
        self._books.elapsed_s = self._resumed.elapsed_s if self._resumed else 0.0
        rehearse()
        self._tracer = KernelTracer(self._wanted_kernels, cuda=clock.device.startswith("cuda"))
        self._traced: list[tuple[int, RawStep]] = []
        self.watch = Watch(self.timeline, self.instruments)
        self._patches = patches.install(self.watch)
        self._active = True
        self._epoch = -1
        self._stage: Stage | None = None
        self._logged: dict[str, Any] = {}
        self._disturbed = False
        self._began_steps = self._last_lap = time.perf_counter()
        self._instrumented = False
        self._budget.mark_s = _mark_cost(clock)
        self._settling = Settling(
            clock, self._books, self.facts, self._budget, self._writer, flush_s=self._flush_s
        )
        return self

    def _open_writer(self, here: Mapping[str, Any]) -> RunWriter:
        if self._resumed is not None:
            return RunWriter.resume(self.out, environment=here, rank=self._rank)
        return RunWriter.create(self.out, config=self._config, environment=here, rank=self._rank)

    def stop(self, status: str = "finished") -> None:
        """Detach, close the books and the run. A step that was not finished is dropped. Idempotent."""
        if not self._active:
            return
        self._active = False
        self._status = status
        patches.uninstall(self._patches)
        self.instruments.detach()
        self._collect_trace()
        self.timeline.on_mark = None
        self._settling.finish()
        self.facts.host_s = self._last_lap - self._began_steps
        self.facts.notes += self._books.problems
        self.facts.dropped_traces = self._tracer.dropped
        if self._tracer.problem is not None:
            self.facts.note(self._tracer.problem)
        self._publish_layers()
        try:
            summary = summarize_run(self.facts, self._budget, load(self.out))
        except (
            Exception
        ) as error:  # someone removed the directory, or its disk: the training itself went well
            summary = {"notes": [f"no summary could be made ({type(error).__name__}: {error})"]}
            warnings.warn(f"laptime: {summary['notes'][0]}", stacklevel=3)
        if self._reading.step is not None:
            self._writer.workload(self._workload)  # again: an optimizer may have shown itself since
        self._writer.close(status, {**summary, "workload": self._reading.facts})

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

    @property
    def run(self) -> Run:
        """The run as it is on disk now; complete once the recording has ended."""
        if self._active:
            self._settling.flush()
        return load(self.out)

    @property
    def _clock_in_use(self) -> Clock:
        assert self._clock is not None
        return self._clock

    def add_network(self, name: str, network: nn.Module) -> None:
        """Watch one more network. With several, a layer's name begins with its network's.

        A first network that has steps on disk already keeps the names that they have.
        """
        refuse_replicas(network)
        several = len(self._given) > 1 or bool(self.instruments.networks)
        if several and len(self.instruments.networks) == 1 and self._step == 0:
            self.instruments.rename(f"{self.instruments.networks[0].name}.")
        self.instruments.add_network(name, network, prefix=f"{name}." if several else "")

    def search(self) -> None:
        """Look again, in the step that begins here, for parts of a network that are called by themselves."""
        self.instruments.search()
        if any(network.discovery for network in self.instruments.networks):
            self.instruments.arm()
            self._instrumented = True

    @property
    def active(self) -> bool:
        """Whether the recording is running."""
        return self._active

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run whose books are closed."""
        return self._books.elapsed_s

    @property
    def step_number(self) -> int:
        """The number of the running step."""
        return self._step

    @property
    def seen(self) -> Seen:
        """What has happened in the running step so far."""
        return self.instruments.seen

    # -- steps ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the first step here, for loops that are cut by `lap` alone."""
        self._open(HOST)

    def steps(
        self, loader: Iterable[Any], *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[Any]:
        """Each batch of the loader, a step apiece, from the end of the previous step to its own end."""
        self._require_active()
        wanted = Stage(stage) if stage is not None else None
        if wanted is not Stage.VALIDATION:
            self._epoch = self._epoch + 1 if epoch is None else epoch
        self._open(DATA_WAIT)
        if self.timeline.owner != DATA_WAIT:
            self.timeline.mark(DATA_WAIT)
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                if self._active:
                    self.timeline.mark(HOST)
                return
            if not self._active:
                yield batch
                continue
            self.timeline.follow_up(HOST)
            self._stage, self.watch.samples = wanted, batch_size(batch)
            finished = False
            try:
                yield batch
                finished = True
            finally:
                # After `break` only a step that did its work counts; after an exception, none does.
                if self._active and (finished or self.instruments.seen.update):
                    self.lap(then=DATA_WAIT if finished else HOST)

    @contextmanager
    def step(
        self, batch: Any = None, *, stage: Stage | str | None = None, epoch: int | None = None
    ) -> Iterator[None]:
        """One step around any code. Time since the previous step belongs to it: waiting for data, mostly."""
        self._require_active()
        self._open(HOST)
        self._stage = Stage(stage) if stage is not None else None
        if batch is not None:
            self.watch.samples = batch_size(batch)
        if epoch is not None:
            self._epoch = epoch
        yield
        if self._active:
            self.lap()

    def log(self, **values: Any) -> None:
        """Loss, top1 or topn of the running step: a number, or a function that gives one at the flush.

        Tensors are read at the flush: this never synchronises.
        """
        for name, value in values.items():
            if name not in LOGGED:
                raise RecordingError(f"log() keeps {', '.join(LOGGED)}; {name!r} is not one of them")
            if isinstance(value, torch.Tensor):
                if value.numel() != 1:
                    raise RecordingError(
                        f"log({name}=…) takes one number, not a tensor of shape {tuple(value.shape)}"
                    )
                value = value.detach()
                if value.device.type == "cpu":
                    value = float(value)
            version = value._version if isinstance(value, torch.Tensor) else 0
            if self._active:
                self._logged[name] = (value, version)

    @contextmanager
    def account(self, name: str) -> Iterator[None]:
        """Charge the enclosed code to an account by hand, for what laptime cannot see by itself."""
        code = CODE.get(Account(name)) if name in set(Account) else None
        if code is None:
            raise RecordingError(
                f"no account is called {name!r}; one of {', '.join(a.value for a in Account)}"
            )
        if not self._active:
            yield
            return
        earlier = self.timeline.owner & ~RETURN
        self.timeline.mark(code)
        try:
            yield
        finally:
            self.timeline.give_back(earlier)

    def communicating(self) -> None:
        """From here to the end of the backward pass only other ranks are waited for."""
        if self._active and self.instruments.backward_depth:
            self.timeline.mark(COMMUNICATION)

    def flush(self) -> None:
        """Wait for the device and write every step that has ended: before a checkpoint that follows them."""
        self._settling.flush(wait=True)

    def note(self, text: str) -> None:
        """Keep a remark with the run's summary."""
        self.facts.note(text)

    def update(self, **facts: Mapping[str, Any]) -> None:
        """Add to the run's `summary`, `config` or `outputs`; the next flush writes it."""
        self._writer.update(**facts)

    def _require_active(self) -> None:
        if not self._active:
            raise RecordingError(
                "the recording is not running; use it as `with laptime.record(…) as recording:`"
            )

    def _open(self, code: int) -> None:
        """Open the first step of the run."""
        if not self.watch.open:
            self.watch.begin()
            self._clock_in_use.follow()
            self._prepare()
            self.timeline.stamps.clear()
            self.timeline.owners.clear()
            self.timeline.mark(code)
            self._began_steps = self._last_lap = time.perf_counter()

    def lap(
        self,
        *,
        stage: Stage | str | None = None,
        samples: int | None = None,
        epoch: int | None = None,
        then: int = HOST,
    ) -> None:
        """Close the running step and open the next, whose time goes to `then` first."""
        self._require_active()
        if not self.watch.open:
            self._open(HOST)
            return
        self.watch.relabel_loss_tail()
        stamps, owners = self.timeline.cut()
        self._last_lap = time.perf_counter()
        seen = self.instruments.next_step()
        self._close(stamps, owners, seen, stage=stage, samples=samples, epoch=epoch)
        self.watch.next_step()
        self._clock_in_use.follow()
        if self._prepare() or not self._clock_in_use.deferred:
            self.timeline.mark(then)
        else:
            self.timeline.relabel(then)  # nothing was done on the device's time: spare it an event

    def lap_at(self, mark: int, *, samples: int | None = None, epoch: int | None = None) -> None:
        """Close the running step at an earlier mark: only now has it shown that another began there."""
        if self._tracer.running:
            return  # a trace knows marks by their number
        stamps, owners = self.timeline.cut_at(mark)
        self._close(stamps, owners, self.seen, samples=samples, epoch=epoch)
        self.watch.next_step()
        self.instruments.forward_end = (0, -1)  # it counts marks too

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
        self.facts.count(seen, decided)
        if self.instruments.reading is not None:
            self._end_reading(seen, samples if samples is not None else self.watch.samples)
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
            self._tracer.on_end()
            self._traced.append((self._tracer.number, raw))
        else:
            self._settling.take(raw)

    def _prepare(self) -> bool:
        """Decide what the coming step carries: bare, layers or kernels. Returns whether that took work."""
        worked = self._tracer.running or self._tracer.tracing
        if self._traced and self._tracer.ends_before(self._step):
            self._collect_trace()
        traced = self._tracer.plan(self._step)
        self.timeline.on_mark = self._tracer.on_mark if traced else None
        discovering = any(network.discovery for network in self.instruments.networks)
        # Warm-up of a trace perturbs its step, so that one stays bare.
        draw = traced or discovering or (not self._tracer.running and self._budget.draw())
        worked = worked or traced or draw != self.instruments.armed
        if draw and not self.instruments.armed:
            self.instruments.arm()
        elif not draw and self.instruments.armed:
            self.instruments.disarm()
        self._instrumented = draw
        if traced:
            self._tracer.on_mark(0)  # the step's first mark was set when the one before was cut
        return worked

    def _collect_trace(self) -> None:
        """End the profiler session and give each traced step its kernels."""
        if not self._tracer.running:
            return
        try:
            self._tracer.collect(self._traced, self.instruments.is_layer())
        except Exception as error:  # a full disk under the temporary folder, a trace torch cannot write
            self.facts.note(f"a kernel trace was lost ({type(error).__name__}: {error})")
        first = min((raw.fields["step"] for _, raw in self._traced), default=self._step)
        self.facts.detach.session(began=first - 1, ended=self._step)  # a warm-up step comes first
        for _, raw in self._traced:
            raw.read = self._clock_in_use.read(raw.stamps)
            self._settling.take(raw)
        self._traced = []
        self._disturbed = True  # reading the trace took the coming step's time

    def _end_reading(self, seen: Seen, samples: int | None) -> None:
        self._reading.end_step(trains=seen.backward, samples=samples)
        if self._reading.done:
            self.instruments.reading = None
        if self._reading.step is not None:
            self._writer.workload(self._workload)

    def _workload(self) -> dict[str, Any] | None:
        divisions = [one.division for one in self.instruments.networks if one.division.resolved]
        found = self._reading.workload(divisions, self.instruments.updates.optimizers)
        return found.document() if found is not None else None

    def _publish_layers(self) -> None:
        self._writer.network(self.facts.with_memory(self.instruments.layers()))


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
