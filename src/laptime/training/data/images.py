"""From an image file to pixels: read, decode no larger than needed, cut, resize.

JPEGs go through libjpeg-turbo (simplejpeg) with its fast transform and upsampling, whose error is far below
that of JPEG itself, and are decoded at 1/2, 1/4 or 1/8 where the part that is seen stays large enough: the
other fractions that libjpeg knows take longer than the whole. Everything else, JPEGs in CMYK and those that
libjpeg-turbo complains of included, goes through Pillow. What an image is, its content says, not its name.
A rotation noted in EXIF is ignored, as ImageNet's networks were trained.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.errors import DataError, MissingExtra
from laptime.files.read import MIB, read_bytes
from laptime.training.data.crops import Crop

Pixels = NDArray[np.uint8]  # (height, width, channels), unless said otherwise

# Of ImageNet's images, in [0, 1]; grey takes the mean of the three.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

_MOST_PIXELS = 178_956_970  # what Pillow takes for an attack: half a gigabyte of colour
_MOST_BYTES = 256 * MIB  # packed
_LARGEST_LINEAR = 2.0  # shrinking by more, two-by-two interpolation would skip pixels
_FACTORS = (8, 4, 2)


class UnreadableImage(DataError):
    """An image that no decoder takes.

    A loader's worker hands an error over as text, with its traceback; what was said is the end of that.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f"{type(self).__name__}: ", 1)[-1].strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How an image is to look: pixels along a side, and channels: 3 for colour, 1 for grey."""

    size: int
    channels: int


def read_into(out: Pixels, path: bytes, look: Look, choose: Callable[[int, int], Crop]) -> None:
    """Write the part of an image that `choose(height, width)` names to (channels, size, size)."""
    data = read_bytes(path, most=_MOST_BYTES)
    if not data:
        raise UnreadableImage("the file is empty")
    seen, part = _decoded(data, look, choose)
    cv2 = decoders()[1]
    shrink = max(seen.shape[0], seen.shape[1]) / look.size
    how = cv2.INTER_LINEAR if shrink <= _LARGEST_LINEAR else cv2.INTER_AREA
    sized = cv2.resize(seen, (look.size, look.size), interpolation=how)
    if part.mirrored:
        sized = cv2.flip(sized, 1)
    cv2.split(sized, list(out))  # into the planes of `out`


def _decoded(data: bytes, look: Look, choose: Callable[[int, int], Crop]) -> tuple[Pixels, Crop]:
    """The part that is seen, at full size or a fraction, and where in the image it lies."""
    if data[:2] == b"\xff\xd8":
        simplejpeg = decoders()[0]
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours not in ("CMYK", "YCCK") and 0 < height * width <= _MOST_PIXELS:
                part = choose(height, width)
                return _cut(_jpeg(data, height, width, part, look), part, height, width), part
        except ValueError:
            pass  # Pillow forgives what is harmless, and says what is not
    pixels = _by_pillow(data, look.channels)
    part = choose(*pixels.shape[:2])
    return _cut(pixels, part, *pixels.shape[:2]), part


def _jpeg(data: bytes, height: int, width: int, part: Crop, look: Look) -> Pixels:
    fraction = next((f for f in _FACTORS if min(part.height, part.width) >= f * look.size), 1)
    pixels: Pixels = decoders()[0].decode_jpeg(
        data,
        "RGB" if look.channels == 3 else "GRAY",
        fastdct=True,
        fastupsample=True,
        min_height=-(-height // fraction),
        min_width=-(-width // fraction),
    )
    return pixels


def _cut(pixels: Pixels, part: Crop, height: int, width: int) -> Pixels:
    """The part, out of an image that may have been decoded at a fraction of its height and width."""
    down, across = pixels.shape[0] / height, pixels.shape[1] / width
    top, left = int(part.top * down), int(part.left * across)
    bottom, right = round((part.top + part.height) * down), round((part.left + part.width) * across)
    return pixels[top : max(bottom, top + 1), left : max(right, left + 1)]


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
        import simplejpeg  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("simplejpeg", "images") from None
    try:
        import cv2
    except ImportError:
        raise MissingExtra("opencv-python-headless", "images") from None
    cv2.setNumThreads(1)  # loader workers are the parallelism; a pool of threads would not survive their fork
    return simplejpeg, cv2
