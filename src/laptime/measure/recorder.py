"""The recorder: any PyTorch loop, per layer, with the books closed.

Accounts are kept on every step; layers on the steps that the budget draws, or on all; kernels on the steps
that were asked for. The training thread only sets marks. A background thread closes the books of the steps
that the device has finished and hands them to the store.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from laptime.errors import AlreadyRecording, ForeignOptimizer, RecordingError
from laptime.measure import patches
from laptime.measure.books import Books, Closed
from laptime.measure.budget import Budget
from laptime.measure.clocks import Clock, Stamp, clock_for
from laptime.measure.division import Granularity
from laptime.measure.environment import environment
from laptime.measure.graph import sequence_number
from laptime.measure.instruments import Instruments, Seen
from laptime.measure.kernels import KernelTracer
from laptime.measure.summary import Facts, summarize_run
from laptime.measure.timeline import (
    CODE,
    COPY,
    DATA_WAIT,
    HOST,
    LOSS,
    LOSS_BACKWARD,
    OPTIMIZERS,
    RETURN,
    UNITS,
    RawStep,
    Timeline,
)
from laptime.record import Account, Stage
from laptime.store import Run, RunWriter, load

Networks = nn.Module | Mapping[str, nn.Module]
Optimizers = Optimizer | Sequence[Optimizer] | None

FLUSH_S = 2.0  # well inside the contract's 5 s, so that a slow disk still keeps it
SETTLE_S = 0.25
BATCH = 256  # steps whose books are closed at once
MOST_PENDING = 4096  # finished steps waiting for their books; beyond this the training thread helps
LOGGED = ("loss", "top1", "topn")


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
        layers: Granularity = "layer",
        kernels: Iterable[int] = (),
        clock: Clock | None = None,
        config: Mapping[str, Any] | None = None,
        rank: int = 0,
        attempt: int = 0,
        flush_s: float = FLUSH_S,
    ) -> None:
        if not 0 < budget <= 1:
            raise RecordingError(f"budget={budget} is a share of step time, such as 0.02 for 2 %")
        self.out = Path(out)
        self._given = _named(networks)
        self._optimizers = _listed(optimizers)
        _check_optimizers(self._given, self._optimizers)
        self._granularity = layers
        self._clock = clock
        self._budget = Budget(budget, every_step=every_step)
        self._wanted_kernels = sorted(set(kernels))
        self._config = {"every_step": every_step, "budget": budget, "layers": layers, **(config or {})}
        self._rank, self._attempt, self._flush_s = rank, attempt, flush_s
        self.before_draw: Callable[[Any], None] | None = None  # set by `laptime run`, whose steps start there
        self.facts = Facts()
        self._active = False
        self._step = self._optimizer_step = 0
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
        device = _device(self._given.values())
        clock = self._clock or clock_for(device)
        self._clock = clock
        for name in self._given:
            _refuse_nested(name, self._given)
        self._writer = RunWriter.create(
            self.out, config=self._config, environment=environment(device), rank=self._rank
        )
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
            self.instruments.add_optimizer(optimizer)
        self.instruments.on_network_resolved = self._publish_layers
        self.instruments.watch_optimizers()
        self._books = Books(clock, self.instruments)
        self._tracer = KernelTracer(self._wanted_kernels, cuda=clock.device.startswith("cuda"))
        self._unread: deque[RawStep] = deque()  # the device may not have passed their last stamp
        self._pending: deque[RawStep] = deque()  # their books are to be closed
        self._traced: list[tuple[int, RawStep]] = []
        self._settling = threading.Lock()
        self._thread = threading.get_ident()
        self._patches = patches.install(self)
        self._active = True
        self._epoch = -1
        self._stage: Stage | None = None
        self._samples: int | None = None
        self._logged: dict[str, Any] = {}
        self._loss_end = (0, -2)
        self._in_loss = False
        self._opened = False
        self._disturbed = False
        self._began_steps = self._last_lap = time.perf_counter()
        self._instrumented = False
        self._budget.mark_s = _mark_cost(clock)
        self._stop_background = threading.Event()
        self._background = threading.Thread(target=self._work, name="laptime-writer", daemon=True)
        self._background.start()
        return self

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
        self._stop_background.set()
        self._background.join()
        if self._unread:
            self._clock_in_use.wait(self._unread[-1].stamps[-1])
        self._read_stamps()
        self._settle()
        self.facts.host_s = self._last_lap - self._began_steps
        self.facts.notes += self._books.problems
        self.facts.dropped_traces = self._tracer.dropped
        self._writer.flush()
        self._publish_layers()
        self._writer.close(status, summarize_run(self.facts, self._budget, load(self.out)))

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
            self._read_stamps()
            self._settle()
            self._writer.flush()
        return load(self.out)

    @property
    def _clock_in_use(self) -> Clock:
        assert self._clock is not None
        return self._clock

    def add_network(self, name: str, network: nn.Module) -> None:
        """Watch one more network. With several, a layer's name begins with its network's.

        A first network that has steps on disk already keeps the names that they have.
        """
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
            self._stage, self._samples = wanted, batch_size(batch)
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
        self._samples = batch_size(batch) if batch is not None else self._samples
        if epoch is not None:
            self._epoch = epoch
        yield
        if self._active:
            self.lap()

    def log(self, **values: Any) -> None:
        """Loss, top1 or topn of the running step. Tensors are read at the flush: this never synchronises."""
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

    def end_loss(self) -> None:
        """The loss is complete: what ran since its last operation, and what comes, is host time."""
        self._relabel_loss_tail()
        if self.timeline.owner & ~RETURN == LOSS and not self.elsewhere():
            self.timeline.mark(HOST)

    def aside(self, call: Callable[[], Any]) -> Any:
        """Run what is host time even between the operations of a loss: logging makes autograd nodes too."""
        if self.elsewhere() or self._inside() or self.timeline.owner & ~RETURN != LOSS:
            return call()
        self.end_loss()
        try:
            return call()
        finally:
            self._loss_end = (len(self.timeline.owners), sequence_number())
            self.timeline.give_back(LOSS)

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

    def _require_active(self) -> None:
        if not self._active:
            raise RecordingError(
                "the recording is not running; use it as `with laptime.record(…) as recording:`"
            )

    def _open(self, code: int) -> None:
        """Open the first step of the run."""
        if not self._opened:
            self._opened = True
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
        if not self._opened:
            self._open(HOST)
            return
        self._relabel_loss_tail()
        stamps, owners = self.timeline.cut()
        self._last_lap = time.perf_counter()
        seen = self.instruments.next_step()
        self._close(stamps, owners, seen, stage=stage, samples=samples, epoch=epoch)
        self._loss_end, self._in_loss = (0, -2), False
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
        self._loss_end, self.instruments.forward_end = (0, -2), (0, -1)  # they count marks too

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
        decided = Stage(stage) if stage is not None else self._stage or stage_of(seen)
        self.facts.count(seen, decided)
        self._optimizer_step += self.instruments.new_updates()
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
                "samples": samples if samples is not None else self._samples,
            },
        )
        self._logged, self._samples, self._stage = {}, None, None
        self._disturbed = False
        self._step += 1
        self._hand_over(raw)

    def _hand_over(self, raw: RawStep) -> None:
        """Pass a finished step on, and read the stamps of those that the device has finished meanwhile.

        Read here and not in the background: with the driver and Python's lock to share, one event takes the
        background thread eight times as long, and the training thread waits for it.
        """
        if self._tracer.tracing:
            self._tracer.on_end()
            self._traced.append((self._tracer.number, raw))
        elif self._clock_in_use.deferred:
            self._unread.append(raw)
            self._read_stamps(most=2)
        else:
            self._pending.append(raw)
        if len(self._pending) > MOST_PENDING:
            self._settle()

    def _read_stamps(self, *, most: int | None = None) -> None:
        clock = self._clock_in_use
        while self._unread and most != 0 and clock.ready(self._unread[0].stamps[-1]):
            raw = self._unread.popleft()
            raw.read = clock.read(raw.stamps)
            clock.recycle(raw.stamps[:-1])  # the last stamp is the first of the next step
            raw.stamps = []
            self._pending.append(raw)
            most = None if most is None else most - 1

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
        self._tracer.collect(self._traced, self.instruments.is_layer())
        first = min((raw.fields["step"] for _, raw in self._traced), default=self._step)
        self.facts.detach.session(began=first - 1, ended=self._step)  # a warm-up step comes first
        for _, raw in self._traced:
            raw.read = self._clock_in_use.read(raw.stamps)
            self._pending.append(raw)
        self._traced = []
        self._disturbed = True  # reading the trace took the coming step's time

    def _relabel_loss_tail(self) -> None:
        """After the loss, time without a single new autograd node is Python, not loss."""
        mark, number = self._loss_end
        if mark and number == sequence_number():
            self.timeline.relabel_since(mark, LOSS, HOST)
        self._loss_end = (0, -2)

    # -- what the patches tell us ----------------------------------------------------------------------------

    def elsewhere(self) -> bool:
        """Whether this is another thread than the recorded one, or no step is open yet."""
        return threading.get_ident() != self._thread or not self._opened

    def watch_backward(self, call: Callable[[], Any], outputs: Any, *, accumulates: bool) -> Any:
        """A backward pass, or a gradient taken by hand."""
        if self.elsewhere() and not (self.instruments.backward_depth and _is_engine_thread()):
            return call()
        if not self.instruments.backward_depth:
            self._relabel_loss_tail()
        return self.instruments.run_backward(call, outputs, accumulates=accumulates)

    def watch_loss(self, call: Callable[[], Any], *, begins: bool) -> Any:
        """A loss function. `begins`: it is a criterion module, so its start is the start of the loss."""
        instruments = self.instruments
        if self.elsewhere() or self._in_loss or instruments.backward_depth:
            return call()
        earlier = self.timeline.owner & ~RETURN
        inside = instruments.forward_depth > 0
        mark, number = instruments.forward_end
        if begins and not inside and earlier == LOSS and number == sequence_number():
            self.timeline.relabel_since(mark, LOSS, HOST)
        if self.timeline.owner & ~RETURN != LOSS:
            self.timeline.mark(LOSS)
            instruments.entries.enter(LOSS_BACKWARD)
        self._in_loss = True
        try:
            return call()
        finally:
            self._in_loss = False
            self._loss_end = (len(self.timeline.owners), sequence_number())
            self.timeline.give_back(earlier if inside else LOSS)
            if inside and earlier >= UNITS:
                instruments.entries.enter(earlier + 1)  # forward codes are even, their backward codes follow

    def watch_data(self, call: Callable[[], Any], source: Any, *, draws: bool) -> Any:
        """A loader starts its workers, or is asked for a batch."""
        if self.elsewhere() or self._inside() or self.timeline.owner & ~RETURN == DATA_WAIT:
            return call()
        if draws and self.before_draw is not None:
            self.before_draw(source)
        self.timeline.mark(DATA_WAIT)
        try:
            result = call()
        finally:
            self.timeline.mark(HOST)
        if draws:
            self._samples = batch_size(result)
        return result

    def watch_copy(self, call: Callable[[], Any]) -> Any:
        """A tensor moves between the phases: the batch goes to the device."""
        owner = self.timeline.owner & ~RETURN if self._opened else HOST
        if self.elsewhere() or self._inside() or self._in_loss or owner not in (HOST, LOSS):
            return call()
        self.timeline.mark(COPY)
        try:
            return call()
        finally:
            self.timeline.give_back(owner)

    def _inside(self) -> bool:
        owner = self.timeline.owner & ~RETURN
        updating = OPTIMIZERS <= owner < UNITS
        return bool(self.instruments.forward_depth or self.instruments.backward_depth or updating)

    # -- the background thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        flushed = time.monotonic()
        while not self._stop_background.wait(SETTLE_S):
            self._settle()
            if time.monotonic() - flushed >= self._flush_s:
                self._writer.flush()
                flushed = time.monotonic()

    def _settle(self) -> None:
        """Close the books of the steps that are known."""
        with self._settling:
            while self._pending:
                raws = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH))]
                closed = self._books.close(raws)
                self.facts.take(closed)
                self._watch_budget(closed)
                for name in ("steps", "layers", "kernels"):
                    table = getattr(closed, name)
                    if table is not None:
                        self._writer.append(name, table)

    def _watch_budget(self, closed: Closed) -> None:
        for raw, wall_s in zip(closed.raws, closed.walls.tolist(), strict=True):
            if raw.fields["stage"] is Stage.TRAIN and raw.fields["step"] > 0 and not raw.perturbed:
                self._budget.observe(wall_s, marks=len(raw.owners), instrumented=raw.instrumented)

    def _publish_layers(self) -> None:
        self._writer.network(self.facts.with_memory(self.instruments.layers()))


def _is_engine_thread() -> bool:
    """Whether this thread belongs to autograd's engine: Python's threading did not start it."""
    return isinstance(threading.current_thread(), threading._DummyThread)


def _mark_cost(clock: Clock) -> float:
    """Seconds that one mark keeps the host busy, the hook that sets it included."""
    scratch = Timeline(clock)
    begin = time.perf_counter()
    for _ in range(64):
        scratch.mark(HOST)
    each = (time.perf_counter() - begin) / 64
    clock.recycle(scratch.stamps)
    return each + 2e-6  # a module with a hook leaves torch's fast call path: 1.5 to 2 µs, see docs/method.md


def _named(networks: Networks | None) -> dict[str, nn.Module]:
    if networks is None:
        return {}
    if isinstance(networks, nn.Module):
        return {"network": networks}
    if not isinstance(networks, Mapping) or not networks:
        raise RecordingError(f"record() takes a module or {{name: module}}, not {type(networks).__name__}")
    for name, network in networks.items():
        if not isinstance(network, nn.Module):
            raise RecordingError(f"network {name!r} is a {type(network).__name__}, not an nn.Module")
    return dict(networks)


def _listed(optimizers: Optimizers) -> list[Optimizer]:
    if optimizers is None:
        return []
    found = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    for optimizer in found:
        if not isinstance(optimizer, Optimizer):
            raise RecordingError(
                f"{type(optimizer).__name__} is not a torch optimizer; pass the optimizer you step"
            )
    return found


def _check_optimizers(networks: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> None:
    mine = {id(p) for network in networks.values() for p in network.parameters()}
    for optimizer in optimizers:
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if networks and not mine & theirs:
            raise ForeignOptimizer(
                f"the {type(optimizer).__name__} optimizer updates no parameter of the network; "
                "build it from the parameters of the network you record"
            )


def _refuse_nested(name: str, networks: Mapping[str, nn.Module]) -> None:
    for other, network in networks.items():
        if other != name and any(module is networks[name] for module in network.modules()):
            raise RecordingError(f"network {name!r} is part of network {other!r}; record {other!r} alone")


def _device(networks: Iterable[nn.Module]) -> torch.device:
    for network in networks:
        for parameter in network.parameters():
            if parameter.device.type != "meta":
                return parameter.device
    return torch.device("cpu")


def stage_of(seen: Seen) -> Stage:
    """What a step was for, from what it did."""
    trains = seen.backward or seen.update or (seen.graded and seen.training) or not seen.forward
    return Stage.TRAIN if trains else Stage.VALIDATION


def batch_size(batch: Any) -> int | None:
    """Samples in a batch: the first dimension of its first tensor, through tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((size for size in map(batch_size, batch[:8]) if size is not None), None)
    data = getattr(batch, "data", None)  # transformers' BatchEncoding keeps its tensors there
    return batch_size(data) if isinstance(data, Mapping) else None
