"""The workload of a recorded loop, read off its own first training step.

While the step's forward passes, loss functions and backward passes run, a dispatch mode reads operations and
changes nothing about them. It is put on and taken off around each of them, so it is never on while other code
runs. The step is the first of its stage, which warms up and counts in no table. What cannot be read leaves a
reason and no workload; it never ends a training. Operations of a loss that is written out by hand are not
read in its forward part.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from laptime.capture.op_reader import Alive, Reader, has_storage, step_memory, updates
from laptime.model import LOSS_LAYER, Account, Operation, Phase, Workload
from laptime.ops.optimizers import UpdateRule, assumed_rule
from laptime.ops.registry import translated
from laptime.ops.sizes import tensors_in
from laptime.recorder.autograd_graph import sequence_number
from laptime.recorder.backends import accelerators
from laptime.recorder.guard import RecordingPart, shielded
from laptime.recorder.layer_division import Division, LayerUnit, is_compiled
from laptime.recorder.loss_end import compiles

NO_OPTIMIZER = "the recording knows no optimizer, so the update is left out"
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
MOST = 100_000  # operations of a step; beyond, a loop in Python is being read, and reading would take seconds
MOST_S = 20.0  # for the same reason


class StepReader(Reader):
    """Reads a real step: its values are there, so nothing is assumed."""

    supports_higher_order_operators = True  # without it those of torch (`flex_attention`, `cond`) raise

    def __init__(self) -> None:
        super().__init__(Alive())
        self._began = time.monotonic()
        self.units: list[LayerUnit | None]  # entered one after the other; None: the network was left
        self.problem: str | None = None
        self.inputs = 0  # bytes that came from outside: the batch and its labels
        self.rows: int | None = None  # of the first tensor among these

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
        for tensor in tensors_in((*args, *kwargs.values())):
            if has_storage(tensor) and tensor.untyped_storage()._cdata not in self.alive.known:
                # It existed before the step: the batch and its labels.
                if self.rows is None and tensor.dim():
                    self.rows = int(tensor.shape[0])
                self.inputs += tensor.numel() * tensor.element_size()
                self.alive.disregard([tensor])
        super()._see(func, args, kwargs, out)

    def _named(self, name: str, func: Any, args: Any, kwargs: Any) -> tuple[str, Any]:
        if len(self.found) >= MOST or time.monotonic() - self._began > MOST_S:
            raise OverflowError("its first step is too long")
        return translated(name, func, args, kwargs)

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


def _names(units: Sequence[LayerUnit | None]) -> Iterator[str]:
    """The owner's name after each entry; once the network was left, the loss."""
    current = LOSS_LAYER
    for place, unit in enumerate(units):
        if unit is None:
            current = LOSS_LAYER
        elif unit.is_layer:
            current = (unit.leader or unit).name
        elif current == LOSS_LAYER:
            layers = (later for later in units[place:] if later is not None and later.is_layer)
            current = next(((layer.leader or layer).name for layer in layers), LOSS_LAYER)
        yield current


class Reading:
    """Reads one training step, and one step of forward passes alone if that comes first."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.done = not wanted
        self.reason: str | None = None  # why there is no workload
        self.step: StepReader | None = None  # what was read
        self.trains = False  # whether that was a training step
        self.samples: int | None = None  # in it
        self._reader: StepReader | None = None  # of the running step
        self._on = False
        self._thread = 0

    # -- while a step runs ---------------------------------------------------------------------------------

    @shielded(RecordingPart.WORKLOAD)
    def begin_forward(self, root: nn.Module) -> None:
        """A forward pass begins: of a network, or of a part that is called by itself."""
        if self.done or self._on or _transforms():
            return
        if self._reader is None:
            if self.step is not None and not (root.training and torch.is_grad_enabled()):
                return  # more of the forward passes that were read
            self.reason = hindrance(root)
            if self.reason is not None:
                self.done = True
                return
            self._reader, self._thread = StepReader(), threading.get_ident()
        if threading.get_ident() == self._thread:
            parameters = list(root.parameters())
            gradients = [p.grad for p in parameters if p.is_leaf and p.grad is not None]
            self._reader.alive.disregard([*parameters, *root.buffers(), *gradients])
            self._put_on(self._reader, Phase.FORWARD, in_network=True)

    @shielded(RecordingPart.WORKLOAD)
    def entered(self, unit: LayerUnit) -> None:
        if self._reader is not None and threading.get_ident() == self._thread:
            self._reader.entered(unit)

    @shielded(RecordingPart.WORKLOAD)
    def end_forward(self, *, raised: bool) -> None:
        """The forward pass is over; what was raised in it may be caught, and another batch tried."""
        if self._reader is not None and self._on and threading.get_ident() == self._thread:
            self._take_off(self._reader)
            self._reader.entered(None)
            if raised:
                self._reader.problem = "its forward pass raised"

    @shielded(RecordingPart.WORKLOAD)
    def enter(self, phase: Phase) -> bool:
        """Read a loss function, or a backward pass, that begins here; whether `leave` is to be called."""
        reader = self._reader
        if reader is None or self._on or threading.get_ident() != self._thread:
            return False
        if phase is Phase.BACKWARD and reader.held is None:
            reader.held = reader.alive.now
        return self._put_on(reader, phase)

    @shielded(RecordingPart.WORKLOAD)
    def leave(self) -> None:
        if self._reader is not None:
            self._take_off(self._reader)

    @shielded(RecordingPart.WORKLOAD)
    def end_step(self, *, trains: bool, samples: int | None) -> None:
        """The step is over; a training step ends the reading."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self.reason = reader.problem
        if reader.problem is None and reader.found:
            self.step, self.trains, self.samples = reader, trains, samples
        self.done = trains or reader.problem is not None

    def give_up(self, reason: str) -> None:
        """After an internal error: there will be no workload."""
        if self._reader is not None:
            self._take_off(self._reader)
        self.done, self.step, self.reason, self._reader = True, None, reason, None

    def _put_on(self, reader: StepReader, phase: Phase, *, in_network: bool = False) -> bool:
        if reader.problem is None and (_get_current_dispatch_mode_stack() or _transforms()):
            reader.problem = "another dispatch mode or transform of torch is on"
        if reader.problem is not None:
            return False
        reader.phase, reader.in_network = phase, in_network
        reader.__enter__()
        self._on = True
        return True

    def _take_off(self, reader: StepReader) -> None:
        if not self._on:
            return
        self._on = False
        modes = _get_current_dispatch_mode_stack()
        if modes and modes[-1] is reader:
            reader.__exit__(None, None, None)
        else:  # someone's mode was left on within the pass: ours stays under it, and looks away
            reader.problem = "another dispatch mode was left on"

    # -- afterwards ----------------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Any]:
        reason = self.reason or (None if self.step else "no forward pass of the network was seen")
        return {"read": self.step is not None, "reason": reason}

    def workload(self, divisions: Sequence[Division], optimizers: Sequence[Optimizer]) -> Workload | None:
        """What was read, with the updates of the optimizers; None where nothing was."""
        reader = self.step
        if reader is None:
            return None
        operations = reader.operations()
        flops: dict[str, int] = {}
        for operation in operations:
            flops[operation.dtype] = flops.get(operation.dtype, 0) + operation.flops
        most = max(flops, key=lambda dtype: flops[dtype], default="")  # the type of most products
        trained: list[tuple[UpdateRule, list[Tensor]]] = []  # what each optimizer does, and to what
        notes = [] if optimizers or not self.trains else [NO_OPTIMIZER]
        if self.trains:
            for optimizer in optimizers:
                rule, note = update_of(optimizer)
                tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
                trained.append((rule, [tensor for tensor in tensors if tensor.requires_grad]))
                notes += [note] if note is not None else []
            operations += [update for division in divisions for update in _updates(division, optimizers)]
        else:
            operations = [operation for operation in operations if operation.account is Account.FORWARD]
        networks = [division.root for division in divisions]
        memory = step_memory(reader, networks, trained, inputs=reader.inputs)
        samples = self.samples or reader.rows or 1
        parameters = {id(tensor): tensor for network in networks for tensor in network.parameters()}.values()
        return Workload(
            network=" and ".join(type(network).__name__ for network in networks),
            batch=samples,
            precision=PRECISIONS.get(most, "fp32"),
            mode="training" if self.trains else "inference",
            parameters=sum(parameter.numel() for parameter in parameters),
            tensors=sum(parameter.requires_grad for parameter in parameters),
            sample_bytes=memory.inputs // samples,
            layers=tuple(unit.name for division in divisions for unit in division.layers()),
            operations=tuple(operations),
            memory=memory,
            notes=tuple(dict.fromkeys(notes)),
        )


def hindrance(root: nn.Module) -> str | None:
    """Why a network's step cannot be read; None if it can."""
    if any(is_compiled(module) for module in root.modules()) or compiles():
        return "torch.compile is in use"
    if any(isinstance(module, torch.jit.ScriptModule) for module in root.modules()):
        return "the network is TorchScript"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "several processes train together"
    types = {parameter.device.type for parameter in root.parameters()}
    if not types <= {"cpu", *(backend.type for backend in accelerators())}:
        return f"the network is on {', '.join(sorted(types))}"
    return None


def _transforms() -> bool:
    """Whether the code runs inside `torch.func`, which keeps a stack of its own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _updates(division: Division, optimizers: Sequence[Optimizer]) -> list[Operation]:
    mine = {id(parameter) for parameter in division.root.parameters()}
    for optimizer in optimizers:
        if any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"]):
            return updates(division, update_of(optimizer)[0])
    return []


def update_of(optimizer: Optimizer) -> tuple[UpdateRule, str | None]:
    """What an optimizer keeps and moves, and a note where that had to be assumed."""
    while isinstance(inside := getattr(optimizer, "optimizer", None), Optimizer):  # as accelerate wraps it
        optimizer = inside
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return assumed_rule([base.__name__ for base in type(optimizer).__mro__], momentum=momentum)
