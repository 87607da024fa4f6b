"""Reads every operation of a step: its sizes, FLOPs and bytes, whose it is, and what memory is alive.

No network runs the update itself: that follows from what its optimizer reads and writes.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from laptime.model import LOSS_LAYER, OTHER_LAYER, Memory, Operation, Phase
from laptime.ops.optimizers import UpdateRule, update_operation
from laptime.ops.registry import kind_named, kind_of, kinds
from laptime.ops.sizes import tensors_in

_ROUNDING = 512  # bytes: CUDA's caching allocator hands out multiples of it
_ASSUMED = {torch.bool: False, torch.float32: 0.5, torch.bfloat16: 0.5, torch.float16: 0.5}
_VIEWS = """
detach alias _unsafe_view lift_fresh empty empty_like empty_strided new_empty new_empty_strided _reshape_alias
is_same_size _local_scalar_dense resize_ set_ sym_size sym_numel transpose_ t_ squeeze_ unsqueeze_ as_strided_
"""
NO_KERNEL = frozenset(_VIEWS.split())


def has_storage(tensor: Tensor) -> bool:
    """Whether a tensor lies in one piece of memory: not if it is sparse, or its shape is still unknown."""
    return tensor.layout is torch.strided and not isinstance(
        tensor, UninitializedBuffer | UninitializedParameter
    )


class Alive:
    """Bytes of live tensors, now and at the peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.known: set[int] = set()  # storages that are counted, or existed before the step

    def disregard(self, tensors: Iterable[Tensor]) -> None:
        """Exclude tensors that exist before the step: parameters, inputs."""
        for tensor in tensors:
            if has_storage(tensor):
                self.known.add(tensor.untyped_storage()._cdata)

    def see(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        if not has_storage(tensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        size = -(-storage.nbytes() // _ROUNDING) * _ROUNDING
        self.known.add(key)
        self.now += size
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size

    def settle(self) -> None:
        """Update the peak, after an operation's temporaries are freed."""
        self.peak = max(self.peak, self.now)


class Reader(TorchDispatchMode):
    """Records an `Operation` for every kernel, with the index of its layer's entry."""

    def __init__(self, alive: Alive) -> None:
        super().__init__()
        kinds()  # loads them before the step rather than in it
        self.alive = alive
        self.phase = Phase.FORWARD
        self.in_network = False  # else what runs forward is the loss
        self.units: list[Any] = []  # those of the network's division that were entered, one after the other
        self.found: list[tuple[Operation, int]] = []  # with its owner: an index into units, or -1
        self.held: int | None = None  # bytes alive when the backward pass began
        self._entries: list[int] = []  # the sequence number at which each layer was entered
        self._loss_from: int | None = None
        self.assumed: set[str] = set()  # assumed values of tensors that the network reads

    def enter(self, number: int) -> None:
        """A module was entered; nodes from this sequence number on are its."""
        self._entries.append(number)

    def leave_network(self, number: int) -> None:
        """The network's forward pass is over; nodes from here on are the loss's."""
        self.in_network, self._loss_from = False, number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype in _ASSUMED:
            # Usually a check or a logged number. Integers are left out: they are often sizes.
            told = _ASSUMED[args[0].dtype]
            self.assumed.add(f"a value that the network looked at was taken for {told}")
            return told
        out = func(*args, **(kwargs or {}))
        self._see(func, args, kwargs or {}, out)
        return out

    def _see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        node = torch._C._current_autograd_node()
        # Without this mode torch moves the gradient instead of copying it.
        accumulating = node is not None and "AccumulateGrad" in node.name()
        if not accumulating:
            self.alive.settle()
        for tensor in tensors_in(out):
            self.alive.see(tensor)
        name = func._schema.name.removeprefix("aten::").removeprefix("laptime::")
        # Of another library counts what gives or changes tensors; what no kind claims is listed as uncovered.
        computes = "::" not in name or func._schema.is_mutable or any(True for _ in tensors_in(out))
        if computes and not (accumulating or func.is_view or name in NO_KERNEL):
            self.alive.settle()
            name, given = self._named(name, func, args, kwargs)
            self._keep(name, func, given, out, node)

    def _named(self, name: str, func: Any, args: Any, kwargs: Any) -> tuple[str, Any]:
        """The operation's name and its arguments, as its kind knows them."""
        return name, (*args, *kwargs.values())

    def _keep(self, name: str, func: Any, args: tuple[Any, ...], out: Any, node: Any) -> None:
        kind = kind_of(name) or kind_named("other")
        phase, owner = self._place(node)
        sizes = kind.sizes(args, out)
        inputs, outputs = _unique(tensors_in(args)), _unique(tensors_in(out))
        operation = Operation(
            name=f"{func.namespace}.{name.rpartition('::')[2]}",
            kind=kind.name,
            phase=phase,
            layer=LOSS_LAYER,  # unless a layer owns it
            dtype=_dtype(inputs, outputs),
            sizes=sizes,
            flops=kind.flops(sizes),
            read=kind.read_bytes([*map(_bytes, inputs)], [*map(_bytes, outputs)]),
            written=sum(map(_bytes, outputs)) or sum(map(_bytes, inputs)),  # without a result: in place
            alive=self.alive.now,
            covered=kind.covered,
        )
        self.found.append((operation, owner))

    def _place(self, node: Any) -> tuple[Phase, int]:
        """Phase and owner of the current operation."""
        if node is None:
            return self.phase, len(self._entries) - 1 if self.in_network else -1
        number = node._sequence_nr()
        if self._loss_from is not None and number >= self._loss_from:
            return Phase.BACKWARD, -1
        return Phase.BACKWARD, max(0, bisect_right(self._entries, number) - 1) if self._entries else -1


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _bytes(tensor: Tensor) -> int:
    """Bytes in memory; expanded dimensions count once."""
    stored = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        stored *= size if stride else 1
    return stored * tensor.element_size()


def _dtype(inputs: list[Tensor], outputs: list[Tensor]) -> str:
    """The type that it computes in: outputs before inputs, matrices before vectors."""
    floating = [tensor for tensor in (*outputs, *inputs) if tensor.is_floating_point()]
    wide = [tensor for tensor in floating if tensor.dim() > 1] or floating
    chosen = wide[0] if wide else (outputs or inputs or [torch.empty(0)])[0]
    return str(chosen.dtype).removeprefix("torch.")


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


def step_memory(
    reader: Reader,
    networks: Iterable[nn.Module],
    trained: Iterable[tuple[UpdateRule, Sequence[Tensor]]],
    *,
    inputs: int,
    gradients: int | None = None,
) -> Memory:
    """Bytes of a step, by what each optimizer trains; `gradients` are as large as that if not counted."""
    networks = list(networks)
    parameters = _size(parameter for network in networks for parameter in network.parameters())
    buffers = _size(buffer for network in networks for buffer in network.buffers())
    state = temporaries = trained_bytes = 0
    for rule, tensors in trained:
        state += sum(tensor.numel() for tensor in tensors) * 4 * rule.state_values
        temporaries += _size(tensors) * rule.temporaries
        trained_bytes += _size(tensors)
    gradients = trained_bytes if gradients is None else gradients
    moving = max(reader.alive.peak, gradients + temporaries)
    return Memory(
        parameters=parameters,
        gradients=gradients,
        buffers=buffers,
        state=state,
        inputs=inputs,
        activations=reader.held or 0,
        peak=parameters + buffers + state + inputs + moving,
    )


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(map(size_of, _unique(tensors)))


def size_of(tensor: Tensor) -> int:
    """Bytes of all its elements."""
    return tensor.numel() * tensor.element_size()
