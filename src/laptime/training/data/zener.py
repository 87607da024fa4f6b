"""Zener cards, drawn on demand: five symbols at random places, sizes, angles and stroke widths, with noise.

Each symbol is a distance function: how far a point is from the middle of its stroke. Evaluated on the pixel
grid, a pixel's ink is the part of it that the stroke covers, so strokes are anti-aliased and no drawing
library is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from laptime.training.data import Data, NetworkInput
    from laptime.training.data.kinds import ZenerData

Floats = NDArray[np.float32]

PACK = 25  # a pack of Zener cards holds each symbol five times
_CHUNK = 256  # cards drawn together: their 32x32 grids, 1 MB each, stay in the cache
_MIN_SIZE = 8

# As shares of the image's side.
_RADIUS = (0.20, 0.34)
_STROKE = (0.05, 0.09)


def cards(
    count: int, *, size: int = 32, noise: float = 0.1, seed: int = 0
) -> tuple[Floats, NDArray[np.int64]]:
    """`count` cards as images (count, 1, size, size) in [0, 1], ink 1 on paper 0, and their labels.

    A label indexes `SYMBOLS`. Labels are dealt from shuffled packs of 25, so each symbol comes equally often.
    `noise` is the standard deviation of Gaussian noise on each pixel, before clipping. The same seed gives
    the same cards, and a longer deal begins with the shorter one.
    """
    if size < _MIN_SIZE:
        raise ValueError(f"a symbol needs {_MIN_SIZE} pixels to be told from another; got size={size}")
    dealing, placing, noising = (np.random.default_rng([seed, stream]) for stream in range(3))
    packs = -(-count // PACK)
    deal = dealing.random((packs, PACK)).argsort(axis=1) % len(SYMBOLS)
    labels = deal.reshape(-1)[:count].astype(np.int64)
    placement = placing.random((count, 5), dtype=np.float32)

    images = np.empty((count, size, size), np.float32)
    for index, name in enumerate(SYMBOLS):
        chosen = np.flatnonzero(labels == index)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            images[part] = _draw(_DISTANCES[name], placement[part], size)
    if noise:
        images += np.float32(noise) * noising.standard_normal(images.shape, dtype=np.float32)
        np.clip(images, 0.0, 1.0, out=images)
    return images[:, None], labels


def open_data(config: ZenerData, wanted: NetworkInput) -> Data:
    """Cards dealt once, before the training: drawing takes tens of µs, and no step should wait for it."""
    import torch

    from laptime.training.data import Data
    from laptime.training.data.datasets import Tensors, enough_memory, shaped, whole_seed

    def deal(count: int, *, stream: int) -> Tensors:
        seed = whole_seed(config.seed, stream)
        with enough_memory("data.samples or data.size"):
            images, labels = map(
                torch.from_numpy, cards(count, size=config.size, noise=config.noise, seed=seed)
            )
            return Tensors(shaped(images, wanted.input), labels)

    return Data(
        train=deal(config.samples, stream=0),
        validation=deal(config.validation_samples, stream=1) if config.validation_samples else None,
        classes=SYMBOLS,
        facts={"seed": config.seed},
    )


def _draw(distance: Callable[[Floats, Floats], Floats], placement: Floats, size: int) -> Floats:
    """The ink of one symbol at several placements: rows of numbers in [0, 1), see the unpacking."""
    radius, stroke, angle, x_place, y_place = (column[:, None, None] for column in placement.T)
    radius = size * _between(*_RADIUS, radius)
    # A stroke thinner than a pixel would come out faint.
    half_stroke = np.float32(0.5) * np.maximum(size * _between(*_STROKE, stroke), np.float32(1.0))
    margin = radius + half_stroke
    x_centre, y_centre = (_between(margin, size - margin, place) for place in (x_place, y_place))

    pixels = np.arange(size, dtype=np.float32) + np.float32(0.5)
    across = (pixels[None, None, :] - x_centre) / radius
    down = (pixels[None, :, None] - y_centre) / radius
    cos, sin = np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)
    pixels_away = radius * distance(cos * across + sin * down, cos * down - sin * across)
    return np.clip(half_stroke + np.float32(0.5) - pixels_away, 0.0, 1.0)


def _between(low: float | Floats, high: float | Floats, share: Floats) -> Floats:
    return (low + (high - low) * share).astype(np.float32)


# Distances below are from the middle of the stroke, in units of the symbol's radius.


def _circle(x: Floats, y: Floats) -> Floats:
    return np.abs(np.hypot(x, y) - np.float32(0.9))


def _cross(x: Floats, y: Floats) -> Floats:
    x, y = np.abs(x), np.abs(y)
    along, aside = np.maximum(x, y), np.minimum(x, y)  # the nearer bar, by symmetry
    return np.hypot(np.maximum(along - np.float32(0.95), 0.0), aside)


def _waves(x: Floats, y: Floats) -> Floats:
    """Three parallel sine lines; height over slope is close enough to distance within a stroke."""
    amplitude, frequency, spacing, half_length = (np.float32(v) for v in (0.16, 5.2, 0.56, 0.85))
    height = y - amplitude * np.sin(frequency * x)
    height -= spacing * np.clip(np.rint(height / spacing), -1.0, 1.0)  # from the nearest of the three
    slope = amplitude * frequency * np.cos(frequency * x)
    beyond_end = np.maximum(np.abs(x) - half_length, 0.0)
    away: Floats = np.hypot(height / np.hypot(slope, np.float32(1.0)), beyond_end)
    return away


def _square(x: Floats, y: Floats) -> Floats:
    return np.abs(np.maximum(np.abs(x), np.abs(y)) - np.float32(0.72))


def _star(x: Floats, y: Floats) -> Floats:
    """The outline of a pentagram, folded ten times until one edge is left, from a tip to a notch."""
    fifth = np.float32(2 * np.pi / 5)
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    angle = np.abs(angle - fifth * np.rint(angle / fifth))
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    notch = 0.42  # a pentagram has 0.38; a little fatter stays open in the middle at 32 pixels
    edge_x, edge_y = (np.float32(v) for v in (notch * np.cos(np.pi / 5) - 1, notch * np.sin(np.pi / 5)))
    share = np.clip(((x - 1) * edge_x + y * edge_y) / (edge_x**2 + edge_y**2), 0.0, 1.0)
    return np.hypot(x - 1 - share * edge_x, y - share * edge_y)


_DISTANCES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": _circle,
    "cross": _cross,
    "waves": _waves,
    "square": _square,
    "star": _star,
}

SYMBOLS: tuple[str, ...] = tuple(_DISTANCES)
"""The five symbols; a card's label is its symbol's place here."""
