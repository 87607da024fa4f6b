"""Crops of images: the middle, or a random crop that depends only on seed, epoch and index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A random part covers 8 to 100 % of the image and is 3:4 to 4:3, as for Inception (arXiv:1409.4842).
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
_MIDDLE = 224 / 256  # of the shorter side, as networks of 224 pixels are judged on images of 256

CHANCES = 4 * _ATTEMPTS + 1
"""Random numbers that a crop takes: four for each attempt, and one for mirroring."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Crop(NamedTuple):
    """A rectangle of an image, in pixels, mirrored or not."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False


def middle(height: int, width: int) -> Crop:
    """A square in the middle, a little smaller than the image."""
    side = max(1, round(min(height, width) * _MIDDLE))
    return Crop((height - side) // 2, (width - side) // 2, side, side)


def random_part(height: int, width: int, chances: Sequence[float], *, mirror: bool) -> Crop:
    """A crop of random area, shape and place; the largest possible one for very narrow images."""
    mirrored = mirror and chances[-1] < 0.5
    for attempt in range(0, 4 * _ATTEMPTS, 4):
        area, ratio, top, left = chances[attempt : attempt + 4]
        pixels = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * area)
        shape = _RATIO[0] * (_RATIO[1] / _RATIO[0]) ** ratio
        across, down = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < across <= width and 0 < down <= height:
            return Crop(
                int(top * (height - down + 1)), int(left * (width - across + 1)), down, across, mirrored
            )
    across, down = (
        max(1, min(width, round(height * _RATIO[1]))),
        max(1, min(height, round(width / _RATIO[0]))),
    )
    return Crop((height - down) // 2, (width - across) // 2, down, across, mirrored)


def chances(seed: int, picks: Sequence[int], samples: int) -> list[list[float]]:
    """Numbers in [0, 1) for each pick that depend on nothing but the seed, the epoch and the index.

    A hash, not a generator: no process has to know what another one drew (splitmix64, Steele et al. 2014).
    """
    chosen = np.asarray(picks, np.uint64)
    count = np.uint64(samples)
    key = _mixed(np.full(len(picks), seed % 2**64, np.uint64))
    key = _mixed(_mixed(key + chosen // count) + chosen % count)
    table = _mixed(key[:, None] + _GOLDEN * np.arange(1, CHANCES + 1, dtype=np.uint64))
    drawn: list[list[float]] = ((table >> np.uint64(11)) * 2.0**-53).tolist()
    return drawn


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    number = number + _GOLDEN  # overflow wraps around, as splitmix64 needs
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
