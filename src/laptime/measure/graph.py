"""Who owns a node of the autograd graph: told by sequence numbers, exact for every topology.

Each node takes the next sequence number of the thread that creates it. If layer i was entered at number s(i),
its nodes, functional operations included, have the numbers from s(i) up to s(i+1). The engine always runs
the ready node with the highest number, and a node's consumers all have higher numbers than itself, so nodes
run in descending order and a layer's nodes are contiguous in the backward pass. One prehook on the highest
node of each layer is therefore the exact boundary. `AccumulateGrad` runs at once, inside the interval of the
layer whose node produced the gradient.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from laptime.measure.timeline import INPUT

ACCUMULATE = (1 << 64) - 1  # AccumulateGrad nodes carry the highest number, so that they run at once
RETRY_EVERY = 64
MOST_ENTRIES = 200_000  # forwards without a backward are forgotten beyond this: nothing grows with the steps

Node = Any
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


@dataclass(slots=True)
class _Thread:
    """What was entered on one thread: parallel lists, one item per entry."""

    numbers: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)  # the node that made the entered layer's input, if any
    done: int = 0  # entries before this one have their boundaries


class Entries:
    """Which owner was entered at which sequence number, per thread (numbers are counted per thread)."""

    def __init__(self) -> None:
        self.chained = True  # whether layers are asked for the node that made their input
        self._walks = 0
        self._threads: dict[int, _Thread] = {}

    def enter(self, code: int, node: Node = None) -> None:
        """Nodes made from here on belong to this owner; `node` made its input."""
        thread = self._of_thread()
        thread.numbers.append(sequence_number())
        thread.codes.append(code)
        thread.inputs.append(node)

    def leave(self) -> None:
        """Take the last entry back: nodes go on belonging to the owner before it."""
        thread = self._of_thread()
        if thread.numbers:
            del thread.numbers[-1], thread.codes[-1], thread.inputs[-1]

    def _of_thread(self) -> _Thread:
        ident = threading.get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = _Thread()
        return thread

    def clear(self) -> None:
        """Forget all entries: their graphs are gone."""
        self._threads.clear()

    def keep(self) -> None:
        """Carry entries over to the next step, for a backward pass to come, without holding its graph."""
        for thread in self._threads.values():
            if len(thread.numbers) > MOST_ENTRIES:
                del thread.numbers[: MOST_ENTRIES // 2], thread.codes[: MOST_ENTRIES // 2]
                thread.done = max(0, thread.done - MOST_ENTRIES // 2)
            thread.inputs = [None] * len(thread.numbers)

    def chain(self, roots: Sequence[Node]) -> list[tuple[int, Node]] | None:
        """Like `boundaries`, without a walk; None where the layers are not a chain."""
        thread = self._of_thread()
        tops = (
            _tops_from_inputs(roots, thread.numbers, thread.inputs, thread.done) if thread.numbers else None
        )
        if tops is None:
            # Asking each layer for its input's node is wasted on a network with branches; try again at times.
            self._walks += 1
            self.chained = self._walks % RETRY_EVERY == 0
            return None
        thread.done = max(tops) + 1
        thread.inputs[: thread.done] = [None] * thread.done
        return [(_owner(thread.codes, group), node) for group, node in tops.items()]

    def boundaries(self, roots: Sequence[Node], skip: Callable[[int], bool] | None) -> list[tuple[int, Node]]:
        """(owner, highest node) for each stretch of nodes reachable from the roots.

        Owners for which `skip` holds pass their nodes on to the owner entered before them.
        """
        thread = self._of_thread()
        numbers, codes = thread.numbers, thread.codes
        if skip is not None:
            kept = [i for i, code in enumerate(codes) if not skip(code)]
            numbers, codes = [numbers[i] for i in kept], [codes[i] for i in kept]
        tops = highest_nodes(roots, numbers) if numbers else {}
        return [(_owner(codes, group), node) for group, node in tops.items()]


def _tops_from_inputs(
    roots: Sequence[Node], numbers: list[int], inputs: list[Node], done: int
) -> dict[int, Node] | None:
    """The highest nodes without a walk, where every stretch ends in the input of the next layer: a chain.

    The node that made a layer's input is the highest of the stretch before it exactly if it bears the last
    number given out before the layer was entered. None if any stretch ends otherwise: then walk.
    """
    if len(roots) != 1:
        return None
    number = roots[0]._sequence_nr()
    last = bisect_right(numbers, number) - 1
    if last < done or (last + 1 < len(numbers) and numbers[last + 1] != number + 1):
        return None
    tops: dict[int, Node] = {last: roots[0]}
    for group in range(last - 1, done - 1, -1):
        if numbers[group] == numbers[group + 1]:
            continue  # nothing differentiable happened in it
        node = inputs[group + 1]
        if node is None or node._sequence_nr() != numbers[group + 1] - 1:
            return None
        tops[group] = node
    return tops


def _owner(codes: list[int], group: int) -> int:
    """What runs before a network's first layer belongs to that layer."""
    while codes[group] == INPUT and group + 1 < len(codes):
        group += 1
    return codes[group]


def highest_nodes(roots: Iterable[Node], numbers: list[int]) -> dict[int, Node]:
    """The node with the highest sequence number in each stretch [numbers[i], numbers[i + 1])."""
    best: dict[int, int] = {}
    tops: dict[int, Node] = {}
    stack = [root for root in roots if root is not None]
    seen = set(stack)
    oldest = numbers[0]
    while stack:
        node = stack.pop()
        number = node._sequence_nr()
        if number == ACCUMULATE or number < oldest:
            continue  # a leaf, or made before the first entry: its inputs are older still
        group = bisect_right(numbers, number) - 1
        if number > best.get(group, -1):
            best[group] = number
            tops[group] = node
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return tops


def graph_roots(outputs: Iterable[Any]) -> list[Node]:
    """The nodes where a backward pass starts: of tensors or of gradient edges."""
    nodes = [getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs]
    return [node for node in nodes if node is not None]
