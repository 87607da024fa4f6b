"""Parameter servers: Ray actors that hold the parameters, apply the gradients of workers, and answer with the
parameters of the moment.

Each server has a share of the parameters and an optimizer for it. With no bound on staleness a gradient is
applied when it comes. With a bound, a worker that is too far ahead of the slowest waits for its answer. With
a bound of 0 the gradients of all workers are averaged and applied once, as synchronous training does.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from laptime.files.write import replacing
from laptime.training.launch.ray_cluster import ray_module
from laptime.training.optimizers import OptimizerConfig, ScheduleConfig, factor, optimizer

SNAPSHOT_S = 5.0

Flat = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What a server is to do, the same for all of them."""

    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    groups: int  # workers that begin together
    updates: int  # of all workers together, for the schedule
    updates_per_epoch: int
    staleness: int | None
    shapes: tuple[tuple[int, ...], ...]  # of this server's parameters
    state: dict[str, Any] | None = None  # of the optimizer, where a training is resumed


def updates_in_round(groups: int, staleness: int | None) -> int:
    """Updates while each group makes one gradient: one for each, or their mean in one."""
    return 1 if staleness == 0 else groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker gets for a gradient."""

    parameters: Flat
    version: int  # updates that they have seen
    staleness: int  # updates of others between this worker's reading and its update
    stop: bool  # the training has reached its target
    restored: bool = False  # the server has died, and found its last snapshot


class ParameterServer:
    """The state and rules of one server; Ray makes an actor of it.

    It learns its plan from the worker that joins first. One that has died starts empty, and goes on from its
    last snapshot with the next worker that joins again; on another machine, from the worker's parameters.
    """

    _plan: ServerPlan

    def __init__(self, snapshot: str) -> None:
        # Written now and then; a restarted server begins with it. On another machine, among temporary files.
        self._snapshot = Path(tempfile.gettempdir()) / snapshot
        self._restarted = ray_module().get_runtime_context().was_current_actor_reconstructed
        self._begun = self._restored = False
        self._version = 0
        self._clocks: dict[int, int] = {}  # updates of each worker that is there
        self._awaited: set[int] = set()  # workers that have not been there yet
        self._lost: set[int] = set()  # workers that are started again
        self._gone: set[int] = set()  # workers that have left for good
        self._round: dict[int, Flat] = {}  # gradients that wait for those of the other workers
        self._stop = self._over = False
        self._changed = asyncio.Condition()
        self._saved = time.monotonic()
        # The first optimizer of a process imports torch's compiler, 1.6 s: while the workers start.
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)

    def _begin(self, plan: ServerPlan, parameters: Flat) -> None:
        self._plan = plan
        self._flat = torch.zeros(sum(int(np.prod(shape)) for shape in plan.shapes))
        self._parameters = [nn.Parameter(view) for view in _views(self._flat, plan.shapes)]
        self._optimizer = optimizer(OptimizerConfig.model_validate(plan.optimizer), self._parameters)
        schedule = ScheduleConfig.model_validate(plan.schedule)
        factor_at = factor(schedule, updates=plan.updates, updates_per_epoch=plan.updates_per_epoch)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, factor_at)
        self._begun = True
        if plan.state is not None:
            self._optimizer.load_state_dict(plan.state)
        if self._restarted and self._snapshot.exists():
            self._restore(torch.load(self._snapshot, weights_only=True))
            return
        with torch.no_grad():
            self._flat.copy_(torch.from_numpy(np.array(parameters)))
        if not self._restarted:
            self._awaited = set(range(plan.groups)) - self._lost - self._gone
        self._save()

    async def join(self, worker: int, plan: ServerPlan, parameters: Flat) -> Answer:
        """A worker begins, or begins again: it gets the parameters of the moment, at first those of whoever
        comes first. All workers begin together."""
        async with self._changed:
            if not self._begun:
                self._begin(plan, parameters)
            # One that comes back is not behind the others: nobody waits for what it missed.
            self._clocks[worker] = min(self._clocks.values(), default=0)
            self._round.pop(worker, None)
            self._awaited.discard(worker)
            self._lost.discard(worker)
            self._save()  # it holds who is there
            self._changed.notify_all()
            await self._changed.wait_for(lambda: not self._awaited)
            return self._answer(0)

    async def leave(self, worker: int, *, returns: bool = False) -> None:
        """A worker has ended, or was lost and returns; nobody waits for it any more."""
        async with self._changed:
            self._clocks.pop(worker, None)
            self._round.pop(worker, None)
            self._awaited.discard(worker)
            self._lost.discard(worker)
            (self._lost if returns else self._gone).add(worker)
            self._apply_full_round()
            if self._begun:
                self._save()
            self._changed.notify_all()

    async def exchange(self, worker: int, version: int, gradient: Flat) -> Answer | None:
        """Apply a gradient that was computed with the parameters of a version; returns the newer ones.

        None: this server has died meanwhile, and wants to be joined again.
        """
        async with self._changed:
            if not self._begun:
                return None
            self._clocks.setdefault(worker, min(self._clocks.values(), default=0))
            if self._plan.staleness == 0:
                self._round[worker] = gradient
                before = self._version
                self._apply_full_round()
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self._version > before or worker not in self._round)
                return self._answer(0)
            staleness = self._version - version
            self._apply(gradient)
            self._clocks[worker] += 1
            self._changed.notify_all()
            if self._plan.staleness is not None:
                await self._changed.wait_for(lambda: self._ahead(worker) <= (self._plan.staleness or 0))
            return self._answer(staleness)

    def _ahead(self, worker: int) -> int:
        return self._clocks.get(worker, 0) - min(self._clocks.values(), default=0)

    def _apply_full_round(self) -> None:
        if self._round and self._round.keys() >= self._clocks.keys():
            mean: Flat = np.stack(list(self._round.values())).mean(axis=0, dtype=np.float32)
            self._round.clear()
            self._apply(mean)

    def _apply(self, gradient: Flat) -> None:
        views = _views(torch.from_numpy(np.array(gradient)), self._plan.shapes)
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.grad = view
        self._optimizer.step()
        self._schedule.step()
        self._version += 1
        if time.monotonic() - self._saved > SNAPSHOT_S:
            self._save()

    def _answer(self, staleness: int) -> Answer:
        return Answer(
            parameters=self._flat.numpy().copy(),
            version=self._version,
            staleness=staleness,
            stop=self._stop,
            restored=self._restored,
        )

    async def end(self) -> None:
        """Tell every worker with its next answer that the training has reached its target."""
        self._stop = True
        if self._begun:
            self._save()

    async def forget(self) -> None:
        """The training is over: remove the snapshot, and write no other."""
        self._over = True
        self._snapshot.unlink(missing_ok=True)
        with suppress(OSError):  # it has checkpoints
            self._snapshot.parent.rmdir()

    async def workers(self) -> list[int] | None:
        """Those that are there, and those that are expected; None where no worker has joined."""
        return sorted({*self._clocks, *self._awaited, *self._lost}) if self._begun else None

    async def newest(self) -> Answer | None:
        """The parameters of the moment; None where no worker has joined."""
        return self._answer(0) if self._begun else None

    async def state(self) -> dict[str, Any] | None:
        """Parameters, optimizer, schedule and version, for a checkpoint; None where no worker has joined."""
        return self._state() if self._begun else None

    def _state(self) -> dict[str, Any]:
        return {
            "parameters": self._flat.clone(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "version": self._version,
            "stop": self._stop,
            "clocks": dict(self._clocks),
            "lost": sorted(self._lost),
        }

    def _save(self) -> None:
        if self._over:
            return
        self._snapshot.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._snapshot) as file:
            torch.save(self._state(), file)
        self._saved = time.monotonic()

    def _restore(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self._flat.copy_(state["parameters"])
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self._schedule.load_state_dict(dict(state["schedule"]))
        self._version = int(state["version"])
        self._stop = bool(state["stop"])
        self._lost |= set(state["lost"]) - self._gone
        self._clocks = {
            worker: updates
            for worker, updates in state["clocks"].items()
            if worker not in self._lost | self._gone
        }
        self._restored = True


def _views(flat: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    sizes = [int(np.prod(shape)) for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


def shares(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Which parameters each server holds: the largest first, each to the server that has the least."""
    taken: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        server = loads.index(min(loads))
        taken[server].append(place)
        loads[server] += sizes[place]
    return [sorted(places) for places in taken if places]
