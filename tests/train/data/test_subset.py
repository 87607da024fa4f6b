"""Folds cover every sample once, fairly by class, and pass the epoch on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from laptime.errors import DataError
from laptime.train.data.subset import Subset, divided, folds
from laptime.train.data.tensors import Tensors


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
