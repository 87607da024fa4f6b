"""Random parts lie within the image and depend on the seed, the epoch and the index alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laptime.training.data.images import CHANCES, chances, middle, random_part

SIDE = st.integers(1, 3000)


@given(SIDE, SIDE, st.integers(0, 10_000))
def test_every_part_lies_within_its_image(height: int, width: int, pick: int) -> None:
    drawn = chances(0, [pick], 100)[0]
    for part in (middle(height, width), random_part(height, width, drawn, mirror=True)):
        assert part.height >= 1
        assert part.width >= 1
        assert 0 <= part.top <= height - part.height
        assert 0 <= part.left <= width - part.width


def test_the_middle_of_a_256_pixel_image_is_224_pixels() -> None:
    assert middle(256, 300)[:4] == (16, 38, 224, 224)


def test_a_pick_draws_the_same_whatever_is_drawn_beside_it() -> None:
    together = chances(3, [5, 105, 7], 100)
    assert chances(3, [105], 100)[0] == together[1]


@pytest.mark.parametrize("other", [chances(3, [5], 100), chances(4, [105], 100), chances(3, [106], 100)])
def test_another_epoch_seed_or_index_draws_other_numbers(other: list[list[float]]) -> None:
    assert chances(3, [105], 100) != other


def test_an_epoch_and_index_are_the_same_in_sets_of_different_sizes() -> None:
    assert chances(0, [2 * 100 + 7], 100) == chances(0, [2 * 50 + 7], 50)


def test_chances_are_spread_evenly() -> None:
    drawn = np.array(chances(-1, list(range(4000)), 1000))
    assert drawn.shape == (4000, CHANCES)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 0.03
    assert np.abs(np.corrcoef(drawn.T) - np.eye(CHANCES)).max() < 0.1


def test_half_of_the_parts_are_mirrored_and_none_unless_asked() -> None:
    drawn = chances(0, list(range(1000)), 1000)
    mirrored = [random_part(300, 400, one, mirror=True).mirrored for one in drawn]
    assert 430 < sum(mirrored) < 570
    assert not any(random_part(300, 400, one, mirror=False).mirrored for one in drawn)


def test_areas_range_from_8_to_100_per_cent() -> None:
    drawn = chances(0, list(range(2000)), 2000)
    parts = [random_part(400, 400, one, mirror=False) for one in drawn]
    areas = np.array([part.height * part.width / 160_000 for part in parts])
    assert 0.075 < areas.min() < 0.1
    assert areas.max() > 0.9
