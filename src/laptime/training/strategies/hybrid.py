"""Hybrid: pipelines of stages side by side, each on its own samples; equal stages average their gradients."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import nn
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from laptime.errors import ConfigError
from laptime.training.strategies import strategy
from laptime.training.strategies.contract import DataShare, divides
from laptime.training.strategies.data import AveragedGradients
from laptime.training.strategies.model import ModelParallel, check_pipeline

if TYPE_CHECKING:
    from laptime.training.config import Config


@strategy("hybrid")
class Hybrid(ModelParallel):
    """Stages between neighbouring groups of ranks and data parallel within them, or the other way round."""

    @classmethod
    def check(cls, config: Config, ranks: int) -> None:
        stages = config.parallel.stages
        if stages is None:
            raise ConfigError("parallel.strategy = 'hybrid' needs parallel.stages, such as 2")
        divides(ranks, stages, "parallel.stages")
        check_pipeline(config)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stages = self.plan.stages or 1
        pipelines = self.ranks.ranks // self._stages
        if self.plan.outer == "model":
            mesh = init_device_mesh(
                self.device.type, (self._stages, pipelines), mesh_dim_names=("model", "data")
            )
        else:
            mesh = init_device_mesh(
                self.device.type, (pipelines, self._stages), mesh_dim_names=("data", "model")
            )
        self._model, self._data = mesh["model"], mesh["data"]
        for each in (self._model, self._data):  # a mesh gives its groups torch's default
            _set_pg_timeout(timedelta(seconds=self.plan.timeout), each.get_group())

    @property
    def share(self) -> DataShare:
        return DataShare(part=self._data.get_local_rank(), parts=self._data.size())

    @property
    def stage(self) -> int:
        return self._model.get_local_rank()

    @property
    def stages(self) -> int:
        return self._stages

    @property
    def pipeline(self) -> ProcessGroup | None:
        return self._model.get_group()

    def connect(self, network: nn.Module, *, losses: int) -> None:
        self._averaged = AveragedGradients(network, self.device, losses=losses, group=self._data.get_group())
        super().connect(network, losses=losses)

    def _called(self, network: nn.Module) -> nn.Module:
        return self._averaged.network
