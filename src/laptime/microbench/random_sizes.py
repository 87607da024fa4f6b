"""Sizes of operations to time, half of them random and half from public networks, and tensors for them.

Libraries choose kernels by exact sizes: a sweep of random ones alone says too little of the usual ones.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Chosen = TypeVar("Chosen")

_STEP = 256  # elements: tensors begin where an allocator would let them
_SEED_VALUES = 1 << 20


class TooLarge(Exception):
    """The shape would take too long on this device, or too much memory; draw another."""


class Draw:
    """Sizes, spread evenly over their orders of magnitude."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, choices: Sequence[Chosen], weights: Sequence[float] | None = None) -> Chosen:
        """A random choice."""
        return self.random.choices(choices, weights)[0]

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random.random() < share

    def between(self, low: int, high: int) -> int:
        """Log-uniform."""
        return round(math.exp(self.random.uniform(math.log(low), math.log(max(low, high)))))

    def width(self, low: int, high: int) -> int:
        """Log-uniform, and mostly round: networks have 64 channels more often than 61."""
        size = self.between(low, high)
        for step in (64, 16, 8):
            if size >= 2 * step and self.chance(0.6):
                return size // step * step
        return size

    def batch(self, most: int = 256) -> int:
        """Mostly a power of two."""
        size = self.between(1, most)
        return int(2 ** round(math.log2(size))) if self.chance(0.8) else size

    def side(self, low: int = 4, high: int = 224) -> int:
        """Of an image; often one that halving 224 leads to."""
        usual = [side for side in (7, 8, 13, 14, 16, 27, 28, 32, 55, 56, 112, 224) if low <= side <= high]
        return self.pick(usual) if usual and self.chance(0.6) else self.between(low, high)


class Supply:
    """Random tensors, cut out of a store: to make them anew would take longer than most operations do.

    `largest_s` and `store_bytes` bound a single operation, by the speeds that the device is known to reach.
    """

    def __init__(self, device: torch.device, *, draw: Draw, largest_s: float, store_bytes: int) -> None:
        self.device, self.draw, self.store_bytes = device, draw, store_bytes
        self.flops_per_s, self.bytes_per_s = 1e11, 1e10  # until they are measured
        self._largest_s = largest_s
        self._stores: dict[torch.dtype, Tensor] = {}

    @property
    def most(self) -> int:
        """Most elements of one tensor within the time limit."""
        return max(1024, min(self.store_bytes // 16, int(self.bytes_per_s * self._largest_s / 12)))

    def check(self, *, flops: float = 0.0, elements: float = 0.0) -> None:
        """Raise TooLarge if that much work takes too long, or does not fit."""
        seconds = max(flops / self.flops_per_s, 4 * elements / self.bytes_per_s)
        if seconds > self._largest_s or 4 * elements > 2 * self.store_bytes:
            raise TooLarge

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor to read from. Others may share its memory."""
        if dtype not in self._stores:
            values = torch.randn(_SEED_VALUES, device=self.device).to(dtype)
            self._stores[dtype] = values.repeat(max(1, self.store_bytes // 4 // _SEED_VALUES))
        store, count = self._stores[dtype], math.prod(shape)
        if count > len(store):
            raise TooLarge
        begin = self.draw.random.randrange((len(store) - count) // _STEP + 1) * _STEP
        return store[begin : begin + count].view(*shape)

    def own(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor to write to."""
        return self.take(shape, dtype).clone()

    def ids(self, shape: Sequence[int], below: int) -> Tensor:
        """Whole numbers, as of words or labels."""
        return torch.randint(below, tuple(shape), device=self.device)


class Window(NamedTuple):
    """A convolution without its batch: channels in and out, the image, and a window that slides over it."""

    c: int
    o: int
    h: int
    w: int
    k_h: int
    k_w: int
    s: int
    p_h: int
    p_w: int
    dilation: int = 1
    groups: int = 1

    @property
    def out(self) -> tuple[int, int]:
        """The image that it makes; nothing where the window does not fit."""
        down, across = self.h + 2 * self.p_h, self.w + 2 * self.p_w
        return (
            (down - self.dilation * (self.k_h - 1) - 1) // self.s + 1,
            (across - self.dilation * (self.k_w - 1) - 1) // self.s + 1,
        )


class Book(NamedTuple):
    """Shapes without their batch sizes."""

    windows: list[Window]
    linear: list[tuple[int, int, int]]  # rows of a sample, in, out
    batched: list[tuple[int, int, int, int, int, int]]  # of a sample, m, k, n, and 1 for each transposed side


@cache
def book() -> Book:
    """Of 70 networks from torchvision, timm and transformers; `benchmarks.shapes` wrote the file."""
    raw = json.loads((resources.files("laptime.microbench") / "shapes.json").read_text(encoding="utf-8"))
    return Book([Window(*row) for row in raw["windows"]], raw["linear"], raw["batched"])
