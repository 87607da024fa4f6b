"""A workload at another batch size, from its own sizes.

Which of an operation's sizes holds the batch follows from its kind: the rows of a linear layer, the images of
a convolution, the sequences of an attention. Where a kind leaves it open, a size that the batch divides is
taken to grow with it. So FLOPs are exact for layers as torch has them, while small operations whose size has
nothing to do with the batch but happens to be divisible by it (a mask, positions) grow too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

from laptime.errors import WorkloadError
from laptime.files.text import first_line
from laptime.model import Operation, Phase
from laptime.model.workload import Memory, Workload
from laptime.ops import kinds
from laptime.ops.optimizers import OPTIMIZERS

Grown = tuple[tuple[str, ...], int, int]  # sizes that grow, and the bytes read and written that do not
_NOTHING: Grown = ((), 0, 0)


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
        operations = [_operation(one, workload.batch, batch, weights) for one in workload.operations]
    except (KeyError, ArithmeticError) as error:  # the document of a workload can leave sizes out
        raise WorkloadError(
            f"an operation of the workload has no usable sizes ({first_line(error)}); trace it anew"
        ) from None
    return replace(
        workload,
        batch=batch,
        operations=tuple(replace(one, alive=int(one.alive * grown)) for one in operations),
        memory=_memory(workload, batch, grown),
        notes=(*workload.notes, f"sizes of batch {batch} follow from those of batch {workload.batch}"),
    )


def _operation(one: Operation, old: int, new: int, weights: set[tuple[str, int]]) -> Operation:
    if one.phase is Phase.UPDATE or _casts(one, weights):
        return one
    grows, read, written = _RULES.get(one.kind, _elements)(one, old)
    if not grows:
        return one
    sizes = {name: value * new // old if name in grows else value for name, value in one.sizes.items()}
    read, written = min(read, one.read), min(written, one.written)
    return replace(
        one,
        sizes=sizes,
        flops=kinds.flops(one.kind, sizes) if one.flops else 0,
        read=read + (one.read - read) * new // old,
        written=written + (one.written - written) * new // old,
    )


def _casts(one: Operation, weights: set[tuple[str, int]]) -> bool:
    return one.name == "aten._to_copy" and (one.layer, one.sizes["n"]) in weights


def _weights(operations: Iterable[Operation]) -> set[tuple[str, int]]:
    """Layers and the sizes of their weights and biases, which autocast copies to another type."""
    found = set()
    for one in operations:
        if one.phase is Phase.FORWARD and one.kind == "mm":
            found |= {(one.layer, one.sizes["k"] * one.sizes["n"]), (one.layer, one.sizes["n"])}
        elif one.phase is Phase.FORWARD and one.kind == "convolution":
            found |= {(one.layer, _kernel(one)), (one.layer, one.sizes["o"])}
        elif one.phase is Phase.FORWARD and one.kind == "recurrent":
            gates, h = one.sizes["gates"] * one.sizes["h"], one.sizes["h"]
            found |= {
                (one.layer, gates * width) for width in (1, one.sizes["i"], h, h * one.sizes["directions"])
            }
        elif one.phase is Phase.UPDATE:
            found.add((one.layer, one.sizes["params"]))
    return found


def _grown(workload: Workload, share: float, weights: set[tuple[str, int]]) -> float:
    """How much more is alive in a step: activations grow with the batch, gradients of weights do not."""
    before, after = (_alive(workload, one, weights) for one in (1.0, share))
    return after / before if before else 1.0


def _memory(workload: Workload, batch: int, grown: float) -> Memory:
    """The peak is in the backward pass, or else in the update, which no batch changes."""
    memory, old = workload.memory, workload.batch
    static, moving = memory.static, memory.peak - memory.static - memory.inputs
    inputs = memory.inputs * batch // old
    update = memory.gradients * (1 + _temporaries(workload))
    if moving <= update:  # then the peak says nothing of the backward pass; workloads of old have no other
        moving = max((one.alive for one in workload.operations), default=0) or moving
    peak = max(int(moving * grown), update)
    return replace(
        memory,
        inputs=inputs,
        activations=memory.activations * batch // old,
        peak=static + inputs + peak,
    )


def _temporaries(workload: Workload) -> int:
    """Tensors of the parameters' size that live during the update."""
    update = next(iter(workload.phase(Phase.UPDATE)), None)
    known = OPTIMIZERS.get(update.name.partition(".")[2]) if update is not None else None
    return known.temporaries if known is not None else 0


def _alive(workload: Workload, share: float, weights: set[tuple[str, int]]) -> float:
    """The most bytes alive in a backward pass, roughly: a layer's activations go as its gradients come."""
    forward: dict[str, int] = {}
    casts = 0  # weights in another type: they are held like activations, and do not grow
    for one in workload.operations:
        if one.phase is Phase.FORWARD:
            if _casts(one, weights):
                casts += one.written
            else:
                forward[one.layer] = forward.get(one.layer, 0) + one.written
    whole = sum(forward.values()) or 1
    grows = float(max(0, workload.memory.activations - casts))
    held, gradients, last = grows, float(casts), None
    most = held * share + casts
    for one in workload.operations:
        if one.phase is not Phase.BACKWARD:
            continue
        if one.layer != last:
            held -= grows * forward.pop(last, 0) / whole if last is not None else 0.0
            last = one.layer
        if _casts(one, weights):  # a gradient in its parameter's type takes the place of a shorter one
            most = max(most, gradients + one.written + held * share)
            gradients += one.written / 2
            continue
        kept = min(_RULES.get(one.kind, _elements)(one, workload.batch)[2], one.written)
        gradients += kept
        most = max(most, gradients + (held + 2 * (one.written - kept)) * share)
    return most


def _kernel(one: Operation) -> int:
    sizes = one.sizes
    return sizes["c"] * sizes["o"] // sizes["g"] * sizes["window"]


def _only(*names: str) -> Callable[[Operation, int], Grown]:
    """Sizes that grow where the batch divides them, with all bytes."""

    def rule(one: Operation, batch: int) -> Grown:
        return tuple(name for name in names if one.sizes.get(name, 1) % batch == 0), 0, 0

    return rule


_elements = _only("n")


def _convolution(one: Operation, batch: int) -> Grown:
    if one.sizes["n"] % batch:
        return _NOTHING
    weight = _kernel(one) * one.element_bytes
    bias = one.sizes["o"] * one.element_bytes * one.sizes.get("bias", 0)
    if one.kind == "convolution":
        return ("n",), weight + bias, 0
    return ("n",), weight, weight * one.sizes["to_weight"] + bias


def _product(one: Operation, batch: int) -> Grown:
    """Rows of a layer's input; of the product that gives its weight's gradient, the depth."""
    m, k, n = (one.sizes[name] * one.element_bytes for name in "mkn")
    transposed = one.phase is Phase.BACKWARD and one.sizes.get("ta", 0)
    order = "kmn" if transposed else "mnk"
    slot = next((name for name in order if one.sizes[name] % batch == 0), None)
    static = {"m": (k * one.sizes["n"], 0), "n": (m * one.sizes["k"], 0), "k": (0, m * one.sizes["n"])}
    if slot is None:
        return _NOTHING
    read, written = static[slot]
    if slot == "m" and one.name.endswith("addmm"):
        read += n  # a bias
    return (slot,), read, written


def _batched(one: Operation, batch: int) -> Grown:
    return (("b",), 0, 0) if one.sizes["b"] % batch == 0 else _product(one, batch)


def _rows(one: Operation, batch: int) -> Grown:
    if one.sizes["r"] % batch:
        return _NOTHING
    scale = 2 * one.sizes["d"] * one.element_bytes if one.kind.startswith("layer_norm") else 0
    return ("r",), scale, scale if one.kind == "layer_norm_backward" else 0


def _reduction(one: Operation, batch: int) -> Grown:
    """What is left of a sum grows too, unless the sum was over the batch: a bias's gradient."""
    n, o = one.sizes["n"], max(1, one.sizes["o"])
    if n % batch:
        return _NOTHING
    over_batch = n // o % batch == 0 and (
        o % batch or (one.phase is Phase.BACKWARD and not one.sizes["inner"])
    )
    return (("n",), 0, one.written) if over_batch or o % batch else (("n", "o"), 0, 0)


def _recurrent(one: Operation, batch: int) -> Grown:
    if one.sizes["b"] % batch:
        return _NOTHING
    h, directions, gates = (one.sizes[name] for name in ("h", "directions", "gates"))
    further = (one.sizes["l"] - 1) * (h * directions + h + 2)
    weights = prod((gates, h, directions, one.sizes["i"] + h + 2 + further, one.element_bytes))
    return ("b",), weights, weights if one.kind == "recurrent_backward" else 0


def _embedding(one: Operation, batch: int) -> Grown:
    return (("t",), 0, one.written) if one.sizes["t"] % batch == 0 else _NOTHING


_RULES: dict[str, Callable[[Operation, int], Grown]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution,
    "mm": _product,
    "bmm": _batched,
    "attention": _only("b"),
    "attention_backward": _only("b"),
    "recurrent": _recurrent,
    "recurrent_backward": _recurrent,
    "batch_norm": _only("n"),
    "batch_norm_backward": _only("n"),
    "layer_norm": _rows,
    "layer_norm_backward": _rows,
    "softmax": _rows,
    "softmax_backward": _rows,
    "pool": _only("n", "o"),
    "pool_backward": _only("n", "o"),
    "reduction": _reduction,
    "embedding_backward": _embedding,
}
