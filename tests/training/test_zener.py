"""Zener cards are deterministic, well-formed, fair, and hard enough to need a convolution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from laptime.training.data import zener
from laptime.training.networks import registry as zoo


def test_cards_are_float32_images_in_the_unit_interval_with_int64_labels() -> None:
    images, labels = zener.cards(50)
    assert images.shape == (50, 1, 32, 32)
    assert images.dtype == np.float32
    assert labels.shape == (50,)
    assert labels.dtype == np.int64
    assert images.min() >= 0.0
    assert images.max() <= 1.0


@pytest.mark.parametrize("size", [8, 25, 33, 64])
def test_any_image_size_works(size: int) -> None:
    images, _ = zener.cards(10, size=size)
    assert images.shape == (10, 1, size, size)


def test_a_size_too_small_to_tell_symbols_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="8 pixels"):
        zener.cards(1, size=7)


def test_no_cards_are_a_valid_deal() -> None:
    images, labels = zener.cards(0)
    assert images.shape == (0, 1, 32, 32)
    assert labels.shape == (0,)


def test_same_seed_draws_the_same_cards() -> None:
    first, second = zener.cards(60, seed=4), zener.cards(60, seed=4)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_another_seed_draws_other_cards() -> None:
    first, second = zener.cards(60, seed=4), zener.cards(60, seed=5)
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1])


def test_a_longer_deal_begins_with_the_shorter_one() -> None:
    short, long = zener.cards(30), zener.cards(2000)
    assert np.array_equal(short[0], long[0][:30])
    assert np.array_equal(short[1], long[1][:30])


def test_every_pack_of_25_holds_each_symbol_five_times() -> None:
    _, labels = zener.cards(100)
    for pack in labels.reshape(4, 25):
        assert np.bincount(pack).tolist() == [5] * len(zener.SYMBOLS)


def test_symbols_are_the_five_of_the_cards() -> None:
    assert zener.SYMBOLS == ("circle", "cross", "waves", "square", "star")


def test_symbols_stay_inside_the_card() -> None:
    images, _ = zener.cards(500, noise=0.0)
    edges = np.concatenate([images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]])
    # A corner of the square may just touch the border; no stroke may run along it or be cut off by it.
    assert np.mean(edges > 0.5) < 0.01


def test_every_card_has_ink_and_mostly_paper() -> None:
    images, _ = zener.cards(500, noise=0.0)
    inked = images.mean(axis=(1, 2, 3))
    assert inked.min() > 0.03
    assert inked.max() < 0.4


def test_strokes_are_anti_aliased() -> None:
    images, _ = zener.cards(25, noise=0.0)
    assert np.mean((images > 0.0) & (images < 1.0)) > 0.02


def test_noise_changes_pixels_but_not_symbols() -> None:
    clean, noisy = zener.cards(25, noise=0.0), zener.cards(25, noise=0.2)
    assert np.array_equal(clean[1], noisy[1])
    assert not np.array_equal(clean[0], noisy[0])


@pytest.mark.parametrize("symbol", ["circle", "cross", "square", "star"])
def test_a_closed_symbol_looks_the_same_after_its_own_turn(symbol: str) -> None:
    turns = {"circle": 7, "cross": 4, "square": 4, "star": 5}[symbol]
    placement = np.full((2, 5), 0.5, np.float32)
    placement[1, 2] += 1 / turns  # the angle, as a share of a full turn
    upright, turned = zener._draw(zener._DISTANCES[symbol], placement, 64)
    assert np.abs(upright - turned).max() < 1e-3


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Steps of a few milliseconds on two threads take ten times as long when another process wants a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def accuracy_after_training(network: nn.Module, *, epochs: int, learning_rate: float) -> float:
    order = torch.Generator().manual_seed(0)
    dealt = TensorDataset(*map(torch.from_numpy, zener.cards(2000, seed=0)))
    batches = DataLoader(dealt, batch_size=32, shuffle=True, generator=order)
    unseen, answers = map(torch.from_numpy, zener.cards(500, seed=1))
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        guesses: Tensor = network(unseen).argmax(dim=1)
    return (guesses == answers).double().mean().item()


# In test_zoo_learns.py the same two learn in less time, and must learn more.
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_four_layer_network_learns_the_cards() -> None:
    torch.manual_seed(0)
    assert accuracy_after_training(zoo.build("zener4"), epochs=8, learning_rate=1e-3) > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_linear_classifier_does_not_learn_the_cards() -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, len(zener.SYMBOLS)))
    assert accuracy_after_training(linear, epochs=8, learning_rate=1e-3) < 0.6
