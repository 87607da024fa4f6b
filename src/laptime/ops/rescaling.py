"""A workload at another batch size, from its own sizes.

Which of an operation's sizes holds the batch follows from its kind: the rows of a linear layer, the images of
a convolution, the sequences of an attention. Where a kind leaves it open, a size that the batch divides is
taken to grow with it. So FLOPs are exact for layers as torch has them, while small operations whose size has
nothing to do with the batch but happens to be divisible by it (a mask, positions) grow too.
"""

from __future__ import annotations

from dataclasses import replace

from laptime.errors import WorkloadError
from laptime.files.text import first_line
from laptime.model import Operation, Phase
from laptime.model.workload import Workload
from laptime.ops.optimizers import temporaries
from laptime.ops.registry import Growth, kind_named


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
    old, share = workload.batch, batch / workload.batch
    operations: list[Operation] = []
    # Of what is alive, the bytes that no batch changes: gradients so far, and autocast's copies of a layer's
    # weights, which live until its backward pass is over.
    fixed, copies, last, cast = 0.0, dict[str, int](), None, 0
    try:
        weights = {
            (operation.layer, size)
            for operation in workload.operations
            if operation.phase is not Phase.BACKWARD
            for size in kind_named(operation.kind).weights(operation.sizes)
        }
        for operation in workload.operations:
            layer, phase, growth = operation.layer, operation.phase, Growth()
            if phase is Phase.BACKWARD:
                if layer != last and last is not None:
                    fixed -= copies.pop(last, 0)
                last = layer
            casts = operation.name == "aten._to_copy" and (layer, operation.sizes["n"]) in weights
            if casts and phase is Phase.FORWARD:
                copies[layer] = copies.get(layer, 0) + operation.written
                fixed += operation.written
                cast += operation.written
            elif casts:  # a gradient in its parameter's type replaces a shorter one
                fixed += operation.written / 2
            elif phase is not Phase.UPDATE:
                growth = kind_named(operation.kind).growth(operation, old)
                if phase is Phase.BACKWARD:
                    fixed += min(growth.fixed_written, operation.written)
            alive = int(min(operation.alive, fixed) + max(0, operation.alive - fixed) * share)
            operations.append(replace(_grown(operation, growth, old, batch), alive=alive))
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    memory = workload.memory
    # The peak is in the backward pass, or else in the update, which no batch changes.
    most = max((operation.alive for operation in operations), default=0)
    if not most:  # workloads of earlier versions do not say what is alive at each operation
        moving = memory.peak - memory.static - memory.inputs
        most = memory.gradients + max(0, moving - memory.gradients) * batch // old
    inputs, cast = memory.inputs * batch // old, min(cast, memory.activations)
    grown = replace(
        memory,
        inputs=inputs,
        activations=cast + (memory.activations - cast) * batch // old,
        peak=memory.static + inputs + max(most, memory.gradients * (1 + temporaries(workload))),
    )
    note = f"sizes of batch {batch} follow from those of batch {old}"
    notes = (*workload.notes, note)
    return replace(workload, batch=batch, operations=tuple(operations), memory=grown, notes=notes)


def _grown(operation: Operation, growth: Growth, old: int, new: int) -> Operation:
    if not growth.sizes:
        return operation
    sizes = {
        name: value * new // old if name in growth.sizes else value for name, value in operation.sizes.items()
    }
    read, written = min(growth.fixed_read, operation.read), min(growth.fixed_written, operation.written)
    return replace(
        operation,
        sizes=sizes,
        flops=kind_named(operation.kind).flops(sizes) if operation.flops else 0,
        read=read + (operation.read - read) * new // old,
        written=written + (operation.written - written) * new // old,
    )
