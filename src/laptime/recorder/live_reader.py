"""A dispatch mode that reads the operations of a real step and changes nothing about them."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from laptime.capture.op_reader import Alive, Reader, has_storage, tensors_in
from laptime.model import LOSS_LAYER, Operation, Phase
from laptime.ops.registry import translated
from laptime.recorder.autograd_graph import sequence_number
from laptime.recorder.layer_division import LayerUnit

MOST = 100_000  # operations of a step; beyond, a loop in Python is being read, and reading would take seconds
MOST_S = 20.0  # for the same reason


class StepReader(Reader):
    """Reads a real step: its values are there, so nothing is assumed."""

    supports_higher_order_operators = True  # without it those of torch (`flex_attention`, `cond`) raise

    def __init__(self) -> None:
        super().__init__(_Storages())
        self._began = time.monotonic()
        self.alive: _Storages
        self.units: list[LayerUnit | None] = []  # entered one after the other; None: the network was left
        self.problem: str | None = None
        self.inputs = 0  # bytes that came from outside: the batch and its labels
        self.rows: int | None = None  # of the first tensor among these
        self.held: int | None = None  # bytes alive when the backward pass began

    def entered(self, unit: LayerUnit | None) -> None:
        """A module begins, or the forward pass is over."""
        self.units.append(unit)
        self.enter(sequence_number())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.problem is None:
            try:
                self._see(func, args, kwargs or {}, out)
            except Exception as error:  # an unforeseen kind of operation
                self.problem = f"{func} cannot be read ({type(error).__name__})"
        return out

    def _see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            raise NotImplementedError  # a higher-order operator: what it runs inside cannot be seen
        self._from_outside((*args, *kwargs.values()))
        super()._see(func, args, kwargs, out)

    def _named(self, name: str, func: Any, args: Any, kwargs: Any) -> tuple[str, Any]:
        if len(self.found) >= MOST or time.monotonic() - self._began > MOST_S:
            raise OverflowError("its first step is too long")
        return translated(name, func, args, kwargs)

    def _from_outside(self, given: Any) -> None:
        for tensor in tensors_in(given):
            if not self.alive.knows(tensor):
                if self.rows is None and tensor.dim():
                    self.rows = int(tensor.shape[0])
                self.inputs += tensor.numel() * tensor.element_size()
                self.alive.disregard([tensor])

    def _place(self, node: Any) -> tuple[Phase, int]:
        """The phase, and the place of its owner in `units`."""
        if node is None:
            return self.phase, len(self.units) - 1 if self.in_network else -1
        return Phase.BACKWARD, bisect_right(self._entries, node._sequence_nr()) - 1

    def operations(self) -> list[Operation]:
        """Each with the name of its layer: the last one entered before it, or the first of its pass."""
        names = list(_names(self.units))
        return [
            replace(operation, layer=names[place]) if place >= 0 else operation
            for operation, place in self.found
        ]


class _Storages(Alive):
    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor existed before the step or was made in it."""
        return not has_storage(tensor) or tensor.untyped_storage()._cdata in self._known


def _names(units: Sequence[LayerUnit | None]) -> Iterator[str]:
    """The owner's name after each entry; once the network was left, the loss."""
    current = LOSS_LAYER
    for place, unit in enumerate(units):
        if unit is None:
            current = LOSS_LAYER
        elif unit.is_layer:
            current = _layer(unit)
        elif current == LOSS_LAYER:
            layers = (_layer(later) for later in units[place:] if later is not None and later.is_layer)
            current = next(layers, LOSS_LAYER)
        yield current


def _layer(unit: LayerUnit) -> str:
    return unit.name if unit.leader is None else unit.leader.name
