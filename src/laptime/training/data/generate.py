"""Folders of images made here: for tests, recipes and benchmarks that may not download anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np

from laptime.errors import DataError
from laptime.training.data import zener
from laptime.training.data.images import Pixels, decoders

_QUALITY = 90  # with the texture below, about a byte for every three pixels: what ImageNet's files have
_ENDINGS = {"png": ".png", "jpeg": ".jpg"}
_OCTAVES = (3, 6, 12, 24, 48, 96)  # cells of cloud along a side


def write_zener_folder(
    path: Path,
    count: int,
    *,
    size: int = 32,
    noise: float = 0.1,
    seed: int = 0,
    kind: Literal["png", "jpeg"] = "jpeg",
    tell: Callable[[str], None] = lambda symbol: None,
) -> dict[str, int]:
    """Zener cards as grey images, PATH/symbol/number.jpg; says how many of each symbol were written.

    Of `count` cards each symbol has a fifth, the first ones one more where it does not divide. `tell` hears
    of each.
    """
    # Of whole packs, since a part of one has some symbols more often than others.
    images, labels = zener.cards(-(-count // zener.PACK) * zener.PACK, size=size, noise=noise, seed=seed)
    fifth, more = divmod(count, len(zener.SYMBOLS))
    share = {name: fifth + (place < more) for place, name in enumerate(zener.SYMBOLS)}
    digits, ending = max(4, len(str(count))), _ENDINGS[kind]

    def files() -> Iterator[tuple[str, bytes]]:
        for label, name in enumerate(zener.SYMBOLS):
            for number, card in enumerate(images[labels == label][: share[name]], start=1):
                pixels = np.rint(card[0] * 255).astype(np.uint8)[..., None]
                yield f"{name}/{number:0{digits}}{ending}", _encoded(pixels, kind)
                tell(name)

    _write(path, files())
    return share


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

    def files() -> Iterator[tuple[str, bytes]]:
        for number, (label, image) in enumerate(product(range(classes), range(per_class)), start=1):
            texture = _texture(label, classes, size, np.random.default_rng([seed, label, image]))
            yield f"class{label:0{digits}}/{number:06}.jpg", _encoded(texture, "jpeg")

    return _write(path, files())


def _write(path: Path, files: Iterator[tuple[str, bytes]]) -> int:
    """Write the files, by their names below the folder; says how many there were."""
    decoders()  # a package that is missing is told before there are folders
    written = 0
    try:
        for name, content in files:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
            written += 1
    except OSError as error:
        raise DataError(f"{path} cannot be written to ({error.strerror}); name another folder") from error
    return written


def _encoded(pixels: Pixels, kind: Literal["png", "jpeg"]) -> bytes:
    simplejpeg, cv2 = decoders()
    if kind == "png":
        return bytes(cv2.imencode(".png", pixels)[1])
    colours = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
    return bytes(simplejpeg.encode_jpeg(pixels, _QUALITY, *colours))


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
