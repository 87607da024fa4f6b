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
from collections.abc import Callable, Iterable
from typing import Any

import torch

from laptime.measure.timeline import INPUT

ACCUMULATE = (1 << 64) - 1  # AccumulateGrad nodes carry the highest number, so that they run at once
MOST_ENTRIES = 200_000  # forwards without a backward are forgotten beyond this: nothing grows with the steps

Node = Any
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class Entries:
    """Which owner was entered at which sequence number, per thread (numbers are counted per thread)."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[list[int], list[int]]] = {}

    def enter(self, code: int) -> None:
        """Nodes made from here on belong to this owner."""
        numbers, codes = self._of_thread()
        numbers.append(sequence_number())
        codes.append(code)

    def _of_thread(self) -> tuple[list[int], list[int]]:
        return self._threads.setdefault(threading.get_ident(), ([], []))

    def clear(self) -> None:
        """Forget all entries: their graphs are gone."""
        for numbers, codes in self._threads.values():
            numbers.clear()
            codes.clear()

    def bound(self) -> None:
        """Forget the oldest entries of a loop that never runs backward."""
        for numbers, codes in self._threads.values():
            if len(numbers) > MOST_ENTRIES:
                del numbers[: -MOST_ENTRIES // 2], codes[: -MOST_ENTRIES // 2]

    def boundaries(self, roots: Iterable[Node], skip: Callable[[int], bool]) -> list[tuple[int, Node]]:
        """(owner, highest node) for each stretch of nodes reachable from the roots.

        Owners for which `skip` holds pass their nodes on to the owner entered before them.
        """
        numbers, codes = self._of_thread()
        if any(map(skip, set(codes))):
            kept = [(n, c) for n, c in zip(numbers, codes, strict=True) if not skip(c)]
            numbers, codes = [n for n, _ in kept], [c for _, c in kept]
        if not numbers:
            return []
        tops = highest_nodes(roots, numbers)
        return [(_owner(codes, group), node) for group, node in tops.items()]


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
