"""The same claims for every kind of place."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.training.data.sync.places import CATS, Bucket, Folder, fill, here, quickly

from laptime.errors import DataError
from laptime.training.data.sync import sync
from laptime.training.data.sync.transfer import JOURNAL, MANIFEST


def test_everything_comes_and_a_second_time_nothing_is_read(place, folder):
    fill(place)
    first = sync(place.address, folder)
    assert here(folder) == CATS
    assert (first.files, first.skipped, first.classes) == (4, 0, ("cat", "dog"))
    assert first.bytes == sum(map(len, CATS.values()))
    second = sync(place.address, folder)
    assert (second.files, second.bytes, second.skipped) == (0, 0, 4)
    assert here(folder) == CATS
    assert not list(folder.rglob("*.part"))
    assert not (folder / JOURNAL).exists()
    assert json.loads((folder / MANIFEST).read_text())["files"]["cat/1.jpg"]["size"] == 3000


def test_only_chosen_classes_come(place, folder):
    fill(place)
    sync(place.address, folder, classes=["dog"])
    assert set(here(folder)) == {"dog/1.jpg", "dog/empty.jpg"}


def test_classes_are_found_in_train_and_val(place, folder):
    files = {"train/cat/1.jpg": b"a", "train/dog/1.jpg": b"b", "val/cat/1.jpg": b"c", "test/cat/1.jpg": b"d"}
    fill(place, files)
    done = sync(place.address, folder, classes=["cat"])
    assert here(folder) == {"train/cat/1.jpg": b"a", "val/cat/1.jpg": b"c"}
    assert done.classes == ("cat",)


def test_folders_below_a_class_come_with_odd_but_honest_names(place, folder):
    files = {
        "cat/deep/er/1.jpg": b"a",
        "cat/ä b&c+d%20e#f;g.jpg": b"b",
        "cat/ねこ.jpg": b"c",
        "cat/a'b.jpg": b"d",
    }
    fill(place, files)
    assert sync(place.address, folder).refused == ()
    assert here(folder) == files


def test_what_changed_there_comes_again(place, folder):
    fill(place)
    sync(place.address, folder)
    place.put("dog/1.jpg", b"WOOF")
    if isinstance(place, Folder):
        later = time.time() + 2  # sftp and http tell times in seconds
        os.utime(place.root / "dog/1.jpg", (later, later))
    done = sync(place.address, folder)
    assert (done.files, done.bytes) == (1, 4)
    assert here(folder)["dog/1.jpg"] == b"WOOF"


def test_what_was_spoilt_here_comes_again(place, folder):
    fill(place)
    sync(place.address, folder)
    (folder / "cat/1.jpg").write_bytes(b"eno" * 1000)
    (folder / "cat/2.jpg").unlink()
    assert sync(place.address, folder).files == 2
    assert here(folder) == CATS


def test_a_touched_file_is_read_here_not_there(place, folder):
    fill(place)
    sync(place.address, folder)
    os.utime(folder / "cat/1.jpg")
    assert sync(place.address, folder).bytes == 0


def test_sha256sums_are_checked_and_told(place, folder):
    fill(place)
    sums = "".join(
        f"{hashlib.sha256(CATS[name]).hexdigest()}  ./{name}\n" for name in ("cat/1.jpg", "cat/2.jpg")
    )
    place.put("SHA256SUMS", sums.encode())
    place.put("dog/SHA256SUMS", f"{hashlib.sha256(b'woof').hexdigest()} *1.jpg\n".encode())
    done = sync(place.address, folder)
    assert done.verified == (4 if isinstance(place, Bucket) else 3)
    assert here(folder) == CATS


def test_a_file_that_is_not_what_sha256sums_says_is_left_out_and_the_others_come(place, folder):
    fill(place)
    place.put("SHA256SUMS", f"{'0' * 64}  cat/1.jpg\n".encode())
    with pytest.raises(
        DataError, match=r"1 of 4 files did not come: .*cat/1.jpg is not what SHA256SUMS says"
    ):
        sync(place.address, folder, pause=quickly)
    assert set(here(folder)) == set(CATS) - {"cat/1.jpg"}
    assert not list(folder.rglob("*.part"))


def test_a_file_that_sha256sums_names_and_nobody_has_is_told(place, folder):
    fill(place)
    place.put("cat/SHA256SUMS", f"{'0' * 64}  9.jpg\n".encode())
    with pytest.raises(DataError, match=r"1 files that SHA256SUMS names are not at .* such as cat/9.jpg"):
        sync(place.address, folder)


def test_an_unknown_class_brings_the_nearest_names(place, folder):
    fill(place)
    with pytest.raises(DataError, match=r"no class 'catt' at .*; did you mean cat"):
        sync(place.address, folder, classes=["catt"])
    with pytest.raises(DataError, match=r"no class 'zebra' at .*; there are cat, dog"):
        sync(place.address, folder, classes=["zebra"])
    assert not folder.exists()


def test_a_place_that_does_not_exist_is_told_in_one_line(place, folder):
    fill(place)
    with pytest.raises(DataError, match=r"nowhere does not exist; check the address") as told:
        sync(f"{place.address.rstrip('/')}/nowhere", folder, pause=quickly)
    assert "\n" not in str(told.value)


def test_a_file_instead_of_a_folder_is_told(place, folder):
    fill(place)
    with pytest.raises(DataError, match=r"is a file|does not exist|no class folders"):
        sync(f"{place.address.rstrip('/')}/cat/1.jpg", folder, pause=quickly)


def test_a_place_without_class_folders_is_told(place, folder):
    place.put("1.jpg", b"x")
    with pytest.raises(DataError, match=r"holds no class folders; give the folder that is above them"):
        sync(place.address, folder)


def test_links_here_lead_nothing_outside(place, folder, tmp_path):
    fill(place)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"keep")
    (folder / "dog").mkdir(parents=True)
    (folder / "cat").symlink_to(outside)
    (folder / "dog" / "1.jpg").symlink_to(outside / "precious")
    done = sync(place.address, folder)
    assert {one.name for one in done.refused} == {"cat/1.jpg", "cat/2.jpg", "dog/1.jpg"}
    assert all("symbolic link" in one.reason for one in done.refused)
    assert here(outside) == {"precious": b"keep"}


@pytest.mark.parametrize("kind", ["sftp", "s3"])
def test_a_killed_synchronisation_goes_on_where_it_was(kind, request, tmp_path, folder, monkeypatch):
    if kind == "s3":
        place = request.getfixturevalue("bucket")
    else:
        ssh = request.getfixturevalue("sshd")
        monkeypatch.setenv("HOME", str(ssh.home))
        place = Folder(tmp_path / "there", ssh.address(tmp_path / "there"))
    big = os.urandom(1 << 20) * 48
    fill(place, {"cat/1.jpg": b"small", "cat/big.jpg": big})
    deadline = time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", _SYNC, place.address, str(folder)]) as child:
        # The small one first: afterwards, a part that has grown is the big one's.
        while not (folder / "cat/1.jpg").exists() or not any(map(size, folder.rglob("*.part"))):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        child.kill()
    assert child.returncode == -signal.SIGKILL
    (part,) = folder.rglob("*.part")
    left = part.stat().st_size
    assert 0 < left <= len(big)
    assert not (folder / "cat" / "big.jpg").exists()
    done = sync(place.address, folder)
    assert done.bytes == len(big) - left
    assert (done.files, done.skipped) == (1, 1)
    assert (folder / "cat" / "big.jpg").read_bytes() == big


def size(part):
    """Of a file that gets its own name at any moment."""
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


_SYNC = "import sys; from laptime.training.data.sync import sync; sync(sys.argv[1], sys.argv[2])"
