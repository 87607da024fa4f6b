"""The order in which gradients reach parameters, on a virtual clock.

`play` is training with parameter servers, where workers do not wait for each other or only so far;
`synchronous` and `local` are the other two schedules. All give `ExchangeOrder`, from which
`training/virtual_clock.py` computes real gradients. A worker is a rank, or a synchronous group of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import simpy
from numpy.typing import NDArray

from laptime.errors import PlanError
from laptime.simulate.shared_cores import CoresAtWork, Job, SharedCores

Kind = Literal["served", "synchronous", "local"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_DRAWN = 4096  # step times of a worker that are drawn at once


# -- what is given -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPace:
    """How long a worker takes for one gradient, log-normally distributed around its mean."""

    step_s: float
    slowdown: float = 1.0  # times as long
    spread: float = 0.0  # standard deviation over the mean
    near: bool = False  # on the host of the server: no link between them
    link: int | None = None  # workers with the same number share it; None: each has its own
    ranks: int = 1  # that compute a gradient together, each on a core
    call_s: float = 0.0  # of one core, for each exchange with a server, beside the link

    def __post_init__(self) -> None:
        for name, least in (("step_s", 0.0), ("slowdown", 0.0), ("spread", -math.inf)):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= least or self.spread < 0:
                raise PlanError(
                    f"a worker's {name} is {value!r}; give step_s and slowdown above 0, spread from 0"
                )

    @property
    def mean_s(self) -> float:
        """Of a gradient."""
        return self.step_s * self.slowdown

    def job(self, seconds: float) -> Job:
        """So many seconds of shared cores; a slow worker takes no more than a part of one."""
        return Job(seconds=seconds, most=1 / self.slowdown, ranks=self.ranks)

    def times(self, steps: int, generator: np.random.Generator) -> Iterator[float]:
        """So many gradients, each with the seconds it takes."""
        sigma = math.sqrt(math.log1p(self.spread**2))
        for first in range(0, steps, _DRAWN):
            count = min(_DRAWN, steps - first)
            if not self.spread:
                yield from [self.mean_s] * count
                continue
            yield from (self.mean_s * generator.lognormal(-(sigma**2) / 2, sigma, count)).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLink:
    """What an exchange of all gradients and parameters occupies, if one server carried it.

    Each of `servers` carries an equal share, all at the same time. A server's link takes pushes one after
    the other, and pulls one after the other, both at once.
    """

    push_s: float  # gradients to the server, on its link
    pull_s: float  # parameters back, on its link
    apply_s: float  # the update, on its processor
    servers: int = 1
    worker_push_s: float = 0.0  # a push takes this at least: on the worker's link, which carries all shares
    worker_pull_s: float = 0.0
    meeting: float = 1.0  # times as long, where gradients meet on a server's link: TCP then loses packets

    def __post_init__(self) -> None:
        if type(self.servers) is not int or self.servers < 1:
            raise PlanError(f"servers is {self.servers!r}; give a whole number from 1 up")
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise PlanError(f"{field.name} of a server is {value!r}; give seconds from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPause:
    """Validations: of all workers, who wait for the slowest; with servers, of worker 0 alone."""

    every: int  # updates of a worker between two of them
    seconds: float

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1 or not 0 <= self.seconds < math.inf:
            raise PlanError(
                f"validation every {self.every!r} updates for {self.seconds!r} s; give 1 and 0 or more"
            )


# -- what comes of it ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One gradient: when it was applied, whose it is, and which parameters it was computed with.

    Versions count updates of the shared parameters; with `local`, of the worker's own. Gradients that were
    averaged for one update have the same version.
    """

    at_s: float
    worker: int
    step: int  # gradients that this worker had applied before
    read_version: int
    version: int  # after the update
    answered_s: float  # when the worker has parameters to go on with

    @property
    def staleness(self) -> int:
        """Updates that others made between this worker's reading and its update."""
        return self.version - 1 - self.read_version


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTime:
    """Where a worker's time went."""

    computing_s: float
    waiting_s: float  # for links, servers and other workers
    validating_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeOrder:
    """All updates of a training in the order in which they were applied, column by column."""

    kind: Kind
    workers: tuple[WorkerTime, ...]
    at_s: Floats
    worker: Integers
    step: Integers
    read_version: Integers
    version: Integers
    answered_s: Floats
    average_every: int | None = None  # updates of a worker between two averages, of `local`
    validation: ValidationPause | None = None

    def __len__(self) -> int:
        return len(self.at_s)

    def __iter__(self) -> Iterator[Update]:
        """Each gradient, in order."""
        names = ("at_s", "worker", "step", "read_version", "version", "answered_s")
        for row in zip(*(getattr(self, name).tolist() for name in names), strict=True):
            yield Update(**dict(zip(names, row, strict=True)))

    @property
    def seconds(self) -> float:
        """Until the last worker has its last parameters."""
        return float(self.answered_s.max())

    @property
    def updates(self) -> int:
        """Of the shared parameters; with `local`, of each worker's own."""
        return int(self.version.max())

    @property
    def seconds_per_update(self) -> float:
        """The mean time between two updates."""
        return float(self.at_s.max()) / self.updates

    @property
    def staleness(self) -> Integers:
        """Of each gradient: updates of others between reading and update."""
        difference: Integers = self.version - 1 - self.read_version
        return difference

    @property
    def mean_staleness(self) -> float:
        """Over all gradients."""
        return float(self.staleness.mean())

    def staleness_percentile(self, percent: float) -> float:
        """The staleness that so many percent of the gradients do not exceed."""
        return float(np.percentile(self.staleness, percent, method="inverted_cdf"))


# -- parameter servers ---------------------------------------------------------------------------------------


def play(
    workers: Sequence[WorkerPace],
    link: ServerLink,
    *,
    updates: int,
    staleness: int | None,
    seed: int,
    validation: ValidationPause | None = None,
    cores: SharedCores | None = None,
) -> ExchangeOrder:
    """Training with parameter servers, `updates` gradients from each worker.

    A worker computes, pushes, waits for the update and for the parameters, and begins again: nothing of it
    overlaps. With a bound on `staleness` the server answers a worker that is further ahead of the slowest
    only when that one has caught up. With 0 it applies the mean of all workers' gradients once. Workers have
    cores of their own, unless they share `cores`.
    """
    _check(workers, updates)
    if staleness is not None and staleness < 0:
        raise PlanError(f"staleness is {staleness}; give 0 or more, or None for no bound")
    env = simpy.Environment()
    shared = None if cores is None else CoresAtWork(env, cores)
    # On shared cores a server computes, too; the mean of a round it applies once, whatever the cores.
    updating = None
    if shared is not None and staleness != 0:
        updating = _Updating(shared, simpy.Resource(env), Job(seconds=link.apply_s / link.servers))
        link = replace(link, apply_s=0.0)
    server = _Server(env, link, paces=workers, staleness=staleness)
    working = []
    for number, (pace, generator) in enumerate(zip(workers, _generators(workers, seed), strict=True)):
        times = pace.times(updates, generator)
        pause = validation if number == 0 else None
        work = (
            _work(env, server, number, pace, times, pause)
            if shared is None
            else _work_on(shared, updating, env, server, number, pace, times, pause)
        )
        working.append(env.process(work))
    env.run()
    return ExchangeOrder(
        kind="served",
        workers=tuple(cast(WorkerTime, process.value) for process in working),
        validation=validation,
        **server.columns(),
    )


class _Server:
    """One of the servers; the others do the same at the same time.

    Links and processor serve in the order of arrival, so the moment at which each is free again tells all:
    an exchange takes a single event of the clock, and a wait for slower workers one more.
    """

    def __init__(
        self, env: simpy.Environment, link: ServerLink, *, paces: Sequence[WorkerPace], staleness: int | None
    ) -> None:
        workers = len(paces)
        self._env, self._link, self._all, self._bound = env, link, workers, staleness
        self._push_s, self._pull_s = link.push_s / link.servers, link.pull_s / link.servers
        self._apply_s = link.apply_s / link.servers
        self._near = [pace.near for pace in paces]
        own = [workers + number if pace.link is None else pace.link for number, pace in enumerate(paces)]
        self._links = own  # of each worker, and when each of them is free
        self._sending_free_s, self._getting_free_s = (dict.fromkeys(own, 0.0) for _ in range(2))
        # Over one link gradients arrive in the order in which they are sent; past it, others come sooner.
        self.in_order = len(set(self._near)) == 1
        self._up_free_s = self._down_free_s = self._processor_free_s = 0.0
        self._version = 0
        self._done = [0] * workers  # updates of each worker
        self._least, self._at_least = 0, workers  # updates of the slowest, and workers that have no more
        self._held: list[tuple[int, simpy.Event]] = []  # rows whose workers wait for their answers
        self._arrived_s = 0.0  # the last gradient of a round
        self._at: list[float] = []
        self._worker: list[int] = []
        self._step: list[int] = []
        self._read: list[int] = []
        self._made: list[int] = []
        self._answered: list[float] = []

    def waits(self, worker: int) -> float:
        """Seconds until the worker's own link is free for its gradient, which takes it then."""
        if self._near[worker] or not self._link.worker_push_s:
            return 0.0
        now_s, link = self._env.now, self._links[worker]
        begin_s = max(now_s, self._sending_free_s[link])
        self._sending_free_s[link] = begin_s + self._link.worker_push_s
        return begin_s - now_s

    def push(self, worker: int) -> float:
        """Send a gradient now: when it arrives."""
        now_s = self._env.now
        if self._near[worker]:
            return now_s
        meets = self._link.meeting if self._up_free_s > now_s else 1.0
        self._up_free_s = max(now_s, self._up_free_s) + self._push_s * meets
        return max(self._up_free_s, now_s + self._link.worker_push_s)

    def exchange(self, worker: int, read: int, arrived_s: float) -> tuple[float, int] | simpy.Event:
        """Apply a gradient. When its answer is there and which version that has, or an event of both.

        Called in the order in which gradients arrive, but not necessarily when they do.
        """
        row = len(self._at)
        self._worker.append(worker)
        self._step.append(self._done[worker])
        self._read.append(read)
        self._answered.append(math.nan)
        self._done[worker] += 1
        if self._bound == 0:
            return self._in_round(row, arrived_s)
        at_s = self._apply(arrived_s)
        self._at.append(at_s)
        self._made.append(self._version)
        if self._bound is None:
            return self._answer(row, at_s)
        waits = self._done[worker] - self._least > self._bound
        if self._done[worker] - 1 == self._least:
            self._at_least -= 1
        if waits:
            return self._hold(row)
        answer = self._answer(row, at_s)
        if self._at_least == 0:  # the last of the slowest: who waited goes on
            self._least += 1
            self._at_least = self._done.count(self._least)
            self._release(at_s)
        return answer

    def _in_round(self, row: int, arrived_s: float) -> tuple[float, int] | simpy.Event:
        self._at.append(math.nan)
        self._made.append(self._version + 1)
        self._arrived_s = max(self._arrived_s, arrived_s)
        if len(self._held) + 1 < self._all:
            return self._hold(row)
        at_s = self._apply(self._arrived_s)
        for each in (row, *(held for held, _ in self._held)):
            self._at[each] = at_s
        answer = self._answer(row, at_s)
        self._release(at_s)
        return answer

    def _hold(self, row: int) -> simpy.Event:
        event = self._env.event()
        self._held.append((row, event))
        return event

    def _release(self, at_s: float) -> None:
        """Answer all who wait: each of them is as far ahead as it may be."""
        held, self._held = self._held, []
        # The last to come first: at the server's `asyncio.Condition` all wait anew after each update.
        for row, event in reversed(held):
            event.succeed(self._answer(row, at_s))

    def _apply(self, arrived_s: float) -> float:
        self._processor_free_s = max(arrived_s, self._processor_free_s) + self._apply_s
        self._version += 1
        return self._processor_free_s

    def _answer(self, row: int, at_s: float) -> tuple[float, int]:
        if self._near[self._worker[row]]:
            self._answered[row] = at_s
            return at_s, self._version
        link = self._links[self._worker[row]]
        begin_s = max(at_s, self._getting_free_s[link])
        self._getting_free_s[link] = begin_s + self._link.worker_pull_s
        self._down_free_s = max(at_s, self._down_free_s) + self._pull_s
        answered_s = max(self._down_free_s, self._getting_free_s[link])
        self._answered[row] = answered_s
        return answered_s, self._version

    def columns(self) -> dict[str, Any]:
        """What became of all gradients."""
        return {
            "at_s": np.array(self._at, dtype=np.float64),
            "worker": np.array(self._worker, dtype=np.int64),
            "step": np.array(self._step, dtype=np.int64),
            "read_version": np.array(self._read, dtype=np.int64),
            "version": np.array(self._made, dtype=np.int64),
            "answered_s": np.array(self._answered, dtype=np.float64),
        }


def _work(
    env: simpy.Environment,
    server: _Server,
    number: int,
    pace: WorkerPace,
    times: Iterator[float],
    pause: ValidationPause | None,
) -> Generator[simpy.Event, Any, WorkerTime]:
    """A worker from its first gradient to its last, on a core of its own."""
    version, ready_s, computing_s, validating_s = 0, 0.0, 0.0, 0.0
    for done, compute_s in enumerate(times, start=1):
        computing_s += compute_s + pace.call_s
        yield env.timeout(max(0.0, ready_s + compute_s + pace.call_s - env.now))
        busy_s = server.waits(number)
        if busy_s:
            yield env.timeout(busy_s)
        arrives_s = server.push(number)
        if not server.in_order:
            yield env.timeout(arrives_s - env.now)
        answer = server.exchange(number, version, arrives_s)
        ready_s, version = (yield answer) if isinstance(answer, simpy.Event) else answer
        if pause is not None and done % pause.every == 0:
            ready_s += pause.seconds
            validating_s += pause.seconds
    return WorkerTime(
        computing_s=computing_s, waiting_s=ready_s - computing_s - validating_s, validating_s=validating_s
    )


class _Updating(NamedTuple):
    """A server's updates on shared cores, one after the other."""

    cores: CoresAtWork
    turn: simpy.Resource
    job: Job

    def update(self) -> Generator[simpy.Event, Any, None]:
        """One of them."""
        with self.turn.request() as turn:
            yield turn
            yield self.cores.compute(self.job)


def _work_on(
    cores: CoresAtWork,
    updating: _Updating | None,
    env: simpy.Environment,
    server: _Server,
    number: int,
    pace: WorkerPace,
    times: Iterator[float],
    pause: ValidationPause | None,
) -> Generator[simpy.Event, Any, WorkerTime]:
    """The same on cores that others compute on, too."""
    version, ready_s, computing_s, validating_s = 0, 0.0, 0.0, 0.0
    call = Job(seconds=pace.call_s)  # in other processes than the worker's, which a slow one does not slow
    for done, compute_s in enumerate(times, start=1):
        yield env.timeout(max(0.0, ready_s - env.now))
        begun_s = env.now
        yield cores.compute(pace.job(compute_s / pace.slowdown))
        if pace.call_s:
            yield cores.compute(call)
        computing_s += env.now - begun_s
        busy_s = server.waits(number)
        if busy_s:
            yield env.timeout(busy_s)
        arrives_s = server.push(number)
        yield env.timeout(arrives_s - env.now)
        if updating is not None:
            yield from updating.update()
        answer = server.exchange(number, version, env.now)
        ready_s, version = (yield answer) if isinstance(answer, simpy.Event) else answer
        if pause is not None and done % pause.every == 0:
            yield env.timeout(max(0.0, ready_s - env.now))
            begun_s = env.now
            yield cores.compute(pace.job(pause.seconds))
            ready_s = env.now
            validating_s += ready_s - begun_s
    return WorkerTime(
        computing_s=computing_s, waiting_s=ready_s - computing_s - validating_s, validating_s=validating_s
    )


# -- workers that wait for each other ------------------------------------------------------------------------


def synchronous(
    workers: Sequence[WorkerPace],
    *,
    exchange_s: float,
    updates: int,
    seed: int,
    validation: ValidationPause | None = None,
    cores: SharedCores | None = None,
) -> ExchangeOrder:
    """One update a step from the mean gradient, at the slowest worker's end and `exchange_s` later.

    `exchange_s` is what the exchange adds to the step: its exposed part.
    """
    _check(workers, updates)
    times = _drawn(workers, updates, seed)  # (workers, updates)
    if cores is not None:
        times = np.stack([_ends(workers, step, cores) for step in _core_seconds(workers, times).T], axis=1)
    lengths = times.max(axis=0) + exchange_s
    pauses = _pauses(workers, updates, validation, cores)
    before = np.concatenate([[0.0], pauses[:-1].cumsum()])
    at_s = np.repeat(lengths.cumsum() + before, len(workers))
    steps = np.repeat(np.arange(updates), len(workers))
    waiting = lengths.sum() - times.sum(axis=1)
    return ExchangeOrder(
        kind="synchronous",
        workers=_worker_times(times, waiting, float(pauses.sum())),
        at_s=at_s,
        worker=np.tile(np.arange(len(workers)), updates),
        step=steps,
        read_version=steps,
        version=steps + 1,
        answered_s=at_s,
        validation=validation,
    )


def local(
    workers: Sequence[WorkerPace],
    *,
    exchange_s: float,
    updates: int,
    average_every: int,
    seed: int,
    validation: ValidationPause | None = None,
    cores: SharedCores | None = None,
) -> ExchangeOrder:
    """Workers update their own parameters, and average them every `average_every` updates.

    Workers wait for the slowest at an average, which takes `exchange_s`, at a validation, and at the end.
    """
    _check(workers, updates)
    if average_every < 1:
        raise PlanError(f"average_every is {average_every}; give 1 or more")
    times = _drawn(workers, updates, seed)
    at_s, pauses = np.empty_like(times), _pauses(workers, updates, validation, cores)
    meetings = [*range(average_every, updates, average_every), updates]
    if validation is not None:
        meetings = sorted({*meetings, *range(validation.every, updates, validation.every)})
    begun_s, first = 0.0, 0
    for last in meetings:  # updates until all wait for each other
        parts = times[:, first:last]
        if cores is not None:  # their shares change meanwhile; each update gets its part of the whole
            ends = _ends(workers, _core_seconds(workers, parts).sum(axis=1), cores)
            parts *= (ends / parts.sum(axis=1))[:, None]
        at_s[:, first:last] = begun_s + parts.cumsum(axis=1)
        if last % average_every == 0:
            at_s[:, last - 1] = at_s[:, last - 1].max() + exchange_s
        begun_s, first = at_s[:, last - 1].max() + pauses[last - 1], last
    steps, numbers = np.meshgrid(np.arange(updates), np.arange(len(workers)))
    order = np.lexsort((numbers.ravel(), steps.ravel(), at_s.ravel()))
    waiting = begun_s - pauses.sum() - times.sum(axis=1)
    ordered_s, ordered_steps = at_s.ravel()[order], steps.ravel()[order]
    return ExchangeOrder(
        kind="local",
        workers=_worker_times(times, waiting, float(pauses.sum())),
        at_s=ordered_s,
        worker=numbers.ravel()[order],
        step=ordered_steps,
        read_version=ordered_steps,
        version=ordered_steps + 1,
        answered_s=ordered_s,
        average_every=average_every,
        validation=validation,
    )


def _core_seconds(workers: Sequence[WorkerPace], times: Floats) -> Floats:
    """What gradients take of a core, as fast as it goes."""
    seconds: Floats = times / np.array([[pace.slowdown] for pace in workers])
    return seconds


def _ends(workers: Sequence[WorkerPace], seconds: Floats, cores: SharedCores) -> Floats:
    """When each worker has had so many seconds of a core, if all begin at once."""
    jobs = [pace.job(each) for pace, each in zip(workers, seconds.tolist(), strict=True)]
    return np.array(cores.ends(jobs))


def _check(workers: Sequence[WorkerPace], updates: int) -> None:
    if not workers or updates < 1:
        raise PlanError(f"{len(workers)} workers with {updates} updates each; give 1 or more of both")


def _generators(workers: Sequence[WorkerPace], seed: int) -> list[np.random.Generator]:
    """One for each worker: its times do not depend on how many others there are."""
    return [np.random.default_rng([seed, number]) for number in range(len(workers))]


def _drawn(workers: Sequence[WorkerPace], updates: int, seed: int) -> Floats:
    """The same times that `play` takes with this seed: (workers, updates)."""
    generators = _generators(workers, seed)
    return np.array([list(p.times(updates, g)) for p, g in zip(workers, generators, strict=True)])


def _pauses(
    workers: Sequence[WorkerPace],
    updates: int,
    validation: ValidationPause | None,
    cores: SharedCores | None,
) -> Floats:
    """Seconds of validation after each step."""
    pauses = np.zeros(updates)
    if validation is not None:
        seconds = np.full(len(workers), validation.seconds)
        longest = seconds if cores is None else _ends(workers, seconds, cores)
        pauses[validation.every - 1 :: validation.every] = longest.max()
    return pauses


def _worker_times(times: Floats, waiting: Floats, validating_s: float) -> tuple[WorkerTime, ...]:
    return tuple(
        WorkerTime(computing_s=computing, waiting_s=max(0.0, waits), validating_s=validating_s)
        for computing, waits in zip(times.sum(axis=1).tolist(), waiting.tolist(), strict=True)
    )
