"""The networks under observation, and what all of them together have in layers and in bytes to update."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from laptime.model import Layer
from laptime.recorder.layer_division import Division


@dataclass(slots=True, eq=False)
class WatchedNetwork:
    """A network under observation."""

    name: str
    division: Division
    undo: list[Callable[[], None]] = field(default_factory=list)
    discovery: list[Callable[[], None]] = field(default_factory=list)  # while its layers are being found
    forwards: int = 0
    trained: bool = False  # a discovering pass was in training mode
    searches: int = 0

    @property
    def root(self) -> nn.Module:
        """The network itself."""
        return self.division.root


def layers_of(networks: Iterable[WatchedNetwork]) -> dict[int, Layer]:
    """The layers of all networks by unit index, in the order of their first calls."""
    layers: dict[int, Layer] = {}
    claimed: set[int] = set()
    for network in networks:
        if network.division.resolved:
            layers |= network.division.describe(claimed)
    return layers


def updated_bytes(networks: Iterable[WatchedNetwork], optimizers: Iterable[Optimizer]) -> dict[int, float]:
    """Bytes that optimizers update, by layer."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    mine = {id(p) for group in groups for p in group["params"] if p.requires_grad}
    bytes_by_layer: dict[int, float] = {}
    claimed: set[int] = set()
    for network in networks:
        if network.division.resolved:
            for owner, parameters in network.division.parameters_by_layer(claimed).items():
                size = sum(p.numel() * p.element_size() for p in parameters if id(p) in mine)
                if size:
                    bytes_by_layer[owner] = bytes_by_layer.get(owner, 0.0) + size
    return bytes_by_layer
