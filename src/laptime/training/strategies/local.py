"""Local training: groups train by themselves for some steps, then average their parameters.

`mean` is local SGD (arXiv:1805.09767). `diloco` (arXiv:2311.08105) takes the distance to the average as the
gradient of an outer optimizer, SGD with Nesterov momentum, which moves the parameters that all share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.optim import SGD, Optimizer

from laptime.training.strategies import strategy
from laptime.training.strategies.contract import Strategy, divides
from laptime.training.strategies.data import AveragedGradients

if TYPE_CHECKING:
    from laptime.training.config import Config


@strategy("local")
class Local(Strategy):
    """Each group of ranks trains alone, its ranks in step; groups meet every `average_every` updates."""

    @classmethod
    def check(cls, config: Config, ranks: int) -> None:
        divides(ranks, config.parallel.groups or ranks, "parallel.groups")

    def connect(self, network: nn.Module, *, losses: int) -> None:
        groups = self.plan.groups or self.ranks.ranks
        size = self.ranks.ranks // groups
        mine: Any = None
        wait = timedelta(seconds=self.plan.timeout)  # torch's default is not that of the group of all ranks
        self._across: Any = None
        # Every rank makes every group, as torch asks for.
        for number in range(groups):
            group = dist.new_group(range(number * size, (number + 1) * size), timeout=wait)
            mine = group if self.ranks.rank // size == number else mine
        for place in range(size):
            group = dist.new_group(range(place, self.ranks.ranks, size), timeout=wait)
            self._across = group if self.ranks.rank % size == place else self._across
        self._inner = AveragedGradients(network, self.device, losses=losses, group=mine) if size > 1 else None
        self.network = self._inner.network if self._inner else network
        self._whole = network
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        for tensor in (*self._trained, *network.buffers()):
            dist.broadcast(tensor.detach(), 0)
        self._updates = 0
        self._shared = [parameter.detach().clone() for parameter in self._trained]  # as of the last meeting
        self._outer = SGD(
            self._shared,
            lr=self.plan.outer_lr,
            momentum=self.plan.outer_momentum,
            nesterov=self.plan.outer_momentum > 0,
        )

    def accumulating(self) -> AbstractContextManager[Any]:
        return self._inner.network.no_sync() if self._inner else nullcontext()

    def update(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        step()
        self._updates += 1
        if self._updates % self.plan.average_every == 0:
            self._meet()

    def _meet(self) -> None:
        """Average the parameters of all groups, or let the outer optimizer move towards the average."""
        average_parameters(iter(self._trained), self._across)
        if self.plan.average == "mean":
            return
        with torch.no_grad():
            for shared, parameter in zip(self._shared, self._trained, strict=True):
                shared.grad = shared - parameter
            self._outer.step()
            for shared, parameter in zip(self._shared, self._trained, strict=True):
                parameter.copy_(shared)

    # -- the average of the groups is validated and saved ----------------------------------------------------

    resumes_exactly = False

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Each group goes on with its own parameters afterwards."""
        state = self._whole.state_dict()
        own = {name: value.clone() for name, value in state.items()}
        self._average(state.values())
        try:
            yield
        finally:
            for name, value in state.items():
                value.copy_(own[name])

    def network_state(self, network: nn.Module) -> Mapping[str, Any]:
        state = {name: value.detach().clone() for name, value in network.state_dict().items()}
        self._average(state.values())
        return state

    def _average(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if tensor.is_floating_point():
                dist.all_reduce(tensor)
                tensor.div_(self.ranks.ranks)

    def load_network(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        super().load_network(network, state)
        for shared, parameter in zip(self._shared, self._trained, strict=True):
            shared.copy_(parameter.detach())
