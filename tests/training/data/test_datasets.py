"""Folds cover every sample once, fairly by class, and pass the epoch on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from laptime.errors import DataError
from laptime.training.data.datasets import Subset, Tensors, divided, folds
from laptime.training.data.text import Pieces


class Echo(Dataset[Any]):
    """Gives back the picks."""

    def __len__(self) -> int:
        return 10

    def __getitems__(self, picks: list[int]) -> list[int]:
        return picks


def numbered(samples: int, classes: int) -> Tensors:
    return Tensors(torch.arange(samples), torch.arange(samples) % classes)


def test_a_pick_of_a_later_epoch_is_the_samples_pick_of_that_epoch() -> None:
    part = Subset(Echo(), torch.tensor([7, 2, 5]))
    assert len(part) == 3
    assert part.__getitems__([0, 2, 3, 7]) == [7, 5, 17, 22]


def test_every_sample_is_held_out_once_and_trained_on_otherwise() -> None:
    held: list[int] = []
    for train, out in folds(numbered(23, 3), 4, seed=1):
        trained, left = (part.__getitems__(list(range(len(part))))[0].tolist() for part in (train, out))
        assert sorted(trained + left) == list(range(23))
        held += left
    assert sorted(held) == list(range(23))


def test_each_fold_holds_its_share_of_each_class() -> None:
    for _, out in folds(numbered(60, 3), 5, seed=1):
        assert out.labels is not None
        assert out.labels.bincount().tolist() == [4, 4, 4]


def test_the_seed_decides_the_folds() -> None:
    first, again, other = (
        folds(numbered(30, 3), 3, seed=seed)[0][1].__getitems__([0, 1, 2])[0].tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("k", [0, 1, 11])
def test_a_number_of_folds_that_cannot_be_is_one_line(k: int) -> None:
    with pytest.raises(DataError, match=f"10 samples do not make {k} folds; choose from 2 to 10"):
        folds(Echo(), k, seed=0)


def test_a_share_of_each_class_is_divided_off() -> None:
    labels = torch.arange(100) % 4
    assert labels[divided(labels, 0.2, seed=0)].bincount().tolist() == [5, 5, 5, 5]
    assert not divided(labels, 0.0, seed=0).any()


def test_a_fold_of_a_text_shares_no_character_with_what_is_trained_on() -> None:
    text = torch.arange(4096)  # a character that is the number of its place
    pieces = Pieces(text, length=32, stride=4)
    held: list[int] = []
    for train, out in folds(pieces, 4, seed=1):
        epochs = [
            pick + epoch * len(part) for part in (train,) for epoch in range(5) for pick in range(len(part))
        ]
        seen = torch.cat([one.flatten() for one in train.__getitems__(epochs)])
        judged = torch.cat([one.flatten() for one in out.__getitems__(list(range(len(out))))])
        assert not set(seen.tolist()) & set(judged.tolist())
        assert len(train) > len(pieces) / 2
        held += out._indices.tolist()
    assert held == list(range(len(pieces)))


def test_too_few_overlapping_pieces_make_no_folds() -> None:
    with pytest.raises(DataError, match="each overlapping 8 others on either side, do not make 2 folds"):
        folds(Pieces(torch.arange(80), length=32, stride=4), 2, seed=0)
