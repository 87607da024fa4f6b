"""One step of a network on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from laptime.capture import cuda_choices
from laptime.capture.fake_tensors import fake_mode, fakes, unlogged, without_memory
from laptime.capture.op_reader import Alive, Reader, tensors_in
from laptime.capture.optimizer_ops import DividedNetwork, size_of, updates
from laptime.capture.refusals import check_batch, check_loss, refusal
from laptime.errors import WorkloadError
from laptime.model.operation import Operation
from laptime.model.workload import Memory, Workload
from laptime.ops.optimizers import OPTIMIZERS, UpdateRule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Loss = Callable[[nn.Module, Any], Tensor]


def cross_entropy(network: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the first output with dummy labels; the network's own loss if it returns one."""
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
        scores = next(value for value in vars(scores).values() if isinstance(value, Tensor))
    flat = scores.flatten(0, -2) if scores.dim() > 1 else scores[None]
    return F.cross_entropy(flat, torch.zeros(len(flat), dtype=torch.long, device=flat.device))


def trace(
    network: nn.Module,
    batch: Any,
    *,
    division: DividedNetwork,
    loss: Loss = cross_entropy,
    precision: str = "fp32",
    mode: str = "training",
    optimizer: str = "momentum",
    name: str = "",
) -> Workload:
    """What one step asks of a machine. `batch` holds tensors of the right shape on any device, meta too."""
    updated = _checked(precision, mode, optimizer)
    samples = check_batch(batch)
    read = _read(network, batch, division, loss, precision, mode)
    division.resolve()
    operations = _owned(read.reader.found, read.entries, division)
    if mode == "training":
        operations += updates(division, updated)
    memory = _memory(network, batch, read, updated if mode == "training" else None)
    return Workload(
        network=name or type(network).__name__,
        batch=samples,
        precision=precision,
        mode=mode,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        tensors=sum(parameter.requires_grad for parameter in network.parameters()),
        sample_bytes=memory.inputs // samples,
        layers=tuple(unit.name for unit in division.layers()),
        operations=tuple(operations),
        notes=tuple(sorted(read.reader.assumed)),
        memory=memory,
    )


def _checked(precision: str, mode: str, optimizer: str) -> UpdateRule:
    """The optimizer of that name, if the other words are known too."""
    if mode not in ("training", "inference"):
        raise WorkloadError(f"mode is training or inference, not {mode!r}")
    if precision not in ("fp32", *DTYPES):
        raise WorkloadError(f"precision is fp32, bf16 or fp16, not {precision!r}")
    if optimizer not in OPTIMIZERS:
        raise WorkloadError(f"no optimizer is called {optimizer!r}; one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[optimizer]


@dataclass(slots=True)
class _Read:
    """The operations and memory recorded during a step."""

    alive: Alive
    reader: Reader
    entries: list[Any] = field(default_factory=list)  # units, in the order in which they were entered
    activations: int = 0  # bytes alive between forward and backward
    gradients: int = 0


def _read(
    network: nn.Module, batch: Any, division: DividedNetwork, loss: Loss, precision: str, mode: str
) -> _Read:
    """Run a step on tensors without memory; the network is left as it was."""
    alive = Alive()
    read = _Read(alive=alive, reader=Reader(alive))
    mode_before = network.training
    network.train(mode == "training")
    fake = fake_mode()
    try:
        with without_memory(network, fake) as kept, fake, unlogged():
            given = fakes(batch)
            alive.disregard([*kept, *tensors_in(given)])
            with cuda_choices.of_cuda(), read.reader, _watched(division, read):
                read.activations = _step(network, given, loss, precision, mode, alive)
            read.gradients = sum(
                size_of(parameter.grad) for parameter in network.parameters() if parameter.grad is not None
            )
    except Exception as error:  # a user's network can raise anything; report it in one line
        last = read.reader.found[-1][0] if read.reader.found else None
        entered = read.entries[-1].module if read.entries else network
        raise refusal(error, network, batch, entered, last) from error
    finally:
        network.train(mode_before)
    return read


def _memory(network: nn.Module, batch: Any, read: _Read, updated: UpdateRule | None) -> Memory:
    """Bytes of a step; without an optimizer, of a forward pass."""
    trainable = (
        [parameter for parameter in network.parameters() if parameter.requires_grad] if updated else []
    )
    state = sum(parameter.numel() for parameter in trainable) * 4 * (updated.state_values if updated else 0)
    temporaries = sum(map(size_of, trainable)) * (updated.temporaries if updated else 0)
    parameters = sum(map(size_of, network.parameters()))
    buffers = sum(map(size_of, network.buffers()))
    inputs = sum(map(size_of, tensors_in(batch)))
    moving = max(read.alive.peak, read.gradients + temporaries)
    return Memory(
        parameters=parameters,
        gradients=read.gradients,
        buffers=buffers,
        state=state,
        inputs=inputs,
        activations=read.activations,
        peak=parameters + buffers + state + inputs + moving,
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
    check_loss(value)
    held = alive.now
    value.backward()
    alive.settle()
    return held


@contextmanager
def _watched(division: DividedNetwork, read: _Read) -> Iterator[None]:
    """Hooks that record when a module is entered and when the network's forward pass ends."""
    units = {id(unit.module): unit for unit in division.units}
    root = division.units[0].module
    number = torch._C._autograd._get_sequence_nr
    reader = read.reader

    def enter(module: nn.Module, inputs: Any) -> None:
        unit = units.get(id(module))
        if unit is None:
            return
        if module is root:
            reader.in_network = True
        division.call(unit)
        read.entries.append(unit)
        reader.enter(number())

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if module is root:
            reader.leave_network(number())

    with ExitStack() as hooks:
        for handle in (register_module_forward_pre_hook(enter), register_module_forward_hook(leave)):
            hooks.callback(handle.remove)
        yield


def _owned(
    found: list[tuple[Operation, int]], entries: list[Any], division: DividedNetwork
) -> list[Operation]:
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
        replace(operation, layer=names[owner] or first) if owner >= 0 and first else operation
        for operation, owner in found
    ]
