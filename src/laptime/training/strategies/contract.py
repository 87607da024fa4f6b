"""What a strategy answers to the training loop; the defaults are those of a rank that trains by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from laptime.errors import ConfigError
from laptime.training.objectives import Batch, Moment, Objective, StepLoss
from laptime.training.parallel import ParallelConfig
from laptime.training.ranks import Ranks

if TYPE_CHECKING:
    from laptime.recorder.recorder import Recorder
    from laptime.training.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShare:
    """Which of so many equal parts of the data a rank reads."""

    part: int
    parts: int


class Strategy:
    """How one rank shares the work with the others.

    In the order of a training: `check` refuses a plan, `place` gives the part of the network that this rank
    trains, `connect` links it with the other ranks, then for each step `losses`, `backward`, `clip` and
    `update`. A checkpoint holds the whole network, whatever part of it a rank has.
    """

    resumes_exactly: ClassVar[bool] = True
    splits_layers: ClassVar[bool] = False  # ranks have different layers
    served: ClassVar[bool] = False  # parameter servers update; groups of ranks do not wait for each other
    ended = False  # by another group that reached the target
    network: nn.Module  # what a training step calls

    def __init__(self, plan: ParallelConfig, ranks: Ranks, device: torch.device) -> None:
        self.plan, self.ranks, self.device = plan, ranks, device

    # -- before the training -------------------------------------------------------------------------------

    @classmethod
    def check(cls, config: Config, ranks: int) -> None:
        """Raise a `ConfigError` where this many ranks cannot train so."""

    @property
    def share(self) -> DataShare:
        """The part of the data that this rank reads."""
        return DataShare(part=self.ranks.rank, parts=self.ranks.ranks)

    @property
    def counts_samples(self) -> bool:
        """Whether this rank's samples count in the throughput; of ranks that share samples, one does."""
        return True

    @property
    def validation_share(self) -> DataShare | None:
        """The part of the held-out data that this rank judges; None: only others do."""
        return self.share

    def place(self, network: nn.Module, objective: Objective, sample: Callable[[], Batch]) -> nn.Module:
        """The part of the network that this rank trains; `sample` gives a batch of one."""
        return network

    def connect(self, network: nn.Module, *, losses: int) -> None:
        """Link the placed network, compiled or not, with the other ranks."""
        self.network = network

    def attach(self, recorder: Recorder, config: Config, *, updates: int, updates_per_epoch: int) -> None:
        """The recording begins; a group of ranks is to make this many updates."""

    def reach_target(self) -> None:
        """Tell other groups that the training has reached its target."""

    def end(self) -> None:
        """The last step of this rank is done. May be called again."""

    def leave(self) -> None:
        """This rank ends, in whatever way: nobody is to wait for it."""

    # -- a step ----------------------------------------------------------------------------------------------

    def accumulating(self) -> AbstractContextManager[Any]:
        """Steps whose gradients stay on this rank, until one outside of it exchanges them."""
        return nullcontext()

    def losses(self, objective: Objective, batch: Batch, moment: Moment) -> Iterator[StepLoss | None]:
        """The losses of a step, forward only; None where another rank has the loss."""
        return objective.parts(self.network, batch, moment)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a loss."""
        loss.backward()

    def clip(self, parameters: Iterable[nn.Parameter], norm: float) -> None:
        """Scale the gradients of all ranks down to this norm."""
        nn.utils.clip_grad_norm_(parameters, norm)

    def update(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        """Update the parameters; `step` does so on this rank."""
        step()

    def validating(self) -> AbstractContextManager[Any]:
        """While this lasts, the network has the parameters that a checkpoint would hold."""
        return nullcontext()

    def judge(self, objective: Objective, network: nn.Module, batch: Batch) -> StepLoss | None:
        """The loss of a validation batch; None where another rank has it."""
        return objective.judge(network, batch)

    # -- the whole network -----------------------------------------------------------------------------------

    def network_state(self, network: nn.Module) -> Mapping[str, Any]:
        """Parameters and buffers of the whole network. All ranks must call it."""
        return network.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> Mapping[str, Any]:
        """The state of an optimizer of the whole network. All ranks must call it."""
        return optimizer.state_dict()

    def load_network(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        """Take this rank's part of a stored network."""
        network.load_state_dict(state)

    def load_optimizer(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Take this rank's part of a stored optimizer."""
        optimizer.load_state_dict(dict(state))


def divides(ranks: int, parts: int, key: str) -> None:
    """Raise where ranks cannot be divided into so many equal parts."""
    if ranks % parts:
        raise ConfigError(f"{key} = {parts} does not divide {ranks} ranks; change it, or --workers")
