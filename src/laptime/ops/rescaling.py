"""A workload at another batch size, from its own sizes.

Which of an operation's sizes holds the batch follows from its kind: the rows of a linear layer, the images of
a convolution, the sequences of an attention. Where a kind leaves it open, a size that the batch divides is
taken to grow with it. So FLOPs are exact for layers as torch has them, while small operations whose size has
nothing to do with the batch but happens to be divisible by it (a mask, positions) grow too.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    try:
        weights = _weights(workload.operations)
        grown = _grown(workload, batch / workload.batch, weights)
        operations = [_operation(each, workload.batch, batch, weights) for each in workload.operations]
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    return replace(
        workload,
        batch=batch,
        operations=tuple(replace(operation, alive=int(operation.alive * grown)) for operation in operations),
        memory=_memory(workload, batch, grown),
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


def _grown(workload: Workload, share: float, weights: set[tuple[str, int]]) -> float:
    """How much more is alive in a step: activations grow with the batch, gradients of weights do not."""
    before, after = (_alive(workload, factor, weights) for factor in (1.0, share))
    return after / before if before else 1.0


def _memory(workload: Workload, batch: int, grown: float) -> Memory:
    """The peak is in the backward pass, or else in the update, which no batch changes."""
    memory, old = workload.memory, workload.batch
    static, moving = memory.static, memory.peak - memory.static - memory.inputs
    inputs = memory.inputs * batch // old
    update = memory.gradients * (1 + temporaries(workload))
    if moving <= update:  # then the peak says nothing of the backward pass; workloads of old have no other
        moving = max((operation.alive for operation in workload.operations), default=0) or moving
    peak = max(int(moving * grown), update)
    return replace(
        memory,
        inputs=inputs,
        activations=memory.activations * batch // old,
        peak=static + inputs + peak,
    )


def _alive(workload: Workload, share: float, weights: set[tuple[str, int]]) -> float:
    """The most bytes alive in a backward pass, roughly: a layer's activations go as its gradients come."""
    forward: dict[str, int] = {}
    casts = 0  # weights in another type: they are held like activations, and do not grow
    for operation in workload.operations:
        if operation.phase is Phase.FORWARD:
            if _casts(operation, weights):
                casts += operation.written
            else:
                forward[operation.layer] = forward.get(operation.layer, 0) + operation.written
    whole = sum(forward.values()) or 1
    grows = float(max(0, workload.memory.activations - casts))
    held, gradients, last = grows, float(casts), None
    most = held * share + casts
    for operation in workload.operations:
        if operation.phase is not Phase.BACKWARD:
            continue
        if operation.layer != last:
            held -= grows * forward.pop(last, 0) / whole if last is not None else 0.0
            last = operation.layer
        if _casts(operation, weights):  # a gradient in its parameter's type takes the place of a shorter one
            most = max(most, gradients + operation.written + held * share)
            gradients += operation.written / 2
            continue
        kept = min(
            kind_named(operation.kind).growth(operation, workload.batch).fixed_written, operation.written
        )
        gradients += kept
        most = max(most, gradients + (held + 2 * (operation.written - kept)) * share)
    return most
