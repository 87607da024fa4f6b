"""The workload of a recorded loop, read off its own first training step.

While the step's forward passes, loss functions and backward passes run, a dispatch mode reads operations. It
is put on and taken off around each of them, so it is never on while other code runs. The step is the first
of its stage, which warms up and counts in no table. What cannot be read leaves a reason and no workload; it
never ends a training. Operations of a loss that is written out by hand are not read in its forward part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from laptime.capture.optimizer_ops import updates
from laptime.model import Account, Memory, Operation, Phase, Workload
from laptime.ops.optimizers import UpdateRule, assumed_rule
from laptime.recorder.backends import accelerators
from laptime.recorder.layer_division import Division, LayerUnit, is_compiled
from laptime.recorder.live_reader import StepReader
from laptime.recorder.loss_end import compiles

NO_OPTIMIZER = "the recording knows no optimizer, so the update is left out"
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


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
            self._reader.alive.disregard(_kept(root))
            self._put_on(self._reader, Phase.FORWARD, in_network=True)

    def entered(self, unit: LayerUnit) -> None:
        """A module is called."""
        if self._reader is not None and threading.get_ident() == self._thread:
            self._reader.entered(unit)

    def end_forward(self, *, raised: bool) -> None:
        """The forward pass is over; what was raised in it may be caught, and another batch tried."""
        if self._reader is not None and self._on and threading.get_ident() == self._thread:
            self._take_off(self._reader)
            self._reader.entered(None)
            if raised:
                self._reader.problem = "its forward pass raised"

    def enter(self, phase: Phase) -> bool:
        """Read a loss function, or a backward pass, that begins here; whether `leave` is to be called."""
        reader = self._reader
        if reader is None or self._on or threading.get_ident() != self._thread:
            return False
        if phase is Phase.BACKWARD and reader.held is None:
            reader.held = reader.alive.now
        return self._put_on(reader, phase)

    def leave(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._take_off(self._reader)

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
        """Facts for the run's summary."""
        reason = self.reason or (None if self.step else "no forward pass of the network was seen")
        return {"read": self.step is not None, "reason": reason}

    def workload(self, divisions: Sequence[Division], optimizers: Sequence[Optimizer]) -> Workload | None:
        """What was read, with the updates of the optimizers; None where nothing was."""
        reader = self.step
        if reader is None:
            return None
        operations = reader.operations()
        precision = _precision(operations)
        if self.trains:
            operations += [update for division in divisions for update in _updates(division, optimizers)]
        else:
            operations = [operation for operation in operations if operation.account is Account.FORWARD]
        memory = _memory(reader, divisions, optimizers if self.trains else ())
        samples = self.samples or reader.rows or 1
        parameters = _once(parameter for division in divisions for parameter in division.root.parameters())
        return Workload(
            network=" and ".join(type(division.root).__name__ for division in divisions),
            batch=samples,
            precision=precision,
            mode="training" if self.trains else "inference",
            parameters=sum(parameter.numel() for parameter in parameters),
            tensors=sum(parameter.requires_grad for parameter in parameters),
            sample_bytes=memory.inputs // samples,
            layers=tuple(unit.name for division in divisions for unit in division.layers()),
            operations=tuple(operations),
            memory=memory,
            notes=_notes(optimizers) if self.trains else (),
        )


def hindrance(root: nn.Module) -> str | None:
    """Why a network's step cannot be read; None if it can."""
    if any(is_compiled(module) for module in root.modules()) or compiles():
        return "torch.compile is in use"
    if any(isinstance(module, torch.jit.ScriptModule) for module in root.modules()):
        return "the network is TorchScript"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "several processes train together"
    known = {"cpu", *(backend.type for backend in accelerators())}
    types = {parameter.device.type for parameter in root.parameters()}
    if not types <= known:
        return f"the network is on {', '.join(sorted(types))}"
    return None


def _transforms() -> bool:
    """Whether the code runs inside `torch.func`, which keeps a stack of its own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _kept(root: nn.Module) -> list[Tensor]:
    parameters = list(root.parameters())
    gradients = [
        parameter.grad for parameter in parameters if parameter.is_leaf and parameter.grad is not None
    ]
    return [*parameters, *root.buffers(), *gradients]


def _once(parameters: Iterable[Tensor]) -> list[Tensor]:
    return list({id(parameter): parameter for parameter in parameters}.values())


def _precision(operations: Sequence[Operation]) -> str:
    """The type that most products are computed in."""
    flops: dict[str, int] = {}
    for operation in operations:
        flops[operation.dtype] = flops.get(operation.dtype, 0) + operation.flops
    most = max(flops, key=lambda dtype: flops[dtype], default="")
    return PRECISIONS.get(most, "fp32")


def _updates(division: Division, optimizers: Sequence[Optimizer]) -> list[Operation]:
    mine = {id(parameter) for parameter in division.root.parameters()}
    for optimizer in optimizers:
        if any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"]):
            return updates(division, update_of(optimizer)[0])
    return []


def _notes(optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    """Assumptions about the update."""
    if not optimizers:
        return (NO_OPTIMIZER,)
    notes = (update_of(optimizer)[1] for optimizer in optimizers)
    return tuple(dict.fromkeys(note for note in notes if note is not None))


def update_of(optimizer: Optimizer) -> tuple[UpdateRule, str | None]:
    """What an optimizer keeps and moves, and a note where that had to be assumed."""
    while isinstance(
        inside := getattr(optimizer, "optimizer", None), Optimizer
    ):  # wrapped, as accelerate does
        optimizer = inside
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return assumed_rule([base.__name__ for base in type(optimizer).__mro__], momentum=momentum)


def _memory(reader: StepReader, divisions: Sequence[Division], optimizers: Sequence[Optimizer]) -> Memory:
    """As `capture.fake_step` counts it."""

    def size(tensors: Iterable[Tensor]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in _once(tensors))

    parameters = size(parameter for division in divisions for parameter in division.root.parameters())
    buffers = size(buffer for division in divisions for buffer in division.root.buffers())
    state = temporaries = gradients = 0
    for optimizer in optimizers:
        trained = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        rule = update_of(optimizer)[0]
        state += sum(parameter.numel() for parameter in trained) * 4 * rule.state_values
        temporaries += size(trained) * rule.temporaries
        gradients += size(trained)
    moving = max(reader.alive.peak, gradients + temporaries)
    return Memory(
        parameters=parameters,
        gradients=gradients,
        buffers=buffers,
        state=state,
        inputs=reader.inputs,
        activations=reader.held or 0,
        peak=parameters + buffers + state + reader.inputs + moving,
    )
