"""A workload at another batch size, from its own sizes.

Which of an operation's sizes holds the batch follows from its kind: the rows of a linear layer, the images of
a convolution, the sequences of an attention. Where a kind leaves it open, a size that the batch divides is
taken to grow with it. So FLOPs are exact for layers as torch has them, while small operations whose size has
nothing to do with the batch but happens to be divisible by it (a mask, positions) grow too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from laptime.errors import WorkloadError
from laptime.files.text import first_line
from laptime.model import Operation, Phase
from laptime.model.workload import Memory, Workload
from laptime.ops.optimizers import temporaries
from laptime.ops.registry import kind_named


def rescaled(workload: Workload, batch: int) -> Workload:
    """The same step with another number of samples in it."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise WorkloadError(f"batch is {batch}; give a whole number above 0")
    if batch == workload.batch:
        return workload
    if workload.batch == 1:  # which divides every size, those of weights too
        raise WorkloadError(
            "of a step with one sample nobody can tell what grows with the batch; read or record one with two"
        )
    share = batch / workload.batch
    try:
        weights = _weights(workload.operations)
        operations = tuple(
            replace(
                _operation(operation, workload.batch, batch, weights),
                alive=int(min(operation.alive, fixed) + max(0, operation.alive - fixed) * share),
            )
            for operation, fixed in zip(workload.operations, _fixed_bytes(workload, weights), strict=True)
        )
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    most = max((operation.alive for operation in operations), default=0)
    return replace(
        workload,
        batch=batch,
        operations=operations,
        memory=_memory(workload, batch, most, weights),
        notes=(*workload.notes, f"sizes of batch {batch} follow from those of batch {workload.batch}"),
    )


def _operation(operation: Operation, old: int, new: int, weights: set[tuple[str, int]]) -> Operation:
    if operation.phase is Phase.UPDATE or _casts(operation, weights):
        return operation
    kind = kind_named(operation.kind)
    growth = kind.growth(operation, old)
    if not growth.sizes:
        return operation
    sizes = {
        name: value * new // old if name in growth.sizes else value for name, value in operation.sizes.items()
    }
    read, written = min(growth.fixed_read, operation.read), min(growth.fixed_written, operation.written)
    return replace(
        operation,
        sizes=sizes,
        flops=kind.flops(sizes) if operation.flops else 0,
        read=read + (operation.read - read) * new // old,
        written=written + (operation.written - written) * new // old,
    )


def _casts(operation: Operation, weights: set[tuple[str, int]]) -> bool:
    return operation.name == "aten._to_copy" and (operation.layer, operation.sizes["n"]) in weights


def _weights(operations: Iterable[Operation]) -> set[tuple[str, int]]:
    """Layers and the sizes of their weights and biases, which autocast copies to another type."""
    return {
        (operation.layer, size)
        for operation in operations
        if operation.phase is not Phase.BACKWARD
        for size in kind_named(operation.kind).weights(operation.sizes)
    }


def _fixed_bytes(workload: Workload, weights: set[tuple[str, int]]) -> Iterator[float]:
    """Of what is alive at each operation, the bytes that no batch changes: gradients so far, cast weights.

    Autocast's copies of a layer's weights live until its backward pass is over.
    """
    fixed, copies, last = 0.0, dict[str, int](), None
    for operation in workload.operations:
        if operation.phase is Phase.FORWARD and _casts(operation, weights):
            copies[operation.layer] = copies.get(operation.layer, 0) + operation.written
            fixed += operation.written
        elif operation.phase is Phase.BACKWARD:
            if operation.layer != last and last is not None:
                fixed -= copies.pop(last, 0)
            last = operation.layer
            if _casts(operation, weights):  # a gradient in its parameter's type replaces a shorter one
                fixed += operation.written / 2
            else:
                growth = kind_named(operation.kind).growth(operation, workload.batch)
                fixed += min(growth.fixed_written, operation.written)
        yield fixed


def _memory(workload: Workload, batch: int, alive: int, weights: set[tuple[str, int]]) -> Memory:
    """The peak is in the backward pass, or else in the update, which no batch changes."""
    memory, old = workload.memory, workload.batch
    inputs = memory.inputs * batch // old
    update = memory.gradients * (1 + temporaries(workload))
    if not alive:  # workloads of earlier versions do not say what is alive at each operation
        moving = memory.peak - memory.static - memory.inputs
        alive = memory.gradients + max(0, moving - memory.gradients) * batch // old
    forward = workload.phase(Phase.FORWARD)
    copies = sum(operation.written for operation in forward if _casts(operation, weights))
    copies = min(copies, memory.activations)
    return replace(
        memory,
        inputs=inputs,
        activations=copies + (memory.activations - copies) * batch // old,
        peak=memory.static + inputs + max(alive, update),
    )
