"""Model parallel: the network cut into stages that follow each other, on torch's pipeline schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.optim import Optimizer

from laptime.errors import ConfigError
from laptime.training.layer_costs import layer_costs
from laptime.training.objectives import Batch, Moment, Objective, StepLoss
from laptime.training.stages import cut_network
from laptime.training.strategies import strategy
from laptime.training.strategies.contract import DataShare, Strategy
from laptime.training.whole_tensors import global_norm, scale_down

if TYPE_CHECKING:
    from laptime.recorder.recorder import Recorder
    from laptime.training.config import Config

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


@strategy("model")
class ModelParallel(Strategy):
    """Each rank has a stage of the network; a batch goes through them in parts that overlap."""

    splits_layers = True

    @classmethod
    def check(cls, config: Config, ranks: int) -> None:
        plan = config.parallel
        if plan.stages not in (None, ranks):
            raise ConfigError(
                f"parallel.stages = {plan.stages} needs as many ranks, and there are {ranks}; use --workers "
                f"{plan.stages}, or strategy 'hybrid'"
            )
        check_pipeline(config)

    @property
    def share(self) -> DataShare:
        return DataShare(part=0, parts=1)

    # The place of this rank in its pipeline; `hybrid` has several pipelines.
    @property
    def stage(self) -> int:
        return self.ranks.rank

    @property
    def stages(self) -> int:
        return self.ranks.ranks

    @property
    def pipeline(self) -> ProcessGroup | None:
        """The ranks of this pipeline; None: all."""
        return None

    @property
    def last(self) -> bool:
        """Whether this rank has the network's output."""
        return self.stage == self.stages - 1

    @property
    def counts_samples(self) -> bool:
        return self.last  # which has the loss

    def place(self, network: nn.Module, objective: Objective, sample: Callable[[], Batch]) -> nn.Module:
        if type(objective).parts is not Objective.parts:
            raise ConfigError(
                f"{type(network).__name__} has several losses a step, and stages take one; use 'data'"
            )
        self._names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
        name = type(network).__name__
        costs = layer_costs(network, objective, sample(), self.device)
        cut = cut_network(network, self.stages, costs, name)
        # Hosts may know different costs of a layer; all take the cut of rank 0.
        return replace(cut, ends=self.ranks.gather(cut.ends)[0]).stage(self.stage)

    def attach(self, recorder: Recorder, config: Config, *, updates: int, updates_per_epoch: int) -> None:
        self._recorder = recorder

    def connect(self, network: nn.Module, *, losses: int) -> None:
        self.network = network
        self._stage_names = [
            name for name, parameter in network.named_parameters() if parameter.requires_grad
        ]
        self._parts: list[StepLoss] = []
        self._batch: Batch = ()
        self._objective: Objective | None = None
        self._training = self._schedule(self._called(network), self.plan.schedule, self.plan.micro_batches)
        self._validation: dict[torch.Size, Any] = {}

    def _called(self, network: nn.Module) -> nn.Module:
        """What a training step calls for this stage."""
        return network

    def _schedule(self, module: nn.Module, name: str, parts: int) -> Any:
        stage = _Stage(module, self.stage, self.stages, self.device, group=self.pipeline)
        stage.after_forward = partial(self._after_forward, parts)
        return SCHEDULES[name](stage, parts, loss_fn=self._loss)

    def _loss(self, output: Tensor, places: Tensor) -> Tensor:
        """The loss of a part of the batch, of the samples at these places."""
        assert self._objective is not None
        samples = tuple(part[places] for part in self._batch)
        part = self._objective.judge(_Known(output), samples)
        self._parts.append(part)
        return part.loss

    def losses(self, objective: Objective, batch: Batch, moment: Moment) -> Iterator[StepLoss | None]:
        """Forward and backward of all parts, as the schedule orders them."""
        yield self._run(self._training, objective, batch)

    def _run(
        self, schedule: Any, objective: Objective, batch: Batch, *, judge: bool = False
    ) -> StepLoss | None:
        self._objective, self._batch, self._parts = objective, batch, []
        places = torch.arange(len(batch[0]), device=self.device)
        arguments = (batch[0],) if self.stage == 0 else ()
        self._forwards = 0
        self._recorder.bubbles("fill")
        try:
            (schedule.eval if judge else schedule.step)(
                *arguments, target=places if self.last else None, losses=[] if self.last else None
            )
        finally:
            self._recorder.bubbles(None)
        if not self._parts:
            return None
        # The first call of a schedule tries a loss on made-up values, to learn the shapes.
        parts = self._parts[-schedule._n_microbatches :]
        scores = [part.scores for part in parts if part.scores is not None]
        targets = [part.targets for part in parts if part.targets is not None]
        return StepLoss(
            loss=torch.stack([part.loss.detach() for part in parts]).mean(),
            scores=torch.cat(scores) if scores else None,
            targets=torch.cat(targets) if targets else None,
        )

    def _after_forward(self, parts: int) -> None:
        """A part of the batch has gone through this stage: what it waits for next has another cause."""
        self._forwards += 1
        self._recorder.bubbles("drain" if self._forwards == parts else "imbalance")

    def backward(self, loss: Tensor) -> None:
        """The schedule has done it."""

    def judge(self, objective: Objective, network: nn.Module, batch: Batch) -> StepLoss | None:
        shape = batch[0].shape
        if shape not in self._validation:
            self._validation[shape] = self._schedule(network, "gpipe", 1)
        return self._run(self._validation[shape], objective, batch, judge=True)

    def clip(self, parameters: Iterable[nn.Parameter], norm: float) -> None:
        trained = list(parameters)
        square = global_norm(trained).pow(2).to(self.device)
        dist.all_reduce(square, group=self.pipeline)
        scale_down(trained, square.sqrt(), norm)

    # -- the whole network -----------------------------------------------------------------------------------

    def network_state(self, network: nn.Module) -> Mapping[str, Any]:
        return _merged(self._gather(network.state_dict()))

    def optimizer_state(self, optimizer: Optimizer) -> Mapping[str, Any]:
        """The state by a parameter's place in the whole network, as an optimizer of all of them has it."""
        mine = optimizer.state_dict()
        places = [self._names.index(name) for name in self._stage_names]
        state = _merged(self._gather({places[at]: values for at, values in mine["state"].items()}))
        groups = [{**mine["param_groups"][0], "params": list(range(len(self._names)))}]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_network(self, network: nn.Module, state: Mapping[str, Any]) -> None:
        network.load_state_dict({name: state[name] for name in network.state_dict()})

    def load_optimizer(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        places = [self._names.index(name) for name in self._stage_names]
        mine = {at: state["state"][place] for at, place in enumerate(places) if place in state["state"]}
        groups = [{**state["param_groups"][0], "params": list(range(len(places)))}]
        optimizer.load_state_dict({"state": mine, "param_groups": groups})

    def _gather(self, mine: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
        parts: list[Any] = [None] * self.stages
        dist.all_gather_object(parts, mine, group=self.pipeline)
        return parts


class _Stage(PipelineStage):
    """A stage that says when a part of a batch has gone through it."""

    after_forward: Callable[[], None]

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        output = super().forward_one_chunk(*arguments, **named)
        self.after_forward()
        return output


class _Known(nn.Module):
    """Stands for a network whose output is there already."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *inputs: Any) -> Tensor:
        return self._output


def _merged(parts: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {key: value for part in parts for key, value in part.items()}


def check_pipeline(config: Config) -> None:
    """Raise where a batch cannot go through stages in parts."""
    plan, batch = config.parallel, config.train.batch
    if batch % plan.micro_batches:
        raise ConfigError(
            f"parallel.micro_batches = {plan.micro_batches} does not divide train.batch = {batch}; change one"
        )
    if not config.loader.drop_last:
        raise ConfigError("stages take batches of one size; set loader.drop_last = true")
    if config.train.accumulate > 1:
        raise ConfigError(
            "train.accumulate does not go together with stages; raise parallel.micro_batches instead"
        )
    if config.train.precision == "fp16":
        raise ConfigError("train.precision = 'fp16' does not go together with stages; use 'bf16'")
    if config.train.compile:
        raise ConfigError("train.compile does not go together with stages; leave one out")
