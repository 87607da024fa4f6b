"""One step of a network on tensors without memory: torch's fake tensors, which know shape and type alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from laptime.capture import cuda_choices, inputs
from laptime.capture.op_reader import Alive, DividedNetwork, Reader, size_of, step_memory, updates
from laptime.capture.refusals import check_batch, check_loss, refusal
from laptime.errors import WorkloadError
from laptime.model.workload import Operation, Workload
from laptime.ops.sizes import tensors_in

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
    optimizer: Any = "momentum",
    name: str = "",
) -> Workload:
    """What one step asks of a machine. `batch` holds tensors of the right shape on any device, meta too.

    `optimizer` is a name, or one of torch's own.
    """
    if mode not in ("training", "inference"):
        raise WorkloadError(f"mode is training or inference, not {mode!r}")
    if precision not in ("fp32", *DTYPES):
        raise WorkloadError(f"precision is fp32, bf16 or fp16, not {precision!r}")
    rule = inputs.optimizer(optimizer)
    samples = check_batch(batch)
    reader, gradients = _read(network, batch, division, loss, precision, mode)
    division.resolve()
    operations = _owned(reader, division)
    trained: list[nn.Parameter] = []
    if mode == "training":
        operations += updates(division, rule)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    given = sum(map(size_of, tensors_in(batch)))
    memory = step_memory(reader, [network], [(rule, trained)], inputs=given, gradients=gradients)
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
        notes=tuple(sorted(reader.assumed)),
        memory=memory,
    )


def _read(
    network: nn.Module, batch: Any, division: DividedNetwork, loss: Loss, precision: str, mode: str
) -> tuple[Reader, int]:
    """Run a step on tensors without memory; what was read, and the bytes of gradients.

    The network is left as it was.
    """
    reader = Reader(Alive())
    mode_before = network.training
    network.train(mode == "training")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    # By default torch hands out a null pointer where a kernel of the user's own asks for a tensor's address,
    # and the kernel crashes the process; here asking raises.
    fake._allow_unsafe_data_ptr_access = False
    log = logging.getLogger("torch._subclasses.fake_tensor")  # of failing operations, which raise anyway
    logged_before, log.disabled = log.disabled, True
    try:
        with _without_memory(network, fake) as kept, fake:
            given = _fakes(batch)
            reader.alive.disregard([*kept, *tensors_in(given)])
            with cuda_choices.cuda_dispatch(), reader, _watched(division, reader):
                _step(network, given, loss, precision, mode, reader)
            gradients = (parameter.grad for parameter in network.parameters())
            return reader, sum(size_of(gradient) for gradient in gradients if gradient is not None)
    except Exception as error:  # a user's network can raise anything; report it in one line
        last = reader.found[-1][0] if reader.found else None
        entered = reader.units[-1].module if reader.units else network
        raise refusal(error, network, batch, entered, last) from error
    finally:
        log.disabled = logged_before
        network.train(mode_before)


@contextmanager
def _without_memory(network: nn.Module, mode: FakeTensorMode) -> Iterator[list[Tensor]]:
    """The network's parameters and buffers exchanged for fakes of theirs; everything is put back."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[int, Tensor] = {}
    with mode:
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


def _fakes(batch: Any) -> Any:
    """A batch of fakes, in tuples, lists and dictionaries as it was. Within the mode."""
    if isinstance(batch, Tensor):
        return _fake(batch)
    if isinstance(batch, list | tuple):
        return type(batch)(map(_fakes, batch))
    if isinstance(batch, dict):
        return {key: _fakes(value) for key, value in batch.items()}
    return batch


def _fake(tensor: Tensor) -> Tensor:
    """A fake CPU tensor of the same shape and type."""
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _step(network: nn.Module, given: Any, loss: Loss, precision: str, mode: str, reader: Reader) -> None:
    """Forward, and backward if it trains."""
    low = DTYPES.get(precision)
    cast = torch.autocast("cpu", dtype=low) if low is not None else nullcontext()
    if mode == "inference":
        with torch.no_grad(), cast:
            network(**given) if isinstance(given, dict) else network(*given)
        reader.held = reader.alive.now
        return
    with cast:
        value = loss(network, given)
    check_loss(value)
    reader.held = reader.alive.now
    value.backward()
    reader.alive.settle()


@contextmanager
def _watched(division: DividedNetwork, reader: Reader) -> Iterator[None]:
    """Hooks that record when a module is entered and when the network's forward pass ends."""
    units = {id(unit.module): unit for unit in division.units}
    root = division.units[0].module
    number = torch._C._autograd._get_sequence_nr

    def enter(module: nn.Module, inputs: Any) -> None:
        unit = units.get(id(module))
        if unit is None:
            return
        if module is root:
            reader.in_network = True
        division.call(unit)
        reader.units.append(unit)
        reader.enter(number())

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if module is root:
            reader.leave_network(number())

    with ExitStack() as hooks:
        for handle in (register_module_forward_pre_hook(enter), register_module_forward_hook(leave)):
            hooks.callback(handle.remove)
        yield


def _owned(reader: Reader, division: DividedNetwork) -> list[Operation]:
    """Operations with the names of their layers: that of the last layer entered before them."""
    names: list[str] = []
    by_index = {unit.layer: unit.name for unit in division.layers()}
    current = ""
    for unit in reader.units:
        if unit.is_layer:
            current = by_index.get(unit.layer, unit.name)
        names.append(current)
    first = next((name for name in names if name), "")
    return [
        replace(operation, layer=names[owner] or first) if owner >= 0 and first else operation
        for operation, owner in reader.found
    ]
