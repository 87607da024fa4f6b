"""One rank's part of a step whose linear layers are split by features (tensor parallelism).

As Megatron-LM and laptime's `feature` do it: what a block computes before its attention, and before the
product that takes a wider input than the block's own, is split by columns; the product that follows by rows,
and its output is exchanged; in the backward pass, the gradient of what enters the columns. The last layer and
the loss are split by classes, and so are embeddings, whose output is exchanged. Other linear layers are split
by columns, and their output is exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from laptime.errors import PlanError
from laptime.model import LOSS_LAYER, Operation, Phase, Workload
from laptime.ops.registry import kind_named

_BLOCK = re.compile(r"^(.*?\.\d+)(?:\.|$)")
_PRODUCT = "mm"
LEAST_ROWS = 8192  # of an embedding that is split: positions and types of tokens stay whole


def block_of(layer: str) -> str:
    """The block that a layer belongs to, such as `transformer.h.0`; empty where it has none."""
    match = _BLOCK.match(layer)
    return match.group(1) if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """A linear layer's product in the forward pass."""

    layer: str
    inputs: int
    outputs: int
    read: int  # bytes of its input
    written: int
    attends: bool  # attention follows before the next layer

    @property
    def block(self) -> str:
        return block_of(self.layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSplit:
    """The operations of one rank, and the bytes that are exchanged after layers, forward and backward."""

    workload: Workload
    linear: frozenset[str]  # layers that are split
    kept_shares: Mapping[str, float]  # of a layer's activations that a rank keeps; 1 where not given
    forward_bytes: Mapping[str, float]
    backward_bytes: Mapping[str, float]


def split_features(workload: Workload, ranks: int, *, sequence: bool) -> FeatureSplit:
    """The part of one of `ranks`.

    With `sequence`, what split layers leave whole is divided along the sequence.
    """
    linear = _linear(workload)
    if not linear:
        raise PlanError(f"{workload.network} has no linear layers to split by features; leave feature out")
    rows = _rows(linear)
    last = list(linear)[-1]
    forward = {layer: float(linear[layer].written) for layer in rows}
    backward: dict[str, float] = {}
    paired = {linear[row].block for row in rows}
    fresh = True  # the next column gets an input that no column before it had
    for layer, product in linear.items():
        if layer in rows:
            fresh = True
            continue
        if product.block not in paired and layer != last:
            forward[layer] = float(product.written)
            fresh = True
        if fresh:
            backward[layer] = float(product.read)
        fresh = False
    embeddings = _embeddings(workload)
    forward |= embeddings
    operations = tuple(
        _of_embedding(operation, ranks)
        if operation.layer in embeddings
        else _part(operation, ranks, linear, rows, split_loss=last not in rows, sequence=sequence)
        for operation in workload.operations
    )
    return FeatureSplit(
        workload=replace(workload, operations=operations),
        linear=frozenset((*linear, *embeddings)),
        # Without `sequence`, what follows a product by rows is kept whole by all.
        kept_shares={layer: 1 / ranks for layer in linear if sequence or layer not in rows},
        forward_bytes=forward,
        backward_bytes=backward,
    )


def _embeddings(workload: Workload) -> dict[str, float]:
    """Layers that look rows up, with the bytes that they give."""
    looked_up = {
        operation.layer
        for operation in workload.phase(Phase.BACKWARD)
        if operation.kind == "embedding_backward" and operation.sizes["v"] >= LEAST_ROWS
    }
    found: dict[str, float] = {}
    for operation in workload.phase(Phase.FORWARD):
        if operation.layer in looked_up and operation.kind == "gather":
            found.setdefault(operation.layer, float(operation.written))
    return found


def _of_embedding(operation: Operation, ranks: int) -> Operation:
    """Each rank has a part of the rows; what is looked up is as large as before."""
    if operation.kind != "embedding_backward":
        return _divided(operation, ranks, "n") if operation.phase is Phase.UPDATE else operation
    sizes = {**operation.sizes, "v": -(-operation.sizes["v"] // ranks)}
    return replace(operation, sizes=sizes, written=operation.written // ranks)


def _part(
    operation: Operation,
    ranks: int,
    linear: Mapping[str, _Linear],
    rows: frozenset[str],
    *,
    split_loss: bool,
    sequence: bool,
) -> Operation:
    """One rank's part of an operation; what no split layer owns is computed by all."""
    layer = operation.layer
    if layer in rows:
        own = operation.kind == _PRODUCT or operation.phase is Phase.UPDATE
        return _divided(operation, ranks, "k") if own or sequence else operation
    if layer in linear or (layer == LOSS_LAYER and split_loss):
        return _divided(operation, ranks, "n")
    return operation


def _linear(workload: Workload) -> dict[str, _Linear]:
    """Layers with one product in the forward pass, in the order of the network."""
    products: dict[str, Operation] = {}
    attending: set[str] = set()
    for operation in workload.phase(Phase.FORWARD):
        if operation.kind == _PRODUCT:
            products.setdefault(operation.layer, operation)
        elif operation.kind == "attention":
            attending.add(operation.layer)
    products.pop(LOSS_LAYER, None)
    return {
        layer: _Linear(
            layer=layer,
            inputs=product.sizes["k"],
            outputs=product.sizes["n"],
            read=product.sizes["m"] * product.sizes["k"] * product.element_bytes,
            written=product.written,
            attends=layer in attending,
        )
        for layer, product in products.items()
    }


def _rows(linear: Mapping[str, _Linear]) -> frozenset[str]:
    """Layers that are split by rows: those whose input is what columns of their block gave."""
    every = list(linear.values())
    blocks_that_attend = {each.block for each in every if each.attends}
    rows: set[str] = set()
    attended = False  # in this block
    for before, product in pairwise(every):
        if before.block != product.block:
            attended = False
            continue
        if before.layer in rows:
            continue
        if before.attends:
            rows.add(product.layer)
            attended = True
        elif before.outputs == product.inputs and (attended or product.block not in blocks_that_attend):
            rows.add(product.layer)
    return frozenset(rows)


def _divided(operation: Operation, ranks: int, size: str) -> Operation:
    """One rank's part: of a product that size, of attention the heads, of all else the elements."""
    sizes = operation.sizes
    if operation.kind == _PRODUCT:
        # In the backward pass features are in the larger of these, never in the rows of the batch.
        name = size if operation.phase is Phase.FORWARD else max(("k", "n"), key=sizes.__getitem__)
    elif operation.kind.startswith("attention"):
        name = "h"
    elif operation.phase is Phase.UPDATE:
        name = "params"
    else:
        name = next((each for each in ("n", "d", "r") if each in sizes), "")
    if sizes.get(name, 0) < ranks:
        return operation
    divided = {**sizes, name: -(-sizes[name] // ranks)}
    return replace(
        operation,
        sizes=divided,
        flops=kind_named(operation.kind).flops(divided) if operation.flops else 0,
        read=operation.read // ranks,
        written=operation.written // ranks,
        alive=operation.alive // ranks,
    )
