"""Data parallel with everything sharded: parameters, gradients and optimizer state, by torch's FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from laptime.training.objectives import Batch, Objective
from laptime.training.strategies import strategy
from laptime.training.whole_tensors import SplitTensors

UNIT_BYTES = 2**20  # gathered at once, at least: smaller messages cost more in latency than they hide


@strategy("sharded")
class Sharded(SplitTensors):
    """Each rank keeps a part of every parameter; whole ones are gathered for a layer's passes and let go."""

    def place(self, network: nn.Module, objective: Objective, sample: Callable[[], Batch]) -> nn.Module:
        mesh = init_device_mesh(self.device.type, (self.ranks.ranks,))
        for unit in sharding_units(network):
            fully_shard(unit, mesh=mesh)
        fully_shard(network, mesh=mesh)
        return network

    def accumulating(self) -> AbstractContextManager[Any]:
        return self._unsynchronised()

    @contextmanager
    def _unsynchronised(self) -> Iterator[None]:
        root = self.network
        assert isinstance(root, FSDPModule)
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)


def sharding_units(network: nn.Module) -> list[list[nn.Module]]:
    """Neighbouring layers, put together until they have enough bytes to be worth a message."""
    units: list[list[nn.Module]] = []
    waiting: list[nn.Module] = []
    waiting_bytes = 0
    for module in network.modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() > 1]
        if not own or module is network:
            continue
        waiting.append(module)
        waiting_bytes += sum(parameter.numel() * parameter.element_size() for parameter in own)
        if waiting_bytes >= UNIT_BYTES:
            units.append(waiting)
            waiting, waiting_bytes = [], 0
    return units
