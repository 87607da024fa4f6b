"""Generated folders hold what they say, look different by class, and are the same each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from laptime.errors import DataError
from laptime.training.data.generate import write_image_folder, write_zener_folder


def files(path: Path) -> dict[str, list[Path]]:
    return {one.name: sorted(one.iterdir()) for one in sorted(path.iterdir())}


def test_a_folder_of_textures_has_a_folder_per_class(tmp_path: Path) -> None:
    assert write_image_folder(tmp_path, classes=3, per_class=2, size=(40, 60)) == 6
    found = files(tmp_path)
    assert list(found) == ["class0", "class1", "class2"]
    assert [len(one) for one in found.values()] == [2, 2, 2]
    assert simplejpeg.decode_jpeg(found["class1"][0].read_bytes()).shape == (40, 60, 3)


def test_the_same_seed_writes_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_image_folder(tmp_path / name, classes=1, per_class=1, size=(32, 32), seed=seed)
    a, b, c = (next((tmp_path / name).glob("*/*.jpg")).read_bytes() for name in "abc")
    assert a == b != c


def test_a_mean_colour_tells_textures_apart(tmp_path: Path) -> None:
    write_image_folder(tmp_path, classes=2, per_class=6, size=(64, 64))
    means = [
        np.array([simplejpeg.decode_jpeg(one.read_bytes()).mean(axis=(0, 1)) for one in found])
        for found in files(tmp_path).values()
    ]
    middle = (means[0].mean(axis=0) + means[1].mean(axis=0)) / 2
    direction = means[1].mean(axis=0) - means[0].mean(axis=0)
    sides = [((one - middle) @ direction > 0).mean() for one in means]
    assert sides[0] <= 0.2
    assert sides[1] >= 0.8


def test_cards_are_written_as_grey_images_of_each_symbol(tmp_path: Path) -> None:
    written = write_zener_folder(tmp_path, 52, size=24)
    assert written == {"circle": 11, "cross": 11, "waves": 10, "square": 10, "star": 10}
    found = files(tmp_path)
    assert {name: len(cards) for name, cards in found.items()} == written
    assert simplejpeg.decode_jpeg_header(found["star"][0].read_bytes())[:3] == (24, 24, "Gray")


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be written to"):
        write_image_folder(tmp_path / "file", classes=1, per_class=1, size=(16, 16))
