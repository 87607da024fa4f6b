"""Arithmetic that the features of several kinds share."""

from __future__ import annotations

import math
from collections.abc import Mapping

TILES = 32, 64, 128, 256  # of outputs that a matrix kernel computes together, along either side


def log2(value: float) -> float:
    """The logarithm; -1 where there is none."""
    return math.log2(value) if value > 0 else -1.0


def filled(count: float, tile: int) -> float:
    """The share of whole tiles that is used."""
    return count / (math.ceil(count / tile) * tile)


def waves(rows: float, columns: float, groups: int, units: int = 132) -> float:
    """How often all multiprocessors are filled with tiles of 128; beyond thirty it no longer matters."""
    return min(30.0, math.ceil(rows / 128) * math.ceil(columns / 128) * groups / units)


def row_features(sizes: Mapping[str, int]) -> tuple[float, ...]:
    """Of norms and softmax: rows, their width, and whether a logarithm is taken."""
    return log2(sizes["r"]), log2(sizes["d"]), float(sizes["d"] % 4 == 0), float(sizes.get("log", 0))
