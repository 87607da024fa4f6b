"""Asynchronous data parallel: workers and parameter servers; a worker waits for no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laptime.errors import ConfigError, TrainingError
from laptime.files.text import first_line
from laptime.training.launch.groups import server_name
from laptime.training.launch.ray_cluster import ray_module
from laptime.training.parameter_server import Answer, ServerPlan, shares, updates_in_round
from laptime.training.strategies import strategy
from laptime.training.strategies.contract import DataShare, Strategy

if TYPE_CHECKING:
    from laptime.recorder.recorder import Recorder
    from laptime.training.config import Config

RETRY_S = 0.5  # until a server that died is asked again
FLOAT_BYTES = 4  # all travels as float32
LOOK_S = 0.1  # between two looks at who still trains


@strategy("asynchronous")
class Asynchronous(Strategy):
    """A worker sends its gradient to the servers and goes on with the parameters that they answer with."""

    resumes_exactly: ClassVar[bool] = False
    served: ClassVar[bool] = True

    @classmethod
    def check(cls, config: Config, ranks: int) -> None:
        check_precision(config)
        if config.parallel.groups not in (None, ranks):
            raise ConfigError(
                f"parallel.groups = {config.parallel.groups} makes groups of several ranks, which strategy "
                "'asynchronous' does not have; leave it out, or use 'mixed'"
            )

    @property
    def share(self) -> DataShare:
        return DataShare(part=self.ranks.number, parts=self.ranks.all)

    @property
    def validation_share(self) -> DataShare | None:
        """The first group judges all of it: the others are at other parameters, and do not wait."""
        return None if self.ranks.group else DataShare(part=self.ranks.rank, parts=self.ranks.ranks)

    def connect(self, network: nn.Module, *, losses: int) -> None:
        if losses > 1:
            raise ConfigError("parameter servers train networks with one loss; use strategy 'data'")
        self.network = network
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._shares = shares([parameter.numel() for parameter in self._trained], self.plan.servers)
        self._versions = [0] * len(self._shares)
        self._stored: Mapping[str, Any] | None = None  # an optimizer's state that servers begin with
        self._servers: list[Any] = []
        self._left = False
        size = sum(parameter.numel() for parameter in self._trained)
        self._bytes = 2 * size * FLOAT_BYTES  # of an exchange: gradients there, parameters back

    # -- with the servers ------------------------------------------------------------------------------------

    def attach(self, recorder: Recorder, config: Config, *, updates: int, updates_per_epoch: int) -> None:
        self._recorder = recorder
        if self.ranks.rank:
            return
        ray = ray_module()
        groups = self.ranks.groups
        each = updates_in_round(groups, self.plan.staleness)
        self._plans = [
            ServerPlan(
                optimizer=config.optimizer.model_dump(mode="json"),
                schedule=config.schedule.model_dump(mode="json"),
                groups=groups,
                updates=updates * each,
                updates_per_epoch=updates_per_epoch * each,
                staleness=self.plan.staleness,
                shapes=tuple(tuple(self._trained[place].shape) for place in places),
                state=self._stored_part(places),
            )
            for places in self._shares
        ]
        names = [server_name(recorder.out, number) for number in range(len(self._shares))]
        self._servers = list(map(ray.get_actor, names))
        self._take([self._join(number) for number in range(len(self._servers))])

    def _join(self, number: int) -> Answer:
        """Begin, or begin again, with the parameters that a server has."""
        parameters = self._flat(self._shares[number], self._trained)
        join = self._servers[number].join
        answer: Answer = self._ask(join, self.ranks.group, self._plans[number], parameters)
        return answer

    def update(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        """The servers update; `step` is not used."""
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._trained
        ]
        with self._recorder.account("communication"):
            self._exchange(gradients)
        self._recorder.updated_elsewhere()

    def _exchange(self, gradients: list[Tensor]) -> None:
        with self._recorder.exchange("parameter_server", self._bytes):
            self._exchange_with_servers(gradients)

    def _exchange_with_servers(self, gradients: list[Tensor]) -> None:
        flats = [self._flat(places, gradients) for places in self._shares]
        asked = [
            server.exchange.remote(self.ranks.group, version, flat)
            for server, version, flat in zip(self._servers, self._versions, flats, strict=True)
        ]
        answers = [self._answered(answer, number) for number, answer in enumerate(asked)]
        self._take(answers)
        self._recorder.log(staleness=max(answer.staleness for answer in answers))

    def _ask(self, method: Any, *arguments: Any) -> Any:
        """Call a server; one that has died is asked again until it is back."""
        ray = ray_module()
        until = time.monotonic() + self.plan.timeout
        while True:
            try:
                return ray.get(method.remote(*arguments), timeout=max(0.0, until - time.monotonic()))
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
                if time.monotonic() > until:
                    raise self._no_answer(error) from error
                time.sleep(RETRY_S)

    def _no_answer(self, error: Exception) -> TrainingError:
        bounded = ", or waited for a worker that stands still" if self.plan.staleness is not None else ""
        return TrainingError(
            f"a parameter server did not answer within {self.plan.timeout:g} s{bounded} "
            f"({first_line(error)}); --resume goes on from the last checkpoint"
        )

    def _answered(self, asked: Any, number: int) -> Answer:
        """A server's answer. If it has died, that gradient is lost, and training goes on without."""
        ray = ray_module()
        answer: Answer | None = None
        try:
            answer = ray.get(asked, timeout=self.plan.timeout)
        except ray.exceptions.RayActorError:
            pass
        except ray.exceptions.GetTimeoutError as error:
            raise self._no_answer(error) from error
        if answer is None:
            answer = self._join(number)
            start = "its last snapshot" if answer.restored else "a worker's parameters"
            self._recorder.note(f"a parameter server died and began again from {start}")
        return answer

    def _take(self, answers: list[Answer]) -> None:
        for number, (places, answer) in enumerate(zip(self._shares, answers, strict=True)):
            self._versions[number] = answer.version
            self.ended = self.ended or answer.stop
            sizes = [self._trained[place].numel() for place in places]
            parts = torch.from_numpy(np.array(answer.parameters)).split(sizes)
            with torch.no_grad():
                for place, part in zip(places, parts, strict=True):
                    self._trained[place].copy_(part.view_as(self._trained[place]))

    def _flat(self, places: list[int], tensors: Sequence[Tensor]) -> Any:
        """A server's tensors, one after the other, as they travel."""
        return torch.cat([tensors[place].detach().reshape(-1).float().cpu() for place in places]).numpy()

    def end(self) -> None:
        """Leave the others. Rank 0 waits until all have left, and takes what they have learned."""
        if self._left:
            return
        self._left = True
        with self._recorder.account("communication"):
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        for server in self._servers:
            self._ask(server.leave, self.ranks.group)
        if self.ranks.number:
            return
        while (workers := self._ask(self._servers[0].workers)) != []:
            if workers is None:  # it has died meanwhile: its snapshot tells who still trains
                self._join(0)
                self._ask(self._servers[0].leave, self.ranks.group)
            time.sleep(LOOK_S)
        newest = [self._ask(server.newest) for server in self._servers]
        if all(newest):
            self._take(newest)

    def leave(self) -> None:
        if self._left or not self._servers:
            return
        self._left = True
        with suppress(Exception):  # the cluster may be gone
            for server in self._servers:
                server.leave.remote(self.ranks.group)

    def reach_target(self) -> None:
        for server in self._servers:
            self._ask(server.end)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def optimizer_state(self, optimizer: Optimizer) -> Mapping[str, Any]:
        if not self._servers:
            return optimizer.state_dict()
        parts = list(map(self._server_state, range(len(self._servers))))
        state = {
            place: part["optimizer"]["state"][at]
            for places, part in zip(self._shares, parts, strict=True)
            for at, place in enumerate(places)
            if at in part["optimizer"]["state"]
        }
        group = {**parts[0]["optimizer"]["param_groups"][0], "params": list(range(len(self._trained)))}
        return {"state": dict(sorted(state.items())), "param_groups": [group]}

    def _server_state(self, number: int) -> dict[str, Any]:
        state: dict[str, Any] | None = self._ask(self._servers[number].state)
        if state is None:  # it has died meanwhile
            self._join(number)
            state = self._ask(self._servers[number].state)
        return state or {}

    def load_optimizer(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        super().load_optimizer(optimizer, state)
        self._stored = state

    def _stored_part(self, places: list[int]) -> dict[str, Any] | None:
        """What a server is to begin with of a stored optimizer."""
        if self._stored is None:
            return None
        known = self._stored["state"]
        group = {**self._stored["param_groups"][0], "params": list(range(len(places)))}
        parts = {at: known[place] for at, place in enumerate(places) if place in known}
        return {"state": parts, "param_groups": [group]}


def check_precision(config: Config) -> None:
    """Raise where gradients have a scale that servers do not know."""
    if config.train.precision == "fp16":
        raise ConfigError("train.precision = 'fp16' does not go together with parameter servers; use 'bf16'")
