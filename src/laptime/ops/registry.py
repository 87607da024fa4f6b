"""The register of operation kinds. Each kind enters itself, in a file of this folder.

A kind groups torch's operations whose time follows one rule on a device, and of which a calibration times
single ones. Everything that depends on the kind is a method or a field of its entry; other modules ask here.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from laptime.model import Operation
from laptime.ops.sizes import is_tensor, listed, log2

Sizes = Mapping[str, int]  # the numbers that an operation's time depends on, under the names of its kind
Arguments = Sequence[Any]  # of an operation: tensors, known by their attributes, and plain values


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What follows the batch size: these sizes, and all bytes but those given here (weights, mostly)."""

    sizes: tuple[str, ...] = ()
    fixed_read: int = 0
    fixed_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel whose time a fitted model predicts."""

    kind: str
    sizes: Sizes
    moved: int  # bytes


class OperationKind:
    """One kind. The defaults describe a plain pass over memory."""

    covered = True  # by a FLOP formula; else only its bytes count
    like: tuple[str, ...] = ()  # kinds whose fitted model stands in where a calibration has none of this
    uses_tf32 = False  # torch's default: cuDNN may compute float32 in TF32, cuBLAS may not
    has_workspace = False  # its library allocates temporary memory
    cuda_float32 = ""  # functions, with overload, that CUDA's autocast runs in float32 and the CPU's does not
    device_names = ""  # regular expression: what a real step calls it, where fake tensors have one name
    microbenchmark = ""  # the family of `microbench` that times it
    no_microbenchmark = ""  # or the reason why none does
    common = False  # without a model of it, most networks are predicted by bounds alone
    reaches = ""  # compute or bandwidth: the peak that its fastest operation measures
    batch_sizes: tuple[str, ...] = ("n",)  # those that follow the batch, where the batch divides them
    feature_sizes: tuple[str, ...] = ()  # whose logarithms a fitted model takes beside FLOPs and bytes
    work_class = "memory"  # that `estimate.datasheet_transfer` has constants for
    gradients = 0  # arguments before those of the forward pass: one where the pass is backward
    variant_of = ""  # the kind whose operations it times, where it has no names itself

    def __init__(self, name: str, torch_names: str = "", **fields: Any) -> None:
        """`torch_names` are separated by spaces, "namespace::name" where they are not torch's own."""
        self.name = name
        self.torch_names = frozenset(torch_names.split())
        vars(self).update(fields)

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        """From an operation's arguments and results; by default how many elements come out."""
        return {"n": sum(tensor.numel() for tensor in listed(out) if is_tensor(tensor))}

    def flops(self, sizes: Sizes) -> int:
        """A multiplication and an addition for each product; 0 for what is bound by memory."""
        return 0

    def read_bytes(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """From the bytes of its tensors."""
        return sum(inputs)

    def from_device(self, given: Mapping[str, Any]) -> Arguments:
        """The arguments that `sizes` takes, from those that an operation of `device_names` was given."""
        raise NotImplementedError

    def growth(self, operation: Operation, batch: int) -> Growth:
        """Its `batch_sizes` that the batch divides grow, with all bytes but the fixed ones."""
        sizes = tuple(name for name in self.batch_sizes if operation.sizes.get(name, 1) % batch == 0)
        read, written = self.fixed_bytes(operation)
        return Growth(sizes=sizes, fixed_read=read, fixed_written=written) if sizes else Growth()

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        """Bytes read and written that no batch changes: of weights and their gradients."""
        return 0, 0

    def weights(self, sizes: Sizes) -> set[int]:
        """Element counts of its weight arguments; autocast copies these. Not asked of backward passes."""
        return set()

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        """What a fitted model takes beside FLOPs and bytes."""
        if self.feature_sizes:
            return tuple(log2(sizes[name]) for name in self.feature_sizes)
        return log2(sizes.get("n", 0)), float(sizes.get("broadcast", 0))

    def serial_kernels(self, sizes: Sizes) -> int:
        """Number of kernels that run in sequence."""
        return 1

    def model_of(self, operation: Operation) -> str:
        """The kind whose fitted model gives its time: itself, or a variant of it."""
        return operation.kind

    def timed_as(self, operation: Operation) -> Kernel:
        """The kernel whose time the model predicts."""
        return Kernel(kind=self.model_of(operation), sizes=operation.sizes, moved=operation.moved)

    def further_kernels(self, operation: Operation) -> tuple[Kernel, ...]:
        """Additional kernels that a GPU runs for it."""
        return ()

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        """The class of work of one operation."""
        return self.work_class


Entered = TypeVar("Entered", bound=type[OperationKind])
_kinds: dict[str, OperationKind] = {}
_by_torch_name: dict[str, OperationKind] = {}


def operation_kind(name: str, torch_names: str = "") -> Callable[[Entered], Entered]:
    """Enter a class under a name; `torch_names` are those of its operations, separated by spaces."""

    def enter_class(made: Entered) -> Entered:
        enter(made(name, torch_names))
        return made

    return enter_class


def enter(kind: OperationKind) -> None:
    """Add a kind; neither its name nor one of torch's may be another's."""
    taken = sorted(kind.torch_names & _by_torch_name.keys())
    if kind.name in _kinds or taken:
        words = ", ".join(taken) or "name"
        raise ValueError(f"the operation kind {kind.name} or its {words} is known already")
    _kinds[kind.name] = kind
    _by_torch_name.update(dict.fromkeys(kind.torch_names, kind))
    _device_kind.cache_clear()


def unregister(name: str) -> None:
    """Remove a kind."""
    for torch_name in _kinds.pop(name).torch_names:
        del _by_torch_name[torch_name]
    _device_kind.cache_clear()


@cache
def _load() -> None:
    folder = import_module("laptime.ops")
    for module in pkgutil.iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")


def kinds() -> Mapping[str, OperationKind]:
    """Every kind, by name. Reads the files of this folder, the first time."""
    _load()
    return MappingProxyType(_kinds)


def kind_named(name: str) -> OperationKind:
    """The kind of that name; one that only another laptime knows has the defaults."""
    _load()
    return _kinds.get(name) or OperationKind(name)


def kind_of(torch_name: str) -> OperationKind | None:
    """The kind that an operation of torch belongs to; None where no kind claims it."""
    _load()
    return _by_torch_name.get(torch_name)


def translated(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Arguments]:
    """What a real step calls its attention and recurrent layers, as the operations that a workload knows.

    A step read on fake tensors has one attention and one recurrent operation (`capture.cuda_choices`), a real
    one those of its device and library. The rest has the same names everywhere.
    """
    kind = _device_kind(name)
    if kind is None:
        return name, (*args, *kwargs.values())
    given = {argument.name: argument.default_value for argument in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    return kind.name, kind.from_device(given)


@cache
def _device_kind(name: str) -> OperationKind | None:
    matches = (
        kind for kind in kinds().values() if kind.device_names and re.fullmatch(kind.device_names, name)
    )
    return next(matches, None)
