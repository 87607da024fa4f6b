"""Mixed: synchronous inside a group of ranks, asynchronous between groups, through parameter servers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from laptime.errors import ConfigError
from laptime.training.strategies import strategy
from laptime.training.strategies.asynchronous import Asynchronous, check_precision
from laptime.training.strategies.contract import divides
from laptime.training.strategies.data import AveragedGradients

if TYPE_CHECKING:
    from laptime.recorder.recorder import Recorder
    from laptime.training.config import Config


@strategy("mixed")
class Mixed(Asynchronous):
    """Ranks of a group average their gradients; the first of them exchanges the mean with the servers."""

    @classmethod
    def check(cls, config: Config, ranks: int) -> None:
        check_precision(config)
        if config.parallel.groups is None:
            raise ConfigError("parallel.strategy = 'mixed' needs parallel.groups, such as 2")
        divides(ranks, config.parallel.groups, "parallel.groups")

    def connect(self, network: nn.Module, *, losses: int) -> None:
        super().connect(network, losses=losses)
        self._averaged = None
        if self.ranks.several:
            self._averaged = AveragedGradients(network, self.device, losses=losses)
            self.network = self._averaged.network

    def accumulating(self) -> AbstractContextManager[Any]:
        return self._averaged.network.no_sync() if self._averaged else nullcontext()

    def attach(self, recorder: Recorder, config: Config, *, updates: int, updates_per_epoch: int) -> None:
        super().attach(recorder, config, updates=updates, updates_per_epoch=updates_per_epoch)
        self._spread()

    def _exchange(self, gradients: list[torch.Tensor]) -> None:
        if self.ranks.rank == 0:
            super()._exchange(gradients)
        self._spread()

    def _wait_for_others(self) -> None:
        if self.ranks.rank == 0:
            super()._wait_for_others()
        self._spread()

    def _spread(self) -> None:
        """Give the group what its first rank got: the parameters, and whether the training has ended."""
        if not self.ranks.several:
            return
        with torch.no_grad():
            parts = [parameter.detach().reshape(-1) for parameter in self._trained]
            flat = torch.cat([*parts, torch.tensor([float(self.ended)], device=self.device)])
            dist.broadcast(flat, 0)
            self.ended = bool(flat[-1])
            for parameter, part in zip(
                self._trained, flat[:-1].split([p.numel() for p in parts]), strict=True
            ):
                parameter.copy_(part.view_as(parameter))
