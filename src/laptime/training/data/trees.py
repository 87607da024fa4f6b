"""Truth values put together by `not`, `and` and `or`, as trees; the target is the value of the whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from laptime.training.data import Data, NetworkInput
from laptime.training.data.datasets import whole_seed
from laptime.training.data.kinds import TreesData

PADDING, FALSE, TRUE, NOT, AND, OR = range(6)
NONE = -1  # no child there

Node = tuple[int, int, int]  # kind, left child, right child
Tree = tuple[Node, ...]  # children before their parents; the root is the last

_LEAF = 0.25  # of the nodes below the root: with two children in most others, trees grow to their full depth
_TRIES = 50  # at finding a tree of the right value that was not met before; shallow trees are soon all met


class Trees(Dataset[Any]):
    """A batch is (trees, targets): (samples, nodes, 3) rows of (kind, left, right), padded, and 0 or 1.

    Children are row numbers within the sample or -1, and come before their parents; the root is the last row
    that is not padding.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._nodes = torch.tensor([node for tree in trees for node in tree])
        self._sizes = torch.tensor([len(tree) for tree in trees])
        self._starts = self._sizes.cumsum(0) - self._sizes
        self.labels = torch.tensor([value(tree) for tree in trees], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, picks: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(picks) % len(self)
        sizes = self._sizes[chosen]
        row = torch.arange(int(sizes.max()))
        there = row < sizes[:, None]
        batch = torch.tensor([PADDING, NONE, NONE]).repeat(len(picks), len(row), 1)
        batch[there] = self._nodes[(self._starts[chosen, None] + row)[there]]
        return batch, self.labels[chosen]


def open_data(config: TreesData, wanted: NetworkInput) -> Data:
    """As many true trees as false ones. No held-out tree is trained on, as long as there are others."""
    trained: set[Tree] = set()
    train = _grow(config.samples, config.depth, whole_seed(config.seed, 0), avoid=trained)
    trained.update(train)
    held = _grow(config.validation_samples, config.depth, whole_seed(config.seed, 1), avoid=trained)
    return Data(
        train=Trees(train),
        validation=Trees(held) if held else None,
        classes=("false", "true"),
        facts={
            "largest": max(map(len, train)),
            "held_out_and_trained_on": sum(tree in trained for tree in held),
        },
    )


def value(tree: Tree) -> bool:
    """Whether the expression is true."""
    values: list[bool] = []
    for kind, left, right in tree:
        if kind in (FALSE, TRUE):
            values.append(kind == TRUE)
        elif kind == NOT:
            values.append(not values[left])
        else:
            both = values[left], values[right]
            values.append(all(both) if kind == AND else any(both))
    return values[-1]


def _grow(count: int, depth: int, seed: int, *, avoid: set[Tree]) -> list[Tree]:
    chance = random.Random(seed)
    targets = [bool(index % 2) for index in range(count)]
    chance.shuffle(targets)
    return [_tree(chance, depth, target, avoid) for target in targets]


def _tree(chance: random.Random, depth: int, target: bool, avoid: set[Tree]) -> Tree:
    """A tree of the value asked for. `and` and `or` are equally likely, so every second one has it."""
    tries = 0
    while True:
        nodes: list[Node] = []
        _branch(chance, depth, nodes, root=True)
        tree = tuple(nodes)
        if value(tree) == target:
            tries += 1
            if tree not in avoid or tries == _TRIES:
                return tree


def _branch(chance: random.Random, depth: int, nodes: list[Node], *, root: bool = False) -> int:
    """Put a random tree behind the nodes, and say where its root is."""
    if not depth or (not root and chance.random() < _LEAF):
        nodes.append((chance.choice((FALSE, TRUE)), NONE, NONE))
    else:
        kind = chance.choices((NOT, AND, OR), (1, 2, 2))[0]
        left = _branch(chance, depth - 1, nodes)
        right = NONE if kind == NOT else _branch(chance, depth - 1, nodes)
        nodes.append((kind, left, right))
    return len(nodes) - 1
