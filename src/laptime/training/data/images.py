"""From an image file to pixels: read, decode no larger than needed, crop, resize.

JPEGs go through libjpeg-turbo (simplejpeg) with its fast transform and upsampling, whose error is far below
that of JPEG itself, and are decoded at 1/2, 1/4 or 1/8 where the part that is seen stays large enough: the
other fractions that libjpeg knows take longer than the whole. Everything else, JPEGs in CMYK and those that
libjpeg-turbo complains of included, goes through Pillow. What an image is, its content says, not its name.
A rotation noted in EXIF is ignored, as ImageNet's networks were trained.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laptime.errors import DataError, MissingExtra
from laptime.files.read import MIB, read_bytes

Pixels = NDArray[np.uint8]  # (height, width, channels), unless said otherwise

# Of ImageNet's images, in [0, 1]; grey takes the mean of the three.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

_MOST_PIXELS = 178_956_970  # what Pillow takes for an attack: half a gigabyte of colour
_MOST_BYTES = 256 * MIB  # packed
_LARGEST_LINEAR = 2.0  # shrinking by more, two-by-two interpolation would skip pixels
_FACTORS = (8, 4, 2)

# A random part covers 8 to 100 % of the image and is 3:4 to 4:3, as for Inception (arXiv:1409.4842).
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
_MIDDLE = 224 / 256  # of the shorter side, as networks of 224 pixels are judged on images of 256
CHANCES = 4 * _ATTEMPTS + 1
"""Random numbers that a crop takes: four for each attempt, and one for mirroring."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class UnreadableImage(DataError):
    """An image that no decoder takes.

    A loader's worker hands an error over as text, with its traceback; what was said is the end of that.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f"{type(self).__name__}: ", 1)[-1].strip())


def read_into(out: Pixels, path: bytes, choose: Callable[[int, int], Crop]) -> None:
    """Write the part of an image that `choose(height, width)` names to `out`: (channels, size, size).

    Three channels are colour, one is grey.
    """
    data = read_bytes(path, most=_MOST_BYTES)
    if not data:
        raise UnreadableImage("the file is empty")
    channels, size, _ = out.shape
    seen, mirrored = _part_of(data, channels, size, choose)
    cv2 = decoders()[1]
    how = cv2.INTER_LINEAR if max(seen.shape[:2]) <= _LARGEST_LINEAR * size else cv2.INTER_AREA
    sized = cv2.resize(seen, (size, size), interpolation=how)
    if mirrored:
        sized = cv2.flip(sized, 1)
    cv2.split(sized, list(out))  # into the planes of `out`


def _part_of(
    data: bytes, channels: int, size: int, choose: Callable[[int, int], Crop]
) -> tuple[Pixels, bool]:
    """The part that is seen, at full size or a fraction, and whether it is mirrored."""
    pixels: Pixels | None = None
    height, width, part = 0, 0, Crop(0, 0, 0, 0)
    if data[:2] == b"\xff\xd8":
        simplejpeg = decoders()[0]
        with suppress(ValueError):  # Pillow forgives what is harmless, and says what is not
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours not in ("CMYK", "YCCK") and 0 < height * width <= _MOST_PIXELS:
                part = choose(height, width)
                fraction = next((f for f in _FACTORS if min(part.height, part.width) >= f * size), 1)
                pixels = simplejpeg.decode_jpeg(
                    data,
                    "RGB" if channels == 3 else "GRAY",
                    fastdct=True,
                    fastupsample=True,
                    min_height=-(-height // fraction),
                    min_width=-(-width // fraction),
                )
    if pixels is None:
        pixels = _by_pillow(data, channels)
        height, width = pixels.shape[:2]
        part = choose(height, width)
    down, across = pixels.shape[0] / height, pixels.shape[1] / width
    top, left = int(part.top * down), int(part.left * across)
    bottom, right = round((part.top + part.height) * down), round((part.left + part.width) * across)
    return pixels[top : max(bottom, top + 1), left : max(right, left + 1)], part.mirrored


def _by_pillow(data: bytes, channels: int) -> Pixels:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("pillow", "images") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _flat_colours(image, "RGB" if channels == 3 else "L")
    except (MemoryError, KeyboardInterrupt):
        raise
    except UnidentifiedImageError:
        raise UnreadableImage("it is not an image") from None
    except Exception as error:  # Pillow's decoders raise whatever they stumble over
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UnreadableImage(said[0]) from None


def _flat_colours(image: Any, mode: str) -> Pixels:
    """The image in eight bits per channel; what is transparent shows the colour beneath it."""
    if image.mode.startswith(("I", "F")):
        deep = np.asarray(image, np.float32)
        depth = 255.0 if deep.max(initial=0) < 256 else 65535.0
        grey = np.clip(deep * (255.0 / depth), 0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3 if mode == "RGB" else 1, axis=2)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return np.asarray(image.convert(mode)).reshape(image.height, image.width, -1)


@cache
def decoders() -> tuple[ModuleType, ModuleType]:
    """simplejpeg and OpenCV, once they are needed."""
    try:
        import cv2
        import simplejpeg  # type: ignore[import-untyped]
    except ImportError as error:
        missing = "opencv-python-headless" if error.name == "cv2" else "simplejpeg"
        raise MissingExtra(missing, "images") from None
    cv2.setNumThreads(1)  # loader workers are the parallelism; a pool of threads would not survive their fork
    return simplejpeg, cv2


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
            place = int(top * (height - down + 1)), int(left * (width - across + 1))
            return Crop(*place, down, across, mirrored)
    across = max(1, min(width, round(height * _RATIO[1])))
    down = max(1, min(height, round(width / _RATIO[0])))
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
