"""A folder of images becomes the same batches in any process, and whatever is wrong with it is one line."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from laptime.errors import DataError
from laptime.training.data import Data, NetworkInput, open_data
from laptime.training.data.datasets import folds
from laptime.training.data.folder import FLOATS, Floats
from laptime.training.data.generate import write_image_folder, write_zener_folder
from laptime.training.data.kinds import FolderData

COLOUR, GREY = NetworkInput(input=(3, 224, 224)), NetworkInput(input=(1, 32, 32))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images"
    write_image_folder(path, classes=3, per_class=5, size=(50, 60))
    return path


def opened(path: Path, wanted: NetworkInput = COLOUR, **options: Any) -> Data:
    return open_data(FolderData(path=path, **{"size": 32, **options}), wanted)


def batch(data: Data, picks: list[int]) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = data.train.__getitems__(picks)  # type: ignore[attr-defined]
    return found


def length(dataset: Any) -> int:
    return len(dataset)


def test_a_batch_is_normalised_images_and_their_classes(images: Path) -> None:
    data = opened(images, validation_share=0.0)
    pixels, labels = batch(data, [0, 5, 14])
    assert pixels.shape == (3, 3, 32, 32)
    assert pixels.dtype == torch.float32
    assert labels.tolist() == [0, 1, 2]
    assert data.classes == ("class0", "class1", "class2")
    assert data.validation is None


def test_black_and_white_are_normalised_by_imagenets_figures(tmp_path: Path) -> None:
    for name, level in (("black", 0), ("white", 255)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 20), (level,) * 3).save(tmp_path / name / "x.png")
    pixels, _ = batch(opened(tmp_path, validation_share=0.0), [0, 1])
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(pixels[0].amax((1, 2)), -mean / deviation, atol=1e-4)
    assert torch.allclose(pixels[1].amin((1, 2)), (1 - mean) / deviation, atol=1e-4)


def test_a_network_of_one_channel_is_given_grey_images(tmp_path: Path) -> None:
    write_zener_folder(tmp_path, 25)
    assert batch(opened(tmp_path, GREY), [0, 1])[0].shape == (2, 1, 32, 32)


def test_a_share_of_each_class_is_held_out_and_stays_so(images: Path) -> None:
    first, second = opened(images), opened(images)
    assert first.facts["train_images"] == {f"class{label}": 4 for label in range(3)}
    assert first.facts["validation_images"] == {f"class{label}": 1 for label in range(3)}
    assert first.validation is not None
    assert (first.train._files == second.train._files).all()  # type: ignore[attr-defined]
    held = set(first.validation._files)  # type: ignore[attr-defined]
    assert held.isdisjoint(first.train._files)  # type: ignore[attr-defined]


def test_folders_called_train_and_val_are_used_as_they_are(tmp_path: Path) -> None:
    write_image_folder(tmp_path / "train", classes=2, per_class=4, size=(20, 20))
    write_image_folder(tmp_path / "val", classes=2, per_class=3, size=(20, 20), seed=1)
    data = opened(tmp_path)
    assert (length(data.train), length(data.validation)) == (8, 6)
    assert data.facts["validation_path"] == str(tmp_path / "val")


def test_a_class_called_train_is_a_class(images: Path) -> None:
    (images / "class0").rename(images / "train")
    assert opened(images).classes == ("class1", "class2", "train")


def test_classes_are_chosen_by_folder_or_readable_name_in_the_order_asked_for(images: Path) -> None:
    labels = images.parent / "labels.txt"
    labels.write_text("# folders\nclass0 a tench, a fish\n\nclass2 cat\n")
    data = opened(images, labels=labels, classes=("cat", "class1"))
    assert data.classes == ("cat", "class1")
    assert data.facts["labels"] == {"class2": "cat", "class1": "class1"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("l.toml", 'class0 = "fish"'), ("l.json", '{"class0": "fish"}'), ("l.txt", "class0 fish")],
)
def test_label_files_are_toml_json_or_lines(images: Path, name: str, text: str) -> None:
    (images.parent / name).write_text(text)
    assert opened(images, labels=images.parent / name).classes == ("fish", "class1", "class2")


def test_at_most_so_many_images_of_each_class_are_taken(images: Path) -> None:
    assert length(opened(images, per_class=2, validation_share=0.0).train) == 6


def test_other_files_are_ignored_and_counted(images: Path) -> None:
    (images / "class0" / "notes.txt").write_text("x")
    (images / "class0" / "._000001.jpg").write_text("x")
    (images / "class0" / "more").mkdir()
    (images / "class0" / "000001.jpg").rename(images / "class0" / "more" / "1.JPEG")
    data = opened(images, validation_share=0.0)
    assert length(data.train) == 15
    assert data.facts["ignored_files"] == 1


# -- augmentation ---------------------------------------------------------------------------------------


def test_an_epoch_and_index_give_the_same_crop_again_and_another_epoch_another(images: Path) -> None:
    data = opened(images, validation_share=0.0)
    first, again, later = batch(data, [3, 4])[0], batch(data, [4, 3])[0], batch(data, [15 + 3, 15 + 4])[0]
    assert torch.equal(first, again.flip(0))
    assert not torch.equal(first, later)


def test_another_training_seed_gives_other_crops(images: Path) -> None:
    one, other = (
        batch(opened(images, NetworkInput(input=(3, 32, 32), seed=seed)), [0, 1])[0] for seed in (0, 1)
    )
    assert not torch.equal(one, other)


def test_without_augmentation_all_epochs_are_the_same(images: Path) -> None:
    data = opened(images, augment="none", validation_share=0.0)
    assert torch.equal(batch(data, [3])[0], batch(data, [15 + 3])[0])


def test_a_fold_held_out_is_not_augmented(images: Path) -> None:
    data = opened(images, validation_share=0.0)
    chosen, held = folds(data.train, 5, seed=0)[0]
    assert torch.equal(held.__getitems__([1])[0], held.__getitems__([1 + len(held)])[0])
    assert not torch.equal(chosen.__getitems__([1])[0], chosen.__getitems__([1 + len(chosen)])[0])


def test_a_dataset_survives_pickling(images: Path) -> None:
    data = opened(images)
    copied = pickle.loads(pickle.dumps(data.train))
    assert torch.equal(batch(data, [1, 2])[0], copied.__getitems__([1, 2])[0])


# -- workers --------------------------------------------------------------------------------------------


def as_it_is(found: Any) -> Any:
    return found


def by_worker(data: Data, picks: list[int], context: str = "fork") -> tuple[Tensor, Tensor]:
    loader: DataLoader[Any] = DataLoader(
        data.train, batch_sampler=[picks], collate_fn=as_it_is, num_workers=1, multiprocessing_context=context
    )
    batches = iter(loader)
    try:
        return next(batches)  # type: ignore[no-any-return]
    finally:  # an error keeps them alive, and the garbage collector waits five seconds for the worker
        batches._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_gives_the_batch_that_this_process_gives(images: Path, context: str) -> None:
    data = opened(images, validation_share=0.0)
    picks = [2, 17, 40]
    here, there = batch(data, picks), by_worker(data, picks, context)
    assert type(there[0]) is Tensor
    assert torch.equal(here[0], there[0])
    assert torch.equal(here[1], there[1])


def test_what_a_worker_could_not_read_is_reported_here(images: Path) -> None:
    (images / "class1" / "000007.jpg").write_bytes(b"")
    data = opened(images, validation_share=0.0)
    assert list(data.problems()) == []
    by_worker(data, list(range(15)))
    (problem,) = data.problems()
    assert problem.startswith("1 image could not be read")
    assert problem.endswith("class1/000007.jpg")


def test_a_worker_that_refuses_an_image_says_one_line(images: Path) -> None:
    (images / "class1" / "000007.jpg").write_bytes(b"")
    data = opened(images, validation_share=0.0, on_corrupt="refuse")
    with pytest.raises(
        DataError, match=r"000007\.jpg cannot be read \(the file is empty\); remove it"
    ) as caught:
        by_worker(data, list(range(15)))
    assert "\n" not in str(caught.value)


# -- memory ---------------------------------------------------------------------------------------------


def test_floats_are_used_again_only_when_nothing_looks_at_them() -> None:
    floats = Floats()
    first = floats.tensor((4, 3))
    place, view = first.data_ptr(), first[1:]
    del first
    assert floats.tensor((4, 3)).data_ptr() != place  # the view looks at it
    del view
    assert place in {one.data_ptr() for one in [floats.tensor((4, 3)), floats.tensor((4, 3))]}


def test_floats_that_autograd_keeps_are_not_used_again() -> None:
    floats, weight = Floats(), torch.ones(3, requires_grad=True)
    taken = floats.tensor((4, 3)).fill_(2.0)
    loss = (taken * weight).sum()
    del taken
    for _ in range(6):
        floats.tensor((4, 3)).fill_(9.0)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [8.0, 8.0, 8.0]


def test_batches_held_together_do_not_overwrite_each_other(images: Path) -> None:
    data = opened(images, validation_share=0.0)
    held = [batch(data, [one])[0] for one in range(8)]
    copies = [batch(data, [one])[0].clone() for one in range(8)]
    assert all(torch.equal(*pair) for pair in zip(held, copies, strict=True))
    assert len(FLOATS._kept) <= 4


# -- what is wrong --------------------------------------------------------------------------------------


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("not an image")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def gone(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


SPOILS = [empty, text, directory, cut_off]


@pytest.mark.parametrize("spoil", [*SPOILS, gone])
def test_a_spoilt_image_is_replaced_by_another_of_its_class(
    images: Path, spoil: Callable[[Path], None]
) -> None:
    data = opened(images, augment="none", validation_share=0.0)
    spoil(images / "class1" / "000007.jpg")
    pixels, labels = batch(data, [6, 7])
    assert labels.tolist() == [1, 1]
    assert torch.equal(pixels[0], pixels[1])  # the next of its class
    assert len(data.problems()) == 1
    assert torch.equal(batch(data, [6, 7])[0], pixels)


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_spoilt_image_is_refused_by_name_if_asked_to(images: Path, spoil: Callable[[Path], None]) -> None:
    spoil(images / "class1" / "000007.jpg")
    data = opened(images, on_corrupt="refuse", validation_share=0.0)
    with pytest.raises(DataError, match=r"000007\.jpg cannot be read \(.+\); remove it, or set") as caught:
        batch(data, [6])
    assert "\n" not in str(caught.value)


def test_a_class_without_one_readable_image_ends_the_training(images: Path) -> None:
    for one in (images / "class1").iterdir():
        one.write_bytes(b"")
    with pytest.raises(DataError, match=r"no image of .*class1 can be read; replace them, or list the other"):
        batch(opened(images, validation_share=0.0), [6])


def no_path(images: Path) -> dict[str, Any]:
    return {"path": images / "nowhere"}


def a_file(images: Path) -> dict[str, Any]:
    (images.parent / "f").write_text("x")
    return {"path": images.parent / "f"}


def no_classes(images: Path) -> dict[str, Any]:
    return {"path": images / "class0"}


def empty_class(images: Path) -> dict[str, Any]:
    (images / "hollow").mkdir()
    return {}


def only_text(images: Path) -> dict[str, Any]:
    (images / "hollow").mkdir()
    (images / "hollow" / "x.txt").write_text("x")
    return {}


def typo(images: Path) -> dict[str, Any]:
    return {"classes": ("clas1",)}


def stranger(images: Path) -> dict[str, Any]:
    return {"classes": ("zebra",)}


def outside(images: Path) -> dict[str, Any]:
    return {"classes": ("../images/class0",)}


def twice(images: Path) -> dict[str, Any]:
    return {"classes": ("class1", "class1")}


def missing_validation(images: Path) -> dict[str, Any]:
    images.rename(images.parent / "train")
    write_image_folder(images.parent / "val", classes=2, per_class=1, size=(20, 20))
    return {"path": images.parent}


def labels(name: str, content: bytes | None) -> Callable[[Path], dict[str, Any]]:
    def make(images: Path) -> dict[str, Any]:
        if content is not None:
            (images.parent / name).write_bytes(content)
        return {"labels": images.parent / name}

    return make


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (no_path, "does not exist; set data.path"),
        (a_file, "is a file; set data.path to a folder"),
        (no_classes, "has no class folders; put the images"),
        (empty_class, "class 'hollow' of .* has no images; add some, remove the folder, or list the other"),
        (only_text, "class 'hollow' of .* has no images; add some"),
        (typo, "has no class 'clas1'; did you mean 'class"),
        (stranger, "has no class 'zebra'; it has class0, class1, class2"),
        (outside, "has no class '../images/class0'"),
        (twice, "data.classes names 'class1' twice"),
        (missing_validation, "has no folder for class 'class2'; add it"),
        (labels("l.txt", None), r"label file .* cannot be read \(No such file"),
        (labels("l.txt", b"class0\n"), "line 1 has no name after 'class0'"),
        (labels("l.txt", b"\xff\xfe\x00"), "is not what its name says"),
        (labels("l.json", b"{"), "is not what its name says"),
        (labels("l.json", b"[1]"), "must hold one name for each folder"),
        (labels("l.toml", b"class0 = 3"), "must hold one name for each folder"),
        (labels("l.toml", b"class0 = "), "is not what its name says"),
        (labels("l.txt", b""), "is empty"),
        (labels("l.txt", b"n01440764 tench"), "names none of the classes, such as 'class0'"),
    ],
)
def test_whatever_is_wrong_is_one_line(
    images: Path, wrong: Callable[[Path], dict[str, Any]], said: str
) -> None:
    options = {"path": images, **wrong(images)}
    with pytest.raises(DataError, match=said) as caught:
        opened(**options)
    assert "\n" not in str(caught.value)


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    Image.fromarray(np.full((20, 20, 3), 90, np.uint8)).save(tmp_path / "x.png")
    os.rename(os.fsencode(tmp_path / "x.png"), folder + b"/\xff.png")
    assert batch(opened(tmp_path, validation_share=0.0), [0])[0].shape == (1, 3, 32, 32)
