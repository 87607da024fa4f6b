"""One step of a network on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from laptime.errors import WorkloadError
from laptime.workload.operation import Operation, Phase
from laptime.workload.trace import choices
from laptime.workload.trace.reader import Alive, Reader, tensors_in
from laptime.workload.workload import Memory, Optimizer, Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = {
    "sgd": Optimizer(name="sgd", state_values=0, passes=3, temporaries=0),
    "momentum": Optimizer(name="momentum", state_values=1, passes=8, temporaries=0),
    "rmsprop": Optimizer(name="rmsprop", state_values=1, passes=13, temporaries=1),
    "adagrad": Optimizer(name="adagrad", state_values=1, passes=10, temporaries=1),
    "adadelta": Optimizer(name="adadelta", state_values=2, passes=20, temporaries=2),
    "adam": Optimizer(name="adam", state_values=2, passes=16, temporaries=1),
    "adamw": Optimizer(name="adamw", state_values=2, passes=18, temporaries=1),
}
"""By torch's multi-tensor implementations, which are the default on CUDA: each of their operations reads and
writes every tensor; fused ones pass fewer times."""

Loss = Callable[[nn.Module, Any], Tensor]


class Unit(Protocol):
    """A module that may be a layer."""

    module: nn.Module
    name: str
    is_layer: bool

    @property
    def layer(self) -> int: ...


class Division(Protocol):
    """A network divided into layers, as `measure.division` does it."""

    @property
    def units(self) -> Sequence[Any]: ...
    def call(self, unit: Any) -> None: ...
    def resolve(self) -> None: ...
    def layers(self) -> Sequence[Any]: ...
    def parameters_by_layer(self, claimed: set[int]) -> dict[int, list[Tensor]]: ...


def cross_entropy(network: nn.Module, batch: Any) -> Tensor:
    """The loss of made-up labels under the first output; a loss that the network gives itself is taken."""
    output = network(**batch) if isinstance(batch, dict) else network(*batch)
    given = getattr(output, "loss", None)
    if isinstance(given, Tensor):
        return given
    scores = getattr(output, "logits", None)
    if scores is None and isinstance(output, dict):
        scores = next(iter(output.values()))
    if scores is None:
        scores = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(scores, Tensor):
        scores = next(one for one in vars(scores).values() if isinstance(one, Tensor))
    flat = scores.flatten(0, -2) if scores.dim() > 1 else scores[None]
    return F.cross_entropy(flat, torch.zeros(len(flat), dtype=torch.long, device=flat.device))


def trace(
    network: nn.Module,
    batch: Any,
    *,
    division: Division,
    loss: Loss = cross_entropy,
    precision: str = "fp32",
    mode: str = "training",
    optimizer: str = "momentum",
    name: str = "",
) -> Workload:
    """What one step asks of a machine. `batch` holds tensors of the right shape on any device, meta too."""
    if mode not in ("training", "inference"):
        raise WorkloadError(f"mode is training or inference, not {mode!r}")
    if precision not in ("fp32", *DTYPES):
        raise WorkloadError(f"precision is fp32, bf16 or fp16, not {precision!r}")
    updated = OPTIMIZERS.get(optimizer)
    if updated is None:
        raise WorkloadError(f"no optimizer is called {optimizer!r}; one of {', '.join(OPTIMIZERS)}")
    entries: list[Any] = []
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    alive = Alive()
    reader = Reader(alive)
    was_training = network.training
    network.train(mode == "training")
    try:
        with _without_memory(network, fake) as kept, fake:
            given = _fakes(batch)
            alive.disregard([*kept, *tensors_in(given)])
            with choices.of_cuda(), reader, _watched(division, reader, entries):
                activations = _step(network, given, loss, precision, mode, alive)
            gradients = sum(_size(one.grad) for one in network.parameters() if one.grad is not None)
    except DataDependentOutputException as error:
        raise WorkloadError(_data_dependent(error.func)) from error
    except (NotImplementedError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise WorkloadError(_untraceable(error, reader)) from error
    finally:
        network.train(was_training)
    division.resolve()
    operations = _owned(reader.found, entries, division)
    trainable = [one for one in network.parameters() if one.requires_grad]
    count = sum(one.numel() for one in network.parameters())
    state = 0
    if mode == "training":
        operations += _update(division, updated, network)
        state = sum(one.numel() for one in trainable) * updated.state_values * 4
    static = sum(_size(one) for one in network.parameters())
    buffers = sum(_size(one) for one in network.buffers())
    inputs = sum(_size(one) for one in tensors_in(batch))
    temporaries = sum(_size(one) for one in trainable) * updated.temporaries if mode == "training" else 0
    leading = next(iter(tensors_in(batch)), None)
    samples = int(leading.shape[0]) if leading is not None and leading.dim() else 1
    return Workload(
        network=name or type(network).__name__,
        batch=samples,
        precision=precision,
        mode=mode,
        parameters=count,
        tensors=len(trainable),
        sample_bytes=inputs // max(1, samples),
        layers=tuple(unit.name for unit in division.layers()),
        operations=tuple(operations),
        notes=tuple(sorted(reader.assumed)),
        memory=Memory(
            parameters=static,
            gradients=gradients,
            buffers=buffers,
            state=state,
            inputs=inputs,
            activations=activations,
            peak=static + buffers + state + inputs + max(alive.peak, gradients + temporaries),
        ),
    )


def _step(network: nn.Module, given: Any, loss: Loss, precision: str, mode: str, alive: Alive) -> int:
    """Forward, and backward if it trains; the bytes that were alive in between."""
    low = DTYPES.get(precision)
    cast = torch.autocast("cpu", dtype=low) if low is not None else nullcontext()
    if mode == "inference":
        with torch.no_grad(), cast:
            network(**given) if isinstance(given, dict) else network(*given)
        return alive.now
    with cast:
        value = loss(network, given)
    held = alive.now
    value.backward()
    alive.settle()
    return held


@contextmanager
def _without_memory(network: nn.Module, fake: FakeTensorMode) -> Iterator[list[Tensor]]:
    """The network's parameters and buffers exchanged for fakes of theirs; everything is put back."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[int, Tensor] = {}
    with fake:
        for module in network.modules():
            stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for store in stores:
                for key, value in store.items():
                    if value is None:
                        continue
                    if id(value) not in made:
                        made[id(value)] = _fake(value)
                    kept.append((store, key, value))
                    store[key] = made[id(value)]
    try:
        yield list(made.values())
    finally:
        for store, key, value in kept:
            store[key] = value


def _fake(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and type, on a CPU that it takes no memory of. Within the fake mode."""
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _fakes(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return _fake(batch)
    if isinstance(batch, list | tuple):
        return type(batch)(map(_fakes, batch))
    if isinstance(batch, dict):
        return {key: _fakes(value) for key, value in batch.items()}
    return batch


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextmanager
def _watched(division: Division, reader: Reader, entries: list[Any]) -> Iterator[None]:
    """Every module tells when it is entered, and the network when it is done."""
    units = {id(unit.module): unit for unit in division.units}
    root = division.units[0].module
    number = torch._C._autograd._get_sequence_nr

    def enter(module: nn.Module, inputs: Any) -> None:
        unit = units.get(id(module))
        if unit is None:
            return
        if module is root:
            reader.phase = Phase.FORWARD
        division.call(unit)
        entries.append(unit)
        reader.enter(number())

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if module is root:
            reader.leave_network(number())

    with ExitStack() as hooks:
        for handle in (register_module_forward_pre_hook(enter), register_module_forward_hook(leave)):
            hooks.callback(handle.remove)
        yield


def _owned(found: list[tuple[Operation, int]], entries: list[Any], division: Division) -> list[Operation]:
    """Operations with the names of their layers: that of the last layer entered before them."""
    names: list[str] = []
    by_index = {unit.layer: unit.name for unit in division.layers()}
    current = ""
    for unit in entries:
        if unit.is_layer:
            current = by_index.get(unit.layer, unit.name)
        names.append(current)
    first = next((name for name in names if name), "")
    return [
        replace(one, layer=(names[owner] or first) if owner >= 0 and names else "") for one, owner in found
    ]


def _update(division: Division, optimizer: Optimizer, network: nn.Module) -> list[Operation]:
    """One operation for each layer's parameters; torch goes through all of them at once."""
    names = {unit.layer: unit.name for unit in division.layers()}
    found = []
    for index, parameters in division.parameters_by_layer(set()).items():
        trained = [one for one in parameters if one.requires_grad]
        if not trained:
            continue
        count = sum(one.numel() for one in trained)
        size = sum(map(_size, trained))
        found.append(
            Operation(
                name=f"optimizer.{optimizer.name}",
                kind="optimizer",
                phase=Phase.UPDATE,
                layer=names.get(index, ""),
                dtype="float32",
                sizes={"params": count, "tensors": len(trained), "passes": optimizer.passes},
                read=size * optimizer.passes * 5 // 8,
                written=size * optimizer.passes * 3 // 8,
                launches=0,
            )
        )
    return found


def _data_dependent(operation: Any) -> str:
    return (
        f"the network looks at values ({operation}), which tensors without memory do not have; take the "
        "decision out of forward(), or measure it with laptime profile"
    )


def _untraceable(error: Exception, reader: Reader) -> str:
    last = reader.found[-1][0].name if reader.found else "nothing"
    said = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"the network cannot be read ({said[0]}; the last operation was {last}); "
        "measure it with laptime profile"
    )
