"""Whatever an image file holds, its pixels come out right or one line says why not."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from laptime.training.data.images import Crop, UnreadableImage, middle, read_into

COLOUR, GREY = (3, 32, 32), (1, 32, 32)


def whole(height: int, width: int) -> Crop:
    return Crop(0, 0, height, width)


def read(path: Path, shape: tuple[int, ...] = COLOUR, choose: Any = whole) -> NDArray[np.uint8]:
    out = np.zeros(shape, np.uint8)
    read_into(out, os.fsencode(path), choose)
    return out


def plain(colour: tuple[int, ...], mode: str = "RGB", size: tuple[int, int] = (48, 40)) -> Image.Image:
    return Image.new(mode, size, colour if len(colour) > 1 else colour[0])


RED = (200, 30, 40)


@pytest.mark.parametrize("ending", ["jpg", "png", "bmp", "gif", "tiff", "webp", "ppm"])
def test_every_format_gives_its_colours(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    plain(RED).save(path)
    means = read(path).mean(axis=(1, 2))
    assert np.abs(means - RED).max() < 6


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [
        ("L", (90,), (90, 90, 90)),
        ("1", (1,), (255, 255, 255)),
        ("RGBA", (200, 30, 40, 0), RED),
        ("LA", (90, 128), (90, 90, 90)),
        ("I;16", (32896,), (128, 128, 128)),
    ],
)
def test_png_modes_come_out_in_eight_bit_colour(
    tmp_path: Path, mode: str, colour: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    plain(colour, mode).save(tmp_path / "x.png")
    assert np.abs(read(tmp_path / "x.png").mean(axis=(1, 2)) - seen).max() <= 1


def test_a_palette_with_transparency_gives_its_colours(tmp_path: Path) -> None:
    plain(RED).quantize(4).save(tmp_path / "x.png", transparency=bytes([0, 128, 255, 255]))
    assert np.abs(read(tmp_path / "x.png").mean(axis=(1, 2)) - RED).max() <= 2


@pytest.mark.parametrize(("mode", "colour"), [("L", (90,)), ("CMYK", (0, 0, 0, 165))])
def test_grey_and_cmyk_jpegs_come_out_in_colour(tmp_path: Path, mode: str, colour: tuple[int, ...]) -> None:
    plain(colour, mode).save(tmp_path / "x.jpg")
    assert np.abs(read(tmp_path / "x.jpg").astype(int) - 90).max() <= 2


def test_a_colour_jpeg_and_png_come_out_in_grey_for_a_grey_network(tmp_path: Path) -> None:
    for name in ("x.jpg", "x.png"):
        plain((100, 100, 100)).save(tmp_path / name)
        assert read(tmp_path / name, GREY).shape == (1, 32, 32)
        assert abs(read(tmp_path / name, GREY).mean() - 100) < 2


def test_content_counts_and_not_the_name(tmp_path: Path) -> None:
    plain(RED).save(tmp_path / "x.jpg", format="PNG")
    assert np.abs(read(tmp_path / "x.jpg").mean(axis=(1, 2)) - RED).max() < 1


def test_an_image_of_one_pixel_is_enlarged(tmp_path: Path) -> None:
    for name in ("x.png", "x.jpg"):
        plain(RED, size=(1, 1)).save(tmp_path / name)
        assert np.abs(read(tmp_path / name, choose=middle).mean(axis=(1, 2)) - RED).max() < 6


def test_a_long_thin_image_is_read(tmp_path: Path) -> None:
    plain(RED, size=(2000, 2)).save(tmp_path / "x.jpg")
    assert read(tmp_path / "x.jpg", choose=middle).shape == (3, 32, 32)


def test_a_progressive_jpeg_is_read(tmp_path: Path) -> None:
    plain(RED).save(tmp_path / "x.jpg", progressive=True)
    assert np.abs(read(tmp_path / "x.jpg").mean(axis=(1, 2)) - RED).max() < 6


def gradient(height: int, width: int) -> NDArray[np.uint8]:
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([down * 255 // height, across * 255 // width, 0 * down + 99], axis=2).astype(np.uint8)


@pytest.mark.parametrize("scale", [1, 2, 5, 9, 20])
def test_a_fraction_decoded_shows_the_same_part_as_the_whole(tmp_path: Path, scale: int) -> None:
    """The same part, out of images large enough to be decoded at 1, 1/2, 1/4 and 1/8."""
    pixels = gradient(64 * scale, 80 * scale)
    (tmp_path / "x.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, 95))
    Image.fromarray(pixels).save(tmp_path / "x.png")
    part = Crop(8 * scale, 20 * scale, 32 * scale, 32 * scale)
    from_jpeg, from_png = (read(tmp_path / name, choose=lambda h, w: part) for name in ("x.jpg", "x.png"))
    assert np.abs(from_jpeg.astype(int) - from_png).mean() < 2.5


def test_a_mirrored_part_is_the_part_mirrored(tmp_path: Path) -> None:
    Image.fromarray(gradient(40, 40)).save(tmp_path / "x.png")
    straight = read(tmp_path / "x.png", choose=lambda h, w: Crop(0, 0, 40, 40))
    mirrored = read(tmp_path / "x.png", choose=lambda h, w: Crop(0, 0, 40, 40, mirrored=True))
    assert np.array_equal(mirrored, straight[:, :, ::-1])


def test_harmless_bytes_before_the_end_of_a_jpeg_are_forgiven(tmp_path: Path) -> None:
    data = simplejpeg.encode_jpeg(gradient(40, 40))
    (tmp_path / "x.jpg").write_bytes(data[:-2] + b"\x00\x01\x02\x03" + data[-2:] + b"trailing")
    assert abs(read(tmp_path / "x.jpg")[2].mean() - 99) < 3


def jpeg() -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(noise))


def png() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the file is empty"),
        (b"this is a text, not an image\n" * 9, "it is not an image"),
        (b"\xff\xd8", None),
        (b"\xff\xd8\xff\xe0 and then nothing of use", None),
        (jpeg()[: len(jpeg()) // 2], "truncated"),
        (jpeg()[:200], None),
        (png()[: len(png()) // 2], "truncated"),
        (png()[:40] + b"\x00" * 40 + png()[80:], None),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, data: bytes, why: str | None) -> None:
    (tmp_path / "x.jpg").write_bytes(data)
    with pytest.raises(UnreadableImage, match=why) as caught:
        read(tmp_path / "x.jpg")
    assert "\n" not in str(caught.value)


def test_a_header_that_claims_gigapixels_is_not_believed(tmp_path: Path) -> None:
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc0") + 5  # height and width of the frame
    data[at : at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "x.jpg").write_bytes(data)
    with pytest.raises(UnreadableImage):
        read(tmp_path / "x.jpg")


def test_an_error_that_a_worker_hands_over_is_its_last_line_again() -> None:
    said = "a.jpg cannot be read (it is empty); remove it"
    handed = (
        "Caught UnreadableImage in DataLoader worker process 0.\nOriginal Traceback (most recent last):\n"
        f"  File …\nlaptime.training.data.images.UnreadableImage: {said}\n"
    )
    assert str(UnreadableImage(handed)) == said
