"""Folders of JPEGs made here: for tests, recipes and benchmarks that may not download anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laptime.errors import DataError
from laptime.train.data import zener
from laptime.train.data.images import decoders

Pixels = NDArray[np.uint8]

_QUALITY = 90  # with the texture below, about a byte for every three pixels: what ImageNet's files have
_OCTAVES = (3, 6, 12, 24, 48, 96)  # cells of cloud along a side


def write_zener_folder(
    path: Path,
    count: int,
    *,
    size: int = 32,
    noise: float = 0.1,
    classes: Sequence[str] = zener.SYMBOLS,
    seed: int = 0,
) -> int:
    """Zener cards as grey JPEGs, PATH/symbol/number.jpg; says how many were written.

    `count` cards are dealt, those of the symbols in `classes` are written.
    """
    unknown = [name for name in classes if name not in zener.SYMBOLS]
    if unknown:
        raise DataError(f"no card shows {unknown[0]!r}; the symbols are {', '.join(zener.SYMBOLS)}")
    images, labels = zener.cards(count, size=size, noise=noise, seed=seed)
    found = ((zener.SYMBOLS[label], _bytes(image[0])) for image, label in zip(images, labels, strict=True))
    return _write(path, ((name, card) for name, card in found if name in classes))


def write_image_folder(
    path: Path,
    *,
    classes: int = 10,
    per_class: int = 100,
    size: tuple[int, int] = (375, 500),
    seed: int = 0,
) -> int:
    """Colour JPEGs, PATH/class00/number.jpg; says how many were written.

    A class is a grating of its own direction, width and colours; an image is that grating, shifted and
    turned a little, under random clouds. `size` is (height, width), ImageNet's usual one by default.
    """
    digits = len(str(classes - 1))
    return _write(
        path,
        (
            (
                f"class{label:0{digits}}",
                _texture(label, classes, size, np.random.default_rng([seed, label, one])),
            )
            for label in range(classes)
            for one in range(per_class)
        ),
    )


def _write(path: Path, images: Iterator[tuple[str, Pixels]]) -> int:
    simplejpeg = decoders()[0]
    written = 0
    try:
        for written, (name, pixels) in enumerate(images, start=1):
            folder = path / name
            folder.mkdir(parents=True, exist_ok=True)
            grey = pixels.shape[2] == 1
            jpeg = simplejpeg.encode_jpeg(
                pixels, _QUALITY, "GRAY" if grey else "RGB", "Gray" if grey else "420"
            )
            (folder / f"{written:06}.jpg").write_bytes(jpeg)
    except OSError as error:
        raise DataError(f"{path} cannot be written to ({error.strerror}); name another folder") from error
    return written


def _texture(label: int, classes: int, size: tuple[int, int], random: np.random.Generator) -> Pixels:
    cv2 = decoders()[1]
    height, width = size
    down, across = np.mgrid[0:height, 0:width].astype(np.float32) / max(size)
    angle = math.pi * (label + random.uniform(-0.2, 0.2)) / classes
    waves = 8 + 24 * ((label * 0.618) % 1)  # neighbours in direction are far apart in width
    phase = random.uniform(0, 2 * math.pi)
    # Plain floats: numpy's would make the image float64, and this twice as slow.
    grating = np.sin(2 * math.pi * waves * (math.cos(angle) * across + math.sin(angle) * down) + phase)
    hue = 2 * math.pi * label / classes + np.array([0, 2, 4], np.float32) * (math.pi / 3)
    image = 128 + 40 * grating[..., None] * np.cos(hue) + 20 * np.sin(hue)
    for cells in _OCTAVES:
        cloud = random.standard_normal((cells, cells, 3), dtype=np.float32)
        image += 24 * (3 / cells) ** 0.5 * cv2.resize(cloud, (width, height), interpolation=cv2.INTER_CUBIC)
    image += 5 * random.standard_normal(image.shape, dtype=np.float32)
    pixels: Pixels = np.clip(image, 0, 255).astype(np.uint8)
    return pixels


def _bytes(image: NDArray[np.float32]) -> Pixels:
    return np.rint(image * 255).astype(np.uint8)[..., None]
