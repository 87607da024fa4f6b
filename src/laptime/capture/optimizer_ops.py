"""The update of a step, which no network runs itself: what optimizers read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from laptime.model import OTHER_LAYER, Operation
from laptime.ops.optimizers import UpdateRule, update_operation


class DividedNetwork(Protocol):
    """A network divided into layers, as `recorder.layer_division` does it."""

    @property
    def units(self) -> Sequence[Any]: ...
    def call(self, unit: Any) -> None: ...
    def resolve(self) -> None: ...
    def layers(self) -> Sequence[Any]: ...
    def parameters_by_layer(self, claimed: set[int]) -> dict[int, list[Tensor]]: ...


def updates(network: DividedNetwork, rule: UpdateRule) -> list[Operation]:
    """One operation for each layer's parameters; torch goes through all of them at once."""
    names = {unit.layer: unit.name for unit in network.layers()}
    operations = []
    for index, parameters in network.parameters_by_layer(set()).items():
        trained = [tensor for tensor in parameters if tensor.requires_grad]
        if not trained:
            continue
        count, size = sum(tensor.numel() for tensor in trained), sum(map(size_of, trained))
        layer = names.get(index, OTHER_LAYER)
        operations.append(update_operation(rule, count, len(trained), size, layer=layer))
    return operations


def size_of(tensor: Tensor) -> int:
    """Bytes of all its elements."""
    return tensor.numel() * tensor.element_size()
