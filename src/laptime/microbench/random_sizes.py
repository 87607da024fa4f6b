"""Random sizes like those of real networks, and the tensors for them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a single operation, and the device's estimated speed."""

    largest_s: float
    store_bytes: int
    flops_per_s: float = 1e11
    bytes_per_s: float = 1e10


class Supply:
    """Random tensors, cut out of a store: to make them anew would take longer than most operations do."""

    def __init__(self, device: torch.device, *, draw: Draw, bounds: Bounds) -> None:
        self.device, self.draw, self.bounds = device, draw, bounds
        self._stores: dict[torch.dtype, Tensor] = {}

    @property
    def most(self) -> int:
        """Most elements of one tensor within the time limit."""
        held = self.bounds.store_bytes // 16
        return max(1024, min(held, int(self.bounds.bytes_per_s * self.bounds.largest_s / 12)))

    def check(self, *, flops: float = 0.0, elements: float = 0.0) -> None:
        """Raise TooLarge if that much work takes too long, or does not fit."""
        bounds = self.bounds
        seconds = max(flops / bounds.flops_per_s, 4 * elements / bounds.bytes_per_s)
        if seconds > bounds.largest_s or 4 * elements > 2 * bounds.store_bytes:
            raise TooLarge

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor to read from. Others may share its memory."""
        count = math.prod(shape)
        store = self._store(dtype)
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

    def _store(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._stores:
            values = torch.randn(_SEED_VALUES, device=self.device).to(dtype)
            count = max(1, self.bounds.store_bytes // 4 // _SEED_VALUES)
            self._stores[dtype] = values.repeat(count)
        return self._stores[dtype]
