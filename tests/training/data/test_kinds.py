"""Each kind of data gives whole batches of the right shapes, the same from a seed, and holds out honestly."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from laptime.errors import DataError, MissingExtra
from laptime.training.data import Data, NetworkInput, open_data
from laptime.training.data.kinds import DigitsData, SyntheticData, TextData, TreesData, ZenerData
from laptime.training.data.trees import AND, FALSE, NONE, NOT, OR, PADDING, TRUE, value

ANY = NetworkInput(input=None)
KINDS: list[tuple[Any, NetworkInput]] = [
    (ZenerData(samples=30, validation_samples=10), NetworkInput(input=(1, 32, 32))),
    (SyntheticData(samples=30, validation_samples=10), NetworkInput(input=(3, 8, 8), classes=4)),
    (DigitsData(), NetworkInput(input=(1, 8, 8))),
    (TextData(), NetworkInput(input=(64,), ids=128)),
    (TreesData(samples=30, validation_samples=10), ANY),
]


def batch(dataset: Any, picks: list[int] | None = None) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = dataset.__getitems__(list(range(len(dataset))) if picks is None else picks)
    return found


def first(config: Any, wanted: NetworkInput = ANY) -> Tensor:
    return batch(open_data(config, wanted).train, [0, 1])[0]


@pytest.mark.parametrize(("config", "wanted"), KINDS, ids=lambda one: getattr(one, "kind", ""))
def test_the_same_configuration_gives_the_same_data(config: Any, wanted: NetworkInput) -> None:
    one, other = open_data(config, wanted), open_data(config, wanted)
    for mine, theirs in ((one.train, other.train), (one.validation, other.validation)):
        pairs = zip(batch(mine, [0, 2, 1]), batch(theirs, [0, 2, 1]), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(("config", "wanted"), KINDS, ids=lambda one: getattr(one, "kind", ""))
def test_picks_of_later_epochs_are_samples_too(config: Any, wanted: NetworkInput) -> None:
    train: Any = open_data(config, wanted).train
    later = batch(train, [3 * len(train) + 1, 5 * len(train) + len(train) - 1])
    assert all(len(one) == 2 for one in later)


@pytest.mark.parametrize("kind", [ZenerData, SyntheticData, TreesData])
def test_another_seed_gives_other_data(kind: Any) -> None:
    wanted = NetworkInput(input=(1, 32, 32), classes=2)
    one, other = (first(kind(seed=seed), wanted) for seed in (3, 4))
    assert one.shape != other.shape or not torch.equal(one, other)


def test_a_batch_changed_in_place_leaves_the_data_alone() -> None:
    data = open_data(ZenerData(samples=5), ANY)
    batch(data.train)[0].zero_()
    assert batch(data.train)[0].any()


# -- zener ----------------------------------------------------------------------------------------------


def test_cards_held_out_are_other_cards() -> None:
    data = open_data(ZenerData(samples=25, validation_samples=25), ANY)
    train, held = batch(data.train)[0], batch(data.validation)[0]
    assert data.classes == ("circle", "cross", "waves", "square", "star")
    assert not any(torch.equal(*pair) for pair in zip(train, held, strict=True))


@pytest.mark.parametrize(
    ("wanted", "shape"), [((1, 32, 32), (1, 32, 32)), ((3, 224, 224), (3, 32, 32)), ((1024,), (1024,))]
)
def test_cards_have_the_dimensions_that_the_network_takes(
    wanted: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    assert first(ZenerData(samples=5), NetworkInput(input=wanted)).shape == (2, *shape)


def test_no_held_out_cards_are_no_validation() -> None:
    assert open_data(ZenerData(samples=5, validation_samples=0), ANY).validation is None


# -- synthetic ------------------------------------------------------------------------------------------


def test_synthetic_samples_have_the_shape_asked_for_and_labels_below_the_classes() -> None:
    data = open_data(SyntheticData(samples=200, shape=(2, 3), classes=7), NetworkInput(input=(9,), classes=5))
    inputs, labels = batch(data.train)
    assert inputs.shape == (200, 2, 3)
    assert 0.0 <= float(inputs.min()) <= float(inputs.max()) < 1.0
    assert labels.dtype == torch.int64
    assert labels.unique().tolist() == list(range(7))


@pytest.mark.parametrize("classes", [0, 12])
def test_synthetic_characters_are_whole_numbers_with_whole_numbers_as_targets(classes: int) -> None:
    wanted = NetworkInput(input=(16,), ids=12, classes=classes)
    inputs, targets = batch(open_data(SyntheticData(samples=50), wanted).train)
    assert inputs.dtype == targets.dtype == torch.int64
    assert targets.shape == (50, 16)
    assert int(inputs.max()) == int(targets.max()) == 11


def test_labels_are_zero_where_no_one_knows_the_classes() -> None:
    assert not batch(open_data(SyntheticData(samples=9), NetworkInput(input=(4,))).train)[1].any()


def test_a_network_that_does_not_tell_its_input_needs_a_shape() -> None:
    with pytest.raises(DataError, match=r"set data\.shape"):
        open_data(SyntheticData(), ANY)


def test_data_that_does_not_fit_is_one_line() -> None:
    with pytest.raises(DataError, match=r"does not fit into memory; lower data\.samples"):
        open_data(SyntheticData(samples=10**9, shape=(1000, 1000, 100)), ANY)


# -- digits ---------------------------------------------------------------------------------------------


def test_digits_are_divided_by_class_and_lie_between_0_and_1() -> None:
    data = open_data(DigitsData(validation_share=0.25), ANY)
    train, held = batch(data.train), batch(data.validation)
    assert len(train[1]) + len(held[1]) == 1797
    assert train[0].shape[1:] == (1, 8, 8)
    assert (float(train[0].min()), float(train[0].max())) == (0.0, 1.0)
    assert (held[1].bincount() - train[1].bincount() / 3).abs().max() < 1


@pytest.mark.parametrize(
    ("flat", "wanted", "shape"),
    [
        (None, (64,), (64,)),
        (None, (784,), (784,)),
        (None, (100_001,), (64,)),
        (None, (1, 32, 32), (1, 32, 32)),
        (None, (3, 16, 16), (3, 16, 16)),
        (None, (8, 8), (8, 8)),
        (True, (1, 32, 32), (64,)),
        (False, (64,), (1, 8, 8)),
    ],
)
def test_digits_come_as_the_network_takes_them(
    flat: bool | None, wanted: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    assert first(DigitsData(flat=flat), NetworkInput(input=wanted)).shape == (2, *shape)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"laptime\[digits\]"):
        open_data(DigitsData(), ANY)


# -- text -----------------------------------------------------------------------------------------------


def text_data(path: Path, content: bytes, ids: int = 256, **options: Any) -> Data:
    path.write_bytes(content)
    return open_data(TextData(path=path, **options), NetworkInput(input=None, ids=ids))


def test_targets_are_the_inputs_moved_by_one(tmp_path: Path) -> None:
    data = text_data(tmp_path / "t", bytes(range(128)) * 3, length=8)
    inputs, targets = batch(data.train)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert targets.dtype == torch.int64


def test_the_end_of_the_text_is_held_out(tmp_path: Path) -> None:
    data = text_data(tmp_path / "t", b"a" * 900 + b"b" * 100, length=9)
    train: Any = data.train
    for epoch in range(4):
        assert set(batch(train, [epoch * len(train) + len(train) - 1])[1].unique().tolist()) == {97}
    assert set(batch(data.validation)[0].unique().tolist()) == {98}


def test_the_default_text_ships_with_the_package_and_is_the_licence() -> None:
    shipped = resources.files("laptime.training.data").joinpath("licence.txt").read_bytes()
    assert shipped == (Path(__file__).parents[3] / "LICENSE").read_bytes()
    inputs, _ = batch(open_data(TextData(), NetworkInput(input=None, ids=128)).train)
    assert inputs.shape[0] > 1000
    assert int(inputs.max()) < 128


def test_characters_the_network_does_not_know_are_replaced_and_counted(tmp_path: Path) -> None:
    data = text_data(tmp_path / "t", "äöü plain ".encode() * 50, ids=128, length=8)
    assert int(batch(data.train)[0].max()) < 128
    assert data.facts["replaced"] == 150
    assert "150 characters" in data.problems()[0]
    assert text_data(tmp_path / "t", "äöü plain ".encode() * 50, length=8).problems() == ()


@pytest.mark.parametrize(
    ("content", "ids", "said"),
    [
        (b"too short", 256, "has 9 characters, too few for pieces of 64; lower data.length"),
        (b"", 256, "has 0 characters"),
        (b"x" * 999 + b"\xff", 256, "is not UTF-8 at byte 999"),
        (b"x" * 999, 64, "knows 64 characters and a text needs 128"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes, ids: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        text_data(tmp_path / "t", content, ids)


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_text_that_is_not_there_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(.+\); set data.path"):
        open_data(TextData(path=tmp_path / name), ANY)


# -- trees ----------------------------------------------------------------------------------------------


def test_half_of_the_trees_are_true() -> None:
    data = open_data(TreesData(samples=100, validation_samples=20), ANY)
    assert batch(data.train)[1].bincount().tolist() == [50, 50]
    assert batch(data.validation)[1].bincount().tolist() == [10, 10]


def test_rows_are_trees_with_children_first_and_padding_behind_the_root() -> None:
    trees, targets = batch(open_data(TreesData(samples=60, depth=4), ANY).train)
    for rows, target in zip(trees.tolist(), targets.tolist(), strict=True):
        nodes = [tuple(row) for row in rows if row[0] != PADDING]
        assert rows[len(nodes) :] == [[PADDING, NONE, NONE]] * (len(rows) - len(nodes))
        used = sorted(child for _, *children in nodes for child in children if child != NONE)
        assert used == list(range(len(nodes) - 1))  # every node but the root has one parent
        for place, (kind, left, right) in enumerate(nodes):
            assert (left == NONE) == (kind in (FALSE, TRUE))
            assert (right == NONE) == (kind not in (AND, OR))
            assert max(left, right) < place
        assert value(tuple(nodes)) == bool(target)  # type: ignore[arg-type]


def test_a_batch_is_as_wide_as_its_largest_tree() -> None:
    train = open_data(TreesData(samples=40), ANY).train
    sizes = [batch(train, [one])[0].shape[1] for one in range(40)]
    assert batch(train)[0].shape[1] == max(sizes) > min(sizes)


def test_held_out_trees_are_not_trained_on_while_there_are_others() -> None:
    assert open_data(TreesData(), ANY).facts["held_out_and_trained_on"] == 0
    assert open_data(TreesData(depth=1), ANY).facts["held_out_and_trained_on"] > 0


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (((TRUE, NONE, NONE), (NOT, 0, NONE)), False),
        (((TRUE, NONE, NONE), (FALSE, NONE, NONE), (AND, 0, 1)), False),
        (((TRUE, NONE, NONE), (FALSE, NONE, NONE), (OR, 0, 1)), True),
    ],
)
def test_a_tree_has_the_value_of_its_expression(tree: Any, expected: bool) -> None:
    assert value(tree) is expected
