"""Why a network cannot be read, in one line: the operation, where it happened, and the way around it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from laptime.errors import WorkloadError
from laptime.model import Operation, Phase
from laptime.ops.sizes import tensors_in

_Frames = Sequence[tuple[FrameType, int]]
MEASURE = "measure it with laptime profile"
_OURS = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])  # torch's code, and laptime's
# What torch says where a tensor without memory is asked for its memory: by numpy, ctypes, triton, a storage.
_MEMORY = ("data pointer", ".numpy() is not supported", "Can't call numpy()", "Cannot access storage")
_NO_FAKE = "no fake impl registered for"


def refusal(
    error: Exception, network: nn.Module, batch: Any, entered: nn.Module, last: Operation | None
) -> WorkloadError:
    """What to tell of an error in a step; `entered` and `last` are the module and operation before it."""
    if isinstance(error, WorkloadError):
        return error
    frames = list(traceback.walk_tb(error.__traceback__))
    place = f"in {_module(frames, network, entered, last)}{_code(frames)}"
    return WorkloadError(" ".join(_words(error, place, batch, last.name if last else "none").split()))


def _words(error: Exception, place: str, batch: Any, last: str) -> str:
    said = (str(error).strip().splitlines() or [""])[0].strip().rstrip(".") or type(error).__name__
    operation = str(getattr(error, "func", said)).removesuffix(".default")
    if isinstance(error, DataDependentOutputException):
        return (
            f"the network looks at values ({operation}, as .item(), int() or tolist() do) {place}, "
            f"which tensors without memory do not have; take the decision out of forward(), or {MEASURE}"
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"{operation} {place} gives as much as the values decide (x[mask] does so too), and "
            f"tensors without memory have no values; keep the shape, as torch.where does, or {MEASURE}"
        )
    if isinstance(error, UnsupportedOperatorException) or _NO_FAKE in said:
        named = said.partition(_NO_FAKE)[2].partition(". ")[0].strip() if _NO_FAKE in said else ""
        name = named.removeprefix("<CustomOpDef(").removesuffix(")>") or operation
        return (
            f"the operation {name} {place} does not say what shape it gives; give it a fake implementation "
            f"with torch.library.register_fake, or {MEASURE}"
        )
    if any(words in str(error) for words in _MEMORY):
        return (
            f"a kernel outside torch (numpy, ctypes, triton) asks for a tensor's memory {place}, and there "
            "is none; make it an operation with torch.library.custom_op and register_fake, or " + MEASURE
        )
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(batch))
    return (
        f"the network cannot be read ({kind}{said}, {place}; the last operation was {last}); "
        f"see whether a batch of {shapes or 'no tensor'} is what it takes, or {MEASURE}"
    )


def _module(frames: _Frames, network: nn.Module, entered: nn.Module, last: Operation | None) -> str:
    """The innermost module that ran; where it has others within, also which of them came last."""
    names = {id(module): name or type(network).__name__ for name, module in network.named_modules()}
    running = [names[id(me)] for frame, _ in frames if id(me := frame.f_locals.get("self")) in names]
    if running:
        before = names.get(id(entered), running[-1])
        return running[-1] if before == running[-1] else f"{running[-1]}, after {before}"
    return "the backward pass" if last and last.phase is Phase.BACKWARD else "the loss"


def _code(frames: _Frames) -> str:
    """The last line of code that is neither torch's nor ours."""
    theirs = [
        (frame.f_code, line)
        for frame, line in frames
        if not frame.f_code.co_filename.startswith((*_OURS, "<"))
    ]
    if not theirs:
        return ""
    code, line = theirs[-1]
    return f" ({code.co_qualname}, {Path(code.co_filename).name}:{line})"


def check_loss(value: Any) -> None:
    """A step needs one number that depends on parameters."""
    if not isinstance(value, torch.Tensor):
        raise WorkloadError(f"the loss is of type {type(value).__name__}; return a tensor of one number")
    if value.numel() != 1:
        raise WorkloadError(
            f"the loss has the shape {tuple(value.shape)}; return one number: end it with .mean()"
        )
    if not value.requires_grad:
        raise WorkloadError(
            "the loss depends on no parameter that is trained; "
            "leave out detach(), or read its forward pass alone (inference)"
        )


def check_batch(batch: Any) -> int:
    """Its samples, by the first dimension of its first tensor."""
    leading = next(iter(tensors_in(batch)), None)
    samples = int(leading.shape[0]) if leading is not None and leading.dim() else 1
    if samples < 1:
        raise WorkloadError(f"a batch of {samples} samples asks for nothing; give at least 1")
    return samples
