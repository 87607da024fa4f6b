"""Real gradients on a virtual clock: many workers in one process, in the order that a simulation gives.

Network, data and optimizer are those of `laptime train`. `simulate.exchange_order` says when each gradient is
applied and which version of the parameters it was computed with; here it is computed and applied as the
strategy would. So the loss is known over time that nobody has to wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from laptime.errors import ConfigError, TrainingError
from laptime.recorder.backends import backend_of
from laptime.simulate.exchange_order import ExchangeOrder, Update
from laptime.training.build import Ready, ready
from laptime.training.config import Config
from laptime.training.data import Data
from laptime.training.device_setup import DeviceSetup
from laptime.training.loader import Batches, Order
from laptime.training.loop import DTYPES
from laptime.training.objectives import Batch, Moment, top_n
from laptime.training.optimizers import factor, optimizer
from laptime.training.parallel import ParallelConfig
from laptime.training.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A validation."""

    seconds: float  # virtual, of training and validation since the first step
    updates: int  # that the validated parameters have seen
    loss: float  # mean training loss since the validation before
    validation_loss: float
    top1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a training on the virtual clock learned, and when."""

    curve: tuple[CurvePoint, ...]
    losses: tuple[float, ...]  # of each gradient, in the order in which they were applied
    reached_s: float | None  # virtual seconds until `train.until` was reached; None: it was not
    seconds: float  # virtual, until the target or the end
    updates: int
    staleness: dict[int, int]  # gradients of each staleness
    diverged: bool = False  # a loss was no number, and ended it
    most_versions: int = 0  # of the parameters, kept at the same time beside the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long each rank of a training trains."""

    steps: int  # batches
    steps_per_epoch: int
    updates: int
    updates_per_epoch: int
    validate_every: int  # updates between two validations; 0: none

    @classmethod
    def of(cls, config: Config, order: Order) -> Length:
        """As `training.build.ready` counts it."""
        train, batches = config.train, order.batches
        whole = train.epochs * batches
        steps = min(whole, train.steps or whole)
        per_epoch = -(-batches // train.accumulate)
        epochs, rest = divmod(steps, batches)
        return cls(
            steps=steps,
            steps_per_epoch=batches,
            updates=epochs * per_epoch + -(-rest // train.accumulate),
            updates_per_epoch=per_epoch,
            validate_every=config.validation.every * per_epoch,
        )


def learn(
    config: Config,
    exchanges: ExchangeOrder,
    *,
    ranks_per_worker: int = 1,
    data: Data | None = None,
    watch: Callable[[Update, float], None] = lambda update, loss: None,
) -> Learned:
    """Train as configured with the workers of a schedule, each of them one rank or a group of several.

    `watch` is told each gradient with its loss.
    """
    training = VirtualTraining(
        config, workers=len(exchanges.workers), ranks_per_worker=ranks_per_worker, data=data
    )
    return training.learn(exchanges, watch=watch)


class VirtualTraining:
    """A configured training with virtual workers. Its `length` tells what to simulate before it can learn."""

    def __init__(
        self, config: Config, *, workers: int, ranks_per_worker: int = 1, data: Data | None = None
    ) -> None:
        if config.train.precision == "fp16":
            raise ConfigError("train.precision = 'fp16' has no virtual clock; use 'bf16' or 'fp32'")
        self.config = config
        self._workers, self._size = workers, ranks_per_worker
        single = config.model_copy(
            update={
                "parallel": ParallelConfig(),
                # In this process: each virtual rank would start its own loader workers.
                "loader": config.loader.model_copy(update={"workers": 0}),
            }
        )
        train = config.train
        setup = DeviceSetup.of(train.device, Ranks(), threads=train.threads, memory_limit=train.memory_limit)
        self._device = setup.device
        with self._kept_random_numbers():
            self._ready = ready(single, setup, data)
            self._random = _Random(self._device).state()
        if len(self._ready.optimizers) > 1:
            raise ConfigError(
                f"{config.network.name} has {len(self._ready.optimizers)} losses; "
                "the virtual clock trains networks with one"
            )
        self._orders = [self._order(rank) for rank in range(workers * ranks_per_worker)]
        self.length = Length.of(config, self._orders[0])
        if config.train.until.metric is not None and (
            self._ready.validation is None or not config.validation.every
        ):
            raise ConfigError(
                f"train.until.{config.train.until.metric} is looked for in validations, and there are none; "
                "hold data out for them, such as by data.validation_samples"
            )

    def _order(self, rank: int) -> Order:
        train, loader, ranks = self.config.train, self.config.loader, self._workers * self._size
        order = Order(
            self._ready.samples,
            batch=train.batch,
            rank=rank,
            ranks=ranks,
            seed=train.seed,
            shuffle=loader.shuffle,
            drop_last=loader.drop_last,
            epochs=train.epochs,
        )
        if not order.batches:
            raise ConfigError(
                f"{self._ready.samples} samples do not fill one batch of {train.batch} on each of {ranks} "
                "ranks; lower train.batch, or set loader.drop_last = false"
            )
        return order

    def _kept_random_numbers(self) -> AbstractContextManager[None]:
        devices = [self._device] if backend_of(self._device).accelerator else []
        return torch.random.fork_rng(devices=devices, device_type=self._device.type if devices else "cuda")

    def learn(
        self, exchanges: ExchangeOrder, *, watch: Callable[[Update, float], None] = lambda update, loss: None
    ) -> Learned:
        """From the initial parameters along a schedule; the same every time."""
        self._check(exchanges)
        with self._kept_random_numbers():
            return _Course(self, exchanges, watch).run()

    def _check(self, exchanges: ExchangeOrder) -> None:
        pause, every = exchanges.validation, self.length.validate_every
        if len(exchanges.workers) != self._workers:
            raise TrainingError(
                f"the schedule has {len(exchanges.workers)} workers, the training {self._workers}; "
                "simulate as many"
            )
        if int(exchanges.step.max()) >= self.length.updates:
            raise TrainingError(
                f"the schedule has {int(exchanges.step.max()) + 1} updates a worker, and the training "
                f"{self.length.updates}; simulate fewer, or raise train.epochs"
            )
        if pause is not None and pause.every != every:
            raise TrainingError(
                f"the schedule validates every {pause.every} updates, the training every {every}; "
                "simulate that"
            )


class _Random:
    """The random numbers of one virtual rank, as dropout draws them: all ranks begin with the same."""

    def __init__(self, device: torch.device) -> None:
        backend = backend_of(device)
        self._backend = backend if backend.accelerator else None

    def state(self) -> tuple[Tensor, Any]:
        return torch.get_rng_state(), self._backend.random_states() if self._backend else None

    def set(self, state: tuple[Tensor, Any]) -> None:
        torch.set_rng_state(state[0])
        if self._backend:
            self._backend.set_random_states(state[1])


class _Parameters:
    """Parameters with their optimizer: those of a server, or those of a worker of `local`."""

    def __init__(
        self, network: nn.Module, made: Ready, config: Config, *, updates: int, per_epoch: int
    ) -> None:
        trained = _trained(network)
        self.flat = torch.cat([each.detach().reshape(-1).float() for each in trained])
        sizes = [each.numel() for each in trained]
        views = [part.view(each.shape) for part, each in zip(self.flat.split(sizes), trained, strict=True)]
        self._parameters = [nn.Parameter(view) for view in views]
        share = made.objective.rate(next(iter(made.optimizers)))
        self._optimizer = optimizer(config.optimizer, self._parameters, share=share)
        at = factor(config.schedule, updates=updates, updates_per_epoch=max(1, per_epoch))
        self._schedule = LambdaLR(self._optimizer, at)
        self.version = 0

    def apply(self, gradients: Sequence[Tensor | None]) -> None:
        """An update."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._schedule.step()
        self.version += 1


class _Ranks:
    """Ranks that compute one gradient together, each from its own batches: the mean of theirs.

    Buffers, such as the statistics of batch norm, are the first rank's, as DDP has it.
    """

    def __init__(self, course: _Course, orders: Sequence[Order]) -> None:
        self._course = course
        self._steps = [course.batches(order) for order in orders]
        self._states = [course.random] * len(orders)
        self.buffers = [buffer.clone() for buffer in course.buffers]

    def gradient(self) -> tuple[list[Tensor | None], float]:
        """The gradient with the parameters that the network has, and the mean loss of its batches."""
        course, count = self._course, len(self._steps)
        for parameter in course.trained:
            parameter.grad = None
        losses: list[float] = []
        after = self.buffers
        for place, steps in enumerate(self._steps):
            _copy(self.buffers, course.buffers)
            course.generator.set(self._states[place])
            losses += [float(loss) for loss in course.accumulate(next(steps), count)]
            self._states[place] = course.generator.state()
            if place == 0:
                after = [buffer.clone() for buffer in course.buffers]
        self.buffers = after
        clip = course.config.train.clip
        if clip is not None:
            nn.utils.clip_grad_norm_(course.trained, clip)
        return [parameter.grad for parameter in course.trained], sum(losses) / len(losses)


class _Course:
    """One pass along a schedule."""

    def __init__(
        self, training: VirtualTraining, exchanges: ExchangeOrder, watch: Callable[[Update, float], None]
    ) -> None:
        self.config, self._ready, self._exchanges = training.config, training._ready, exchanges
        self._length, self._watch = training.length, watch
        self._device, self.random = training._device, training._random
        self.generator = _Random(self._device)
        # The network itself keeps its first parameters: a training can be repeated.
        self._network = self._ready.network
        self._initial = {name: value.clone() for name, value in self._network.state_dict().items()}
        self.trained, self.buffers = _trained(self._network), list(self._network.buffers())
        self._data: Any = self._ready.data.train
        if self.config.loader.resident and hasattr(self._data, "for_device"):
            self._data = self._data.for_device(self._device)  # once for all ranks
        whole = exchanges.kind == "synchronous"  # all ranks compute one gradient
        size = len(training._orders) if whole else training._size
        orders = [training._orders[at : at + size] for at in range(0, len(training._orders), size)]
        self._groups = [_Ranks(self, each) for each in orders]
        self._losses: list[float] = []
        self._since = 0  # losses before the last validation
        self._curve: list[CurvePoint] = []
        self._pause_s = exchanges.validation.seconds if exchanges.validation is not None else 0.0

    def run(self) -> Learned:
        kinds = {"served": self._served, "synchronous": self._synchronous, "local": self._local}
        try:
            self._network.train()
            return kinds[self._exchanges.kind]()
        finally:
            self._network.load_state_dict(self._initial)
            self._network.train()

    # -- gradients -------------------------------------------------------------------------------------------

    def batches(self, order: Order) -> Iterator[list[tuple[Batch, Moment]]]:
        """The batches of each update of a rank."""
        train, length = self.config.train, self._length
        loader = self.config.loader.model_copy(update={"workers": 0})
        batches = Batches(self._data, order, loader, self._device)
        step, taken = 0, []
        for epoch in range(train.epochs):
            moment = Moment(epoch=epoch, epochs=train.epochs)
            for index, batch in enumerate(batches.epoch(epoch), start=1):
                step += 1
                taken.append((batch, moment))
                if index % train.accumulate == 0 or index == length.steps_per_epoch or step == length.steps:
                    yield taken
                    taken = []

    def accumulate(self, batches: Iterable[tuple[Batch, Moment]], ranks: int) -> Iterator[Tensor]:
        """Add the gradients of an update's batches, as one of so many ranks; their losses."""
        share = ranks * self.config.train.accumulate
        for batch, moment in batches:
            with self._autocast():
                (part,) = self._ready.objective.parts(self._network, self._shaped(batch), moment)
            (part.loss / share if share > 1 else part.loss).backward()
            yield part.loss.detach()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES.get(self.config.train.precision)
        return torch.autocast(self._device.type, dtype=dtype) if dtype is not None else nullcontext()

    def _shaped(self, batch: Batch) -> Batch:
        first = batch[0]
        if self.config.train.channels_last and isinstance(first, Tensor) and first.dim() == 4:
            return (first.contiguous(memory_format=torch.channels_last), *batch[1:])
        return batch

    def _load(self, flat: Tensor) -> None:
        """Give the network these parameters."""
        sizes = [parameter.numel() for parameter in self.trained]
        with torch.no_grad():
            for parameter, part in zip(self.trained, flat.split(sizes), strict=True):
                parameter.copy_(part.view_as(parameter))

    def _parameters(self, workers: int = 1) -> _Parameters:
        """New ones that are to be updated as often as so many workers do."""
        updates, per_epoch = self._length.updates * workers, self._length.updates_per_epoch * workers
        return _Parameters(self._network, self._ready, self.config, updates=updates, per_epoch=per_epoch)

    def _note(self, update: Update, loss: float) -> bool:
        """Keep a gradient's loss; whether the training is to go on."""
        self._losses.append(loss)
        self._watch(update, loss)
        return isfinite(loss) or self.config.train.on_nan == "go-on"

    # -- schedules -------------------------------------------------------------------------------------------

    def _served(self) -> Learned:
        """Parameter servers; a version stays as long as a worker computes with it."""
        # Versions while each worker makes one gradient: as many as workers, or one that is their mean.
        in_round = round(self._exchanges.updates / (int(self._exchanges.step.max()) + 1))
        shared = self._parameters(in_round)
        reading = Counter(self._exchanges.read_version.tolist())  # gradients of each version yet to come
        old: dict[int, Tensor] = {}
        most = 0
        last_answer_s = 0.0  # of worker 0, who validates
        for version, updates in groupby(self._exchanges, key=lambda update: update.version):
            gradients: list[list[Tensor | None]] = []
            for update in updates:
                read = update.read_version
                self._load(old.get(read, shared.flat))
                reading[read] -= 1
                if not reading[read]:
                    old.pop(read, None)
                if update.worker == 0:
                    if self._is_due(update.step) and self._validate(
                        last_answer_s, read, self._groups[0].buffers
                    ):
                        return self._learned(most=most)
                    last_answer_s = update.answered_s
                gradient, loss = self._groups[update.worker].gradient()
                gradients.append(gradient)
                if not self._note(update, loss):
                    return self._learned(diverged_s=update.at_s, most=most)
            if reading[version - 1]:
                old[version - 1] = shared.flat.clone()
                most = max(most, len(old))
            shared.apply(self._served_mean(gradients))
        self._load(shared.flat)
        self._validate(self._exchanges.seconds, shared.version, self._groups[0].buffers)
        return self._learned(most=most)

    def _served_mean(self, gradients: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
        """As servers get them: in full precision, and zeros for parameters without a gradient."""
        sums = [torch.zeros_like(each, dtype=torch.float32) for each in self.trained]
        for gradient in gradients:
            for total, part in zip(sums, gradient, strict=True):
                if part is not None:
                    total.add_(part)
        return [total.div_(len(gradients)) if len(gradients) > 1 else total for total in sums]

    def _synchronous(self) -> Learned:
        """All ranks compute one gradient with the newest parameters."""
        shared, ranks = self._parameters(), self._groups[0]
        end_s = 0.0
        for _, updates in groupby(self._exchanges, key=lambda update: update.version):
            update = next(updates)
            self._load(shared.flat)
            if self._is_due(update.step) and self._validate(end_s, shared.version, ranks.buffers):
                return self._learned()
            end_s = update.at_s
            gradient, loss = ranks.gradient()
            if not self._note(update, loss):
                return self._learned(diverged_s=end_s)
            shared.apply(gradient)
        self._load(shared.flat)
        self._validate(end_s, shared.version, ranks.buffers)
        return self._learned()

    def _local(self) -> Learned:
        """Each worker updates parameters of its own; every so often they are averaged."""
        mine = [self._parameters() for _ in self._groups]
        meeting = _Meeting(self.config, mine)
        end_s, every = 0.0, self._exchanges.average_every or 1
        done = Counter[int]()  # workers that have taken each step
        for update in self._exchanges:
            first = done[update.step] == 0  # of the workers to take this step; with a validation, all wait
            if first and self._is_due(update.step) and self._validate_average(end_s, mine):
                return self._learned()
            parameters = mine[update.worker]
            self._load(parameters.flat)
            gradient, loss = self._groups[update.worker].gradient()
            end_s = max(end_s, update.at_s)
            if not self._note(update, loss):
                return self._learned(diverged_s=end_s)
            parameters.apply(gradient)
            done[update.step] += 1
            if (update.step + 1) % every == 0 and done[update.step] == len(mine):
                meeting.average()
        self._validate_average(end_s, mine)
        return self._learned()

    # -- validation ------------------------------------------------------------------------------------------

    def _is_due(self, done: int) -> bool:
        """Whether a worker validates after so many updates and before the next."""
        every = self._length.validate_every
        return done > 0 and every > 0 and done % every == 0

    def _validate_average(self, at_s: float, mine: Sequence[_Parameters]) -> bool:
        """Validate what a checkpoint of `local` would hold: the average of all workers, buffers included."""
        self._load(_mean([each.flat for each in mine]))
        columns = zip(*(group.buffers for group in self._groups), strict=True)
        buffers = [_mean(each) if each[0].is_floating_point() else each[0] for each in columns]
        return self._validate(at_s, mine[0].version, buffers)

    def _validate(self, at_s: float, version: int, buffers: Sequence[Tensor]) -> bool:
        """Validate the network's parameters; whether they reach the target."""
        batches = self._ready.validation
        if batches is None or not self.config.validation.every:
            return False
        _copy(buffers, self.buffers)
        self._network.eval()
        loss_sum = top1_sum = samples = 0.0
        with torch.no_grad():
            for batch in batches.epoch(0):
                with self._autocast():
                    part = self._ready.objective.judge(self._network, self._shaped(batch))
                size = len(batch[0])
                loss_sum, samples = loss_sum + float(part.loss) * size, samples + size
                if part.scores is not None and part.targets is not None:
                    top1_sum += float(top_n(part.scores, part.targets, self.config.validation.topn)[0]) * size
        self._network.train()
        recent, self._since = self._losses[self._since :], len(self._losses)
        point = CurvePoint(
            seconds=at_s + self._pause_s,
            updates=version,
            loss=float(np.mean(recent)) if recent else nan,
            validation_loss=loss_sum / samples,
            top1=top1_sum / samples,
        )
        self._curve.append(point)
        return self._reached(point)

    def _reached(self, point: CurvePoint) -> bool:
        return self.config.train.until.reached(loss=point.validation_loss, top1=point.top1)

    def _learned(self, *, diverged_s: float | None = None, most: int = 0) -> Learned:
        last = self._curve[-1] if self._curve else None
        reached = last is not None and diverged_s is None and self._reached(last)
        seconds = diverged_s if diverged_s is not None else self._exchanges.seconds
        if last is not None and diverged_s is None:
            seconds = last.seconds
        counted = self._exchanges.at_s <= seconds
        values, counts = np.unique(self._exchanges.staleness[counted], return_counts=True)
        return Learned(
            curve=tuple(self._curve),
            losses=tuple(self._losses),
            reached_s=seconds if reached else None,
            seconds=seconds,
            updates=int(self._exchanges.version[counted].max(initial=0)),
            staleness=dict(zip(values.tolist(), counts.tolist(), strict=True)),
            diverged=diverged_s is not None,
            most_versions=most,
        )


class _Meeting:
    """Where workers of `local` average their parameters, as `strategies/local.py` does."""

    def __init__(self, config: Config, mine: Sequence[_Parameters]) -> None:
        self._plan, self._mine = config.parallel, mine
        self._shared = mine[0].flat.clone()  # as of the last meeting
        momentum = self._plan.outer_momentum
        self._outer = SGD([self._shared], lr=self._plan.outer_lr, momentum=momentum, nesterov=momentum > 0)

    def average(self) -> None:
        """Take the average, or let the outer optimizer move towards it."""
        mean = _mean([each.flat for each in self._mine])
        if self._plan.average != "mean":
            self._shared.grad = self._shared - mean
            self._outer.step()
            mean = self._shared
        for each in self._mine:
            each.flat.copy_(mean)


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total.add_(tensor)
    return total.div_(len(tensors))
