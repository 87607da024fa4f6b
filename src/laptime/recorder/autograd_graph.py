"""Which layer owns a node of the autograd graph, by sequence numbers; exact for every topology.

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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from laptime.recorder.timeline import INPUT

ACCUMULATE = (1 << 64) - 1  # AccumulateGrad nodes carry the highest number, so that they run at once
RETRY_EVERY = 64  # walks, before looking again for ways through a graph that had none
MOST_SHAPES = 64
MOST_STARTS = 16  # known boundaries from which a way to a hidden one is looked for
MOST_NODES = 256  # passed on such a way
MOST_ENTRIES = 200_000  # forwards without a backward are forgotten beyond this: nothing grows with the steps

Node = Any
Way = tuple[int, tuple[int, ...]]
"""How to reach a boundary from one that is known: the entry of that one, and which input at each node."""
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
        self._walks = 0
        self._ways: dict[tuple[int, ...], dict[int, Way]] = {}  # by the shape of what was entered
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
        """Drop all entries: their graphs are freed."""
        self._threads.clear()

    def keep(self) -> None:
        """Carry entries over to the next step, for a backward pass to come, without holding its graph."""
        for thread in self._threads.values():
            if len(thread.numbers) > MOST_ENTRIES:
                del thread.numbers[: MOST_ENTRIES // 2], thread.codes[: MOST_ENTRIES // 2]
                thread.done = max(0, thread.done - MOST_ENTRIES // 2)
            thread.inputs = [None] * len(thread.numbers)

    def known(self, roots: Sequence[Node]) -> list[tuple[int, Node]] | None:
        """Like `boundaries`, without a walk; None where the graph is new or keeps its boundaries hidden."""
        thread = self._of_thread()
        tops = _find(thread, roots, self._ways.get(_shape(thread), {})) if thread.numbers else None
        if tops is None:
            return None
        boundaries = _by_owner(thread.codes, tops)
        thread.done = max(tops) + 1
        thread.inputs[: thread.done] = [None] * thread.done
        return boundaries

    def boundaries(self, roots: Sequence[Node], skip: Callable[[int], bool] | None) -> list[tuple[int, Node]]:
        """(owner, highest node) for each stretch of nodes reachable from the roots, the first to run first.

        Owners for which `skip` holds pass their nodes on to the owner entered before them.
        """
        thread = self._of_thread()
        numbers, codes = thread.numbers, thread.codes
        if skip is not None:
            kept = [i for i, code in enumerate(codes) if not skip(code)]
            numbers, codes = [numbers[i] for i in kept], [codes[i] for i in kept]
        tops = highest_nodes(roots, numbers) if numbers else {}
        if skip is None and tops:
            shape = _shape(thread)
            self._walks += 1
            # Where it was tried before, graphs of this shape differ from pass to pass.
            if shape not in self._ways or not self._walks % RETRY_EVERY:
                if len(self._ways) >= MOST_SHAPES:
                    self._ways.clear()
                self._ways[shape] = _ways(thread, tops)
        return _by_owner(codes, tops)


def _shape(thread: _Thread) -> tuple[int, ...]:
    """A cheap key for a pass: a stored way that does not fit its graph is detected anyway."""
    done, codes = thread.done, thread.codes
    return done, len(codes), codes[done] if done < len(codes) else -1


def _fits(node: Node, number: int) -> bool:
    """Whether a node is the highest of a stretch that ends with this number."""
    return node is not None and node._sequence_nr() == number


def _find(thread: _Thread, roots: Sequence[Node], ways: dict[int, Way]) -> dict[int, Node] | None:
    """The highest nodes without a walk: what made the next layer's input, or what a known way leads to.

    A node is the highest of its stretch for certain if it bears the last number given out before the next
    layer was entered. None if that holds for none of them: then the graph is walked.
    """
    numbers, inputs, done = thread.numbers, thread.inputs, thread.done
    if len(roots) != 1:
        return None
    number = roots[0]._sequence_nr()
    last = bisect_right(numbers, number) - 1
    if last < done or (last + 1 < len(numbers) and numbers[last + 1] != number + 1):
        return None
    tops: dict[int, Node] = {last: roots[0]}
    for group in range(last - 1, done - 1, -1):
        number = numbers[group + 1] - 1
        if number < numbers[group]:
            continue  # nothing differentiable happened in it
        node = inputs[group + 1]
        if not _fits(node, number):
            start, turns = ways.get(group, (-1, ()))
            node = tops.get(start)
            for turn in turns:
                parents = node.next_functions if node is not None else ()
                node = parents[turn][0] if turn < len(parents) else None
            if not _fits(node, number):
                return None
        tops[group] = node
    return tops


def _ways(thread: _Thread, tops: dict[int, Node]) -> dict[int, Way]:
    """Ways to the boundaries that a walk has found and that made no layer's input: the ends of branches."""
    numbers, inputs = thread.numbers, thread.inputs
    ways: dict[int, Way] = {}
    known = sorted(tops, reverse=True)
    for place, group in enumerate(known[1:], start=1):
        number = numbers[group + 1] - 1
        if _fits(inputs[group + 1], number):
            continue
        near = reversed(known[max(1, place - MOST_STARTS) : place])
        for start in (*near, known[0]):  # what an auxiliary head makes goes straight to the loss
            turns = _turns(tops[start], number)
            if turns is not None:
                ways[group] = start, turns
                break
    return ways


def _turns(start: Node, number: int) -> tuple[int, ...] | None:
    """The shortest path from a node to the one with this number; None if it is too long."""
    queue: deque[tuple[Node, tuple[int, ...]]] = deque([(start, ())])
    seen = {start}
    while queue and len(seen) < MOST_NODES:
        node, turns = queue.popleft()
        for turn, (parent, _) in enumerate(node.next_functions):
            if parent is None or parent in seen:
                continue
            parent_number = parent._sequence_nr()
            if parent_number == number:
                return (*turns, turn)
            if number < parent_number != ACCUMULATE:
                seen.add(parent)
                queue.append((parent, (*turns, turn)))
    return None


def _by_owner(codes: list[int], tops: dict[int, Node]) -> list[tuple[int, Node]]:
    """Owners with their nodes, in the order in which the engine runs them."""
    owners = []
    for group in sorted(tops, reverse=True):
        owner = group
        while codes[owner] == INPUT and owner + 1 < len(codes):
            owner += 1  # what runs before a network's first layer belongs to that layer
        owners.append((codes[owner], tops[group]))
    return owners


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


class Boundary:
    """Calls back when the engine reaches a node, again and again, for any number of nodes.

    `node.register_prehook` makes a handle each time, 2 to 4 µs. Torch registers the hooks of a tensor with
    the tensor's node in 0.2; they are called at the same moment, and the tensor need not be the node's own.
    """

    __slots__ = ("_carrier",)

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self._carrier = torch.empty(0, device="cpu", requires_grad=True)
        self._carrier._backward_hooks = OrderedDict({0: hook})

    def put_on(self, node: Node) -> None:
        node._register_hook_dict(self._carrier)


def graph_roots(outputs: Iterable[Any]) -> list[Node]:
    """The nodes where a backward pass starts: of tensors or of gradient edges."""
    nodes = [getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs]
    return [node for node in nodes if node is not None]
