"""A disk that fills up under a training: no exception, no row lost that memory can hold."""

import errno
import os
import threading
from pathlib import Path

import pytest
from tests.store.samples import a_layer_time, a_network, add_steps, start

from laptime.store import load, schema
from laptime.store import writer as writer_module
from laptime.store.files import replacing


def numbers(path: Path) -> list[int]:
    return load(path).steps.table["step"].to_pylist()


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that is full while `full_disk.set()` holds."""
    is_full = threading.Event()
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if is_full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return is_full


def test_a_full_disk_keeps_the_rows_says_so_and_recovers(tmp_path, full_disk):
    writer = start(tmp_path / "run")
    add_steps(writer, range(2))
    writer.flush()
    full_disk.set()
    add_steps(writer, range(2, 4))
    writer.append("layers", schema.layers.table([a_layer_time(3, "conv")]))
    writer.flush()
    add_steps(writer, range(4, 6))
    writer.flush()
    assert writer.problem == "4 rows of steps are not on disk yet: No space left on device"
    assert numbers(tmp_path / "run") == [0, 1]
    assert not list((tmp_path / "run").rglob(".*"))
    full_disk.clear()
    writer.flush()
    assert writer.problem is None
    assert numbers(tmp_path / "run") == list(range(6))
    assert load(tmp_path / "run").layer_table.num_rows == 1


def test_a_disk_that_stays_full_costs_a_bounded_number_of_rows_and_counts_what_it_drops(
    tmp_path, full_disk, monkeypatch
):
    monkeypatch.setattr(writer_module, "BUFFERED_ROWS", 100)
    writer = start(tmp_path / "run")
    full_disk.set()
    for flush in range(40):
        add_steps(writer, range(flush * 10, flush * 10 + 10))
        if flush % 3 == 0:
            writer.flush()
    assert writer._buffered["steps"] <= 100
    assert writer.dropped["steps"] == 300
    full_disk.clear()
    writer.close("finished", {})
    assert numbers(tmp_path / "run") == list(range(300, 400))
    assert load(tmp_path / "run").summary["dropped_rows"] == {"steps": 300}


def test_a_disk_that_is_full_at_the_end_does_not_raise_either(tmp_path, full_disk):
    writer = start(tmp_path / "run")
    add_steps(writer, range(2))
    writer.flush()
    full_disk.set()
    writer.network(a_network(["conv"]))
    assert writer.problem == "network.json could not be written: No space left on device"
    add_steps(writer, range(2, 4))
    writer.close("finished", {})
    assert writer.problem is not None
    assert numbers(tmp_path / "run") == [0, 1]
    full_disk.clear()
    writer.close("finished", {})
    assert writer.problem is None
    assert numbers(tmp_path / "run") == [0, 1, 2, 3]
    assert load(tmp_path / "run").status == "finished"


def test_a_run_directory_deleted_under_the_training_does_not_raise(tmp_path):
    writer = start(tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run").rmdir()
    add_steps(writer, range(2))
    writer.flush()
    assert writer.problem == "2 rows of steps are not on disk yet: No such file or directory"
    assert not (tmp_path / "run").exists()


def test_a_buffer_that_nobody_flushes_flushes_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "BUFFERED_ROWS", 10)
    writer = start(tmp_path / "run")
    for flush in range(10):
        add_steps(writer, range(flush * 4, flush * 4 + 4))
    assert len(numbers(tmp_path / "run")) >= 30
    assert writer.dropped["steps"] == 0


def test_what_is_no_plain_file_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no plain file"), replacing(pipe) as file:
        file.write(b"x")
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]
