"""Shapes that networks really have: of 70 from torchvision, timm and transformers, without their batch sizes.

Libraries choose kernels by exact sizes: a sweep of random ones alone says too little of the usual ones.
`python -m benchmarks.shapes` wrote the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A convolution without its batch: channels in and out, the image, and a window that slides over it."""

    c: int
    o: int
    h: int
    w: int
    k: tuple[int, int]
    s: int = 1
    p: tuple[int, int] = (0, 0)
    dilation: int = 1
    groups: int = 1

    @property
    def out(self) -> tuple[int, int]:
        """The image that it makes; nothing where the window does not fit."""
        sides = zip((self.h, self.w), self.k, self.p, strict=True)
        return tuple((side + 2 * p - self.dilation * (k - 1) - 1) // self.s + 1 for side, k, p in sides)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Convolutions; linear layers: rows of a sample, in, out; batched products: of a sample, m, k, n."""

    windows: tuple[Window, ...]
    linear: tuple[tuple[int, int, int], ...]
    batched: tuple[tuple[int, int, int, int, bool, bool], ...]  # and whether either side is transposed


@cache
def book() -> Book:
    """The shapes that ship with laptime."""
    text = (resources.files("laptime.microbench") / "shapes.json").read_text(encoding="utf-8")
    raw = json.loads(text)
    return Book(
        windows=tuple(
            Window(c=c, o=o, h=h, w=w, k=(k, m), s=s, p=(p, q), dilation=d, groups=g)
            for c, o, h, w, k, m, s, p, q, d, g in raw["windows"]
        ),
        linear=tuple((rows, a, b) for rows, a, b in raw["linear"]),
        batched=tuple((b, m, k, n, bool(ta), bool(tb)) for b, m, k, n, ta, tb in raw["batched"]),
    )
