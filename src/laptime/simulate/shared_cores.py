"""Workers that compute on the same processors, as ranks of a test bed do: each gets an even share of them."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from laptime.errors import PlanError

_ROUNDING_S = 1e-9  # of work that is left when a worker is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker computes."""

    seconds: float  # of a whole core, for each rank
    most: float = 1.0  # share of a core that a rank can use
    ranks: int = 1  # that compute at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCores:
    """Processors that have fewer cores than ranks compute at times."""

    count: int
    turns: float = 1.0  # times as long as alone, where ranks take turns on a core

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1 or not 1 <= self.turns < math.inf:
            raise PlanError(f"{self.count!r} cores, turns {self.turns!r}; give 1 or more of both")

    def rates(self, jobs: Sequence[Job]) -> list[float]:
        """What each gets of a core: an even share, of which it leaves to the others what it cannot use."""
        rates = [0.0] * len(jobs)
        room, ranks = float(self.count), sum(job.ranks for job in jobs)
        turns = self.turns if ranks > self.count else 1.0
        for place in sorted(range(len(jobs)), key=lambda place: jobs[place].most):
            job = jobs[place]
            rate = min(job.most, 1.0, room / ranks)
            rates[place] = rate / turns
            room, ranks = room - rate * job.ranks, ranks - job.ranks
        return rates

    def ends(self, jobs: Sequence[Job]) -> list[float]:
        """When each is ready, if all begin at 0."""
        env = simpy.Environment()
        cores, ends = CoresAtWork(env, self), [0.0] * len(jobs)

        def work(place: int, job: Job) -> Generator[simpy.Event, Any, None]:
            yield cores.compute(job)
            ends[place] = env.now

        for place, job in enumerate(jobs):
            env.process(work(place, job))
        env.run()
        return ends


class CoresAtWork:
    """Shared cores on a virtual clock: shares change whenever somebody begins or is ready."""

    def __init__(self, env: simpy.Environment, cores: SharedCores) -> None:
        self._env, self._cores = env, cores
        self._left: dict[simpy.Event, tuple[Job, float]] = {}  # seconds of a whole core
        self._rates: list[float] = []
        self._since_s = 0.0
        self._plan = 0  # a look at the clock that was planned before the last change is ignored

    def compute(self, job: Job) -> simpy.Event:
        """An event at the end of the work."""
        self._advance()
        ready = self._env.event()
        self._left[ready] = job, job.seconds
        self._plan_ahead()
        return ready

    def _advance(self) -> None:
        passed_s, self._since_s = self._env.now - self._since_s, self._env.now
        for (ready, (job, left)), rate in zip(list(self._left.items()), self._rates, strict=True):
            self._left[ready] = job, left - rate * passed_s

    def _plan_ahead(self) -> None:
        self._plan += 1
        self._rates = self._cores.rates([job for job, _ in self._left.values()])
        if self._left:
            lefts = (left for _, left in self._left.values())
            next_s = min(left / rate for left, rate in zip(lefts, self._rates, strict=True))
            look = self._env.timeout(max(0.0, next_s), value=self._plan)
            assert look.callbacks is not None
            look.callbacks.append(self._look)

    def _look(self, look: simpy.Event) -> None:
        if look.value != self._plan:
            return
        self._advance()
        least = min(left for _, left in self._left.values())
        over = [ready for ready, (_, left) in self._left.items() if left <= max(least, _ROUNDING_S)]
        for ready in over:
            del self._left[ready]
            ready.succeed()
        self._plan_ahead()
