"""The update of a step, which no network runs itself: what optimizers read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from laptime.model import OTHER_LAYER, Operation, Phase
from laptime.model.workload import Optimizer


class Division(Protocol):
    """A network divided into layers, as `measure.division` does it."""

    @property
    def units(self) -> Sequence[Any]: ...
    def call(self, unit: Any) -> None: ...
    def resolve(self) -> None: ...
    def layers(self) -> Sequence[Any]: ...
    def parameters_by_layer(self, claimed: set[int]) -> dict[int, list[Tensor]]: ...


def updates(division: Division, optimizer: Optimizer) -> list[Operation]:
    """One operation for each layer's parameters; torch goes through all of them at once."""
    names = {unit.layer: unit.name for unit in division.layers()}
    found = []
    for index, parameters in division.parameters_by_layer(set()).items():
        trained = [one for one in parameters if one.requires_grad]
        if not trained:
            continue
        count, size = sum(one.numel() for one in trained), sum(map(size_of, trained))
        found.append(update(optimizer, count, len(trained), size, layer=names.get(index, OTHER_LAYER)))
    return found


def update(
    optimizer: Optimizer, parameters: int, tensors: int, size: int, *, layer: str = OTHER_LAYER
) -> Operation:
    """One pass after another over parameters of `size` bytes; of eight, five read and three write."""
    return Operation(
        name=f"optimizer.{optimizer.name}",
        kind="optimizer",
        phase=Phase.UPDATE,
        layer=layer,
        dtype="float32",
        sizes={"params": parameters, "tensors": tensors, "passes": optimizer.passes},
        read=size * optimizer.passes * 5 // 8,
        written=size * optimizer.passes * 3 // 8,
    )


def size_of(tensor: Tensor) -> int:
    """Bytes of all its elements."""
    return tensor.numel() * tensor.element_size()
