"""A disk that fills up or turns read-only under a training: no exception, and no row lost without a word."""

import os
import shutil

import pytest
from tests.runs.samples import a_layer_time, a_network, add_steps, start

from laptime.files.write import replacing
from laptime.runs import RunWriter, directory, load, schema
from laptime.runs import writer as writer_module
from laptime.runs.health import find_losses

FULL = "No space left on device"


def numbers(path):
    return load(path).steps.table["step"].to_pylist()


def began(path, **config):
    """A writer, and the list of what it tells."""
    writer = start(path, **config)
    told = []
    writer._tell = told.append
    return writer, told


def test_rows_wait_for_space_and_are_written_when_it_comes_back(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    writer, told = began(path)
    add_steps(writer, range(2))
    writer.flush()
    disk.fill()
    add_steps(writer, range(2, 4))
    writer.append("layers", schema.layers.table([a_layer_time(3, "conv")]))
    writer.flush()
    add_steps(writer, range(4, 6))
    writer.flush()
    assert writer.problem == f"4 rows of steps are not on disk yet: {FULL}"
    assert numbers(path) == [0, 1]
    assert len(told) == 1
    assert f"not on disk yet: {FULL}" in told[0]
    found = find_losses(load(path))
    assert (found.lost, found.waiting, found.reason) == ({}, {"steps": 4, "layers": 1}, FULL)
    assert found.next_attempt is not None
    disk.free()
    writer.flush()
    assert writer.problem is None
    assert numbers(path) == list(range(6))
    assert load(path).layer_table.num_rows == 1
    writer.close("finished", {})
    assert find_losses(load(path)).lost == {}
    assert len(told) == 1
    assert not [file.name for file in path.rglob(".*")]


def test_rows_that_the_disk_never_took_are_counted_when_the_run_closes(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    writer, told = began(path)
    add_steps(writer, range(1209))
    writer.flush()
    disk.fill()
    add_steps(writer, range(1209, 2696))
    writer.close("finished", {})
    run = load(path)
    assert run.status == "finished"  # the reserve had room for a last run.json
    assert len(run.steps) == 1209
    found = find_losses(run)
    assert (found.lost, found.taken["steps"], found.reason) == ({"steps": 1487}, 2696, FULL)
    assert told == [f"{path}: 1,487 of 2,696 steps were lost: the disk was full"]


def test_a_second_close_writes_what_the_first_could_not(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    writer, told = began(path)
    disk.fill()
    writer.network(a_network(["conv"]))
    add_steps(writer, range(4))
    writer.close("finished", {})
    assert told == [f"{path}: 4 of 4 steps were lost: the disk was full"]
    disk.free()
    writer.close("finished", {})
    assert (writer.problem, len(told)) == (None, 1)
    run = load(path)
    assert (run.status, len(run.steps), run.network[0].name) == ("finished", 4, "conv")
    assert find_losses(run).lost == {}


@pytest.mark.parametrize("again", [True, False], ids=["writable again", "until the end"])
def test_a_disk_that_turns_read_only_is_told_and_its_rows_wait(small_disk, again):
    disk = small_disk()
    path = disk.path / "run"
    writer, told = began(path)
    add_steps(writer, range(3))
    writer.flush()
    disk.read_only()
    add_steps(writer, range(3, 10))
    writer.flush()
    assert [line.count("Read-only file system") for line in told] == [1]
    if again:
        disk.writable()
    writer.close("finished", {})
    if again:
        assert (numbers(path), load(path).status, len(told)) == (list(range(10)), "finished", 1)
        return
    assert told[1] == f"{path}: 7 of 10 steps were lost: the file system was read-only"
    assert numbers(path) == [0, 1, 2]
    assert not load(path).closed  # nothing could be written: run.json still says that it runs


def test_a_disk_that_stays_full_costs_a_bounded_number_of_rows_and_counts_what_it_drops(
    small_disk, monkeypatch
):
    monkeypatch.setattr(writer_module, "BUFFERED_ROWS", 100)
    disk = small_disk()
    path = disk.path / "run"
    writer, told = began(path)
    disk.fill()
    for flush in range(40):
        add_steps(writer, range(flush * 10, flush * 10 + 10))
        if flush % 3 == 0:
            writer.flush()
    assert writer._buffers["steps"].rows <= 100
    assert writer.health.lost_rows["steps"] == 300
    disk.free()
    writer.close("finished", {})
    assert numbers(path) == list(range(300, 400))
    found = find_losses(load(path))
    assert (found.lost, found.taken["steps"]) == ({"steps": 300}, 400)
    assert told[-1] == f"{path}: 300 of 400 steps were lost: the disk was full"


def test_steps_missing_in_between_are_seen_although_run_json_is_old(tmp_path, monkeypatch):
    """As after a kill between the part that follows a loss and the `run.json` that would tell of it."""
    # the heartbeat of a process that is gone
    monkeypatch.setattr(writer_module, "beat", lambda: directory.beat() | {"pid": 2**22 + 1})
    path = tmp_path / "run"
    writer, _ = began(path)
    add_steps(writer, range(10))
    writer.flush()
    old = (path / "run.json").read_bytes()
    add_steps(writer, range(35, 40))
    writer.flush()
    (path / "run.json").write_bytes(old)
    run = load(path)
    assert run.status == "interrupted"
    found = find_losses(run)
    assert (found.lost, found.taken["steps"]) == ({"steps": 25}, 40)


def test_rows_written_after_the_last_run_json_are_not_called_lost(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    writer, _ = began(path)
    add_steps(writer, range(3))
    writer.append("layers", schema.layers.table([a_layer_time(2, "conv")]))
    disk.fill()
    writer.flush()
    told = (path / "run.json").read_bytes()
    disk.free()
    writer.close("finished", {})
    (path / "run.json").write_bytes(told.replace(b'"status": "running"', b'"status": "failed"'))
    assert find_losses(load(path)).lost == {}


def test_a_resumed_run_keeps_the_count_of_what_was_lost_before(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    writer, _ = began(path)
    add_steps(writer, range(5))
    writer.flush()
    disk.fill()
    add_steps(writer, range(5, 9))
    writer.append("layers", schema.layers.table([a_layer_time(8, "conv")]))
    writer.checkpoint_failed(FULL)
    writer.close("failed", {})
    disk.free()
    again = RunWriter.resume(path)
    add_steps(again, range(9, 12), attempt=1)
    again.close("finished", {})
    found = find_losses(load(path))
    assert (found.lost, found.taken["steps"]) == ({"steps": 4, "layers": 1}, 12)
    assert found.failed_checkpoints == 1


def test_lost_steps_that_a_resumed_training_takes_again_are_no_longer_lost(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    writer, _ = began(path)
    add_steps(writer, range(5))
    writer.flush()
    disk.fill()
    add_steps(writer, range(5, 9))
    writer.close("failed", {})
    disk.free()
    again = RunWriter.resume(path)
    add_steps(again, range(3, 12), attempt=1)
    again.close("finished", {})
    run = load(path)
    assert len(run.steps) == 12
    assert "steps" not in find_losses(run).lost


def test_another_rank_tells_its_trouble_in_a_file_of_its_own(small_disk):
    disk = small_disk()
    path = disk.path / "run"
    first, _ = began(path)
    second = start(path, rank=1)
    told = []
    second._tell = told.append
    for writer in (first, second):
        add_steps(writer, range(4))
        writer.flush()
    assert not list(path.glob("health*"))
    disk.fill(leave=4096)  # room for its small file, not for a part
    add_steps(second, range(4, 6))
    second.append("layers", schema.layers.table([a_layer_time(4, f"layer {n}", rank=1) for n in range(2000)]))
    second.close("finished", {})
    disk.free()
    add_steps(first, range(4, 6))
    first.close("finished", {})
    found = find_losses(load(path))
    assert found.lost["layers"] == 2000
    assert "layer times were lost" in told[-1] or "steps were lost" in told[-1]


def test_a_disk_that_refuses_is_tried_at_growing_intervals(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    trouble = writer_module.DiskTrouble()
    waits = []
    for _ in range(6):
        assert trouble.attempt_due
        trouble.plan_attempt(waiting=True)
        before = now[0]
        while not trouble.attempt_due:
            now[0] += 1.0
        waits.append(now[0] - before)
    assert waits == [2, 4, 8, 16, 30, 30]
    trouble.plan_attempt(waiting=False)
    assert trouble.attempt_due


def test_a_patient_flush_leaves_a_full_disk_in_peace_and_keeps_the_heartbeat(small_disk, monkeypatch):
    disk = small_disk()
    path = disk.path / "run"
    writer, _ = began(path)
    disk.fill()
    add_steps(writer, range(2))
    writer.flush()
    tried = []
    monkeypatch.setattr(writer._parts["steps"], "write", lambda rows: tried.append(rows))
    before = load(path).heartbeat["time"]
    writer.flush(patient=True)
    assert tried == []
    assert load(path).heartbeat["time"] > before


def test_a_run_directory_deleted_under_the_training_does_not_raise(tmp_path):
    writer, told = began(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    add_steps(writer, range(2))
    writer.flush()
    assert writer.problem == "2 rows of steps are not on disk yet: No such file or directory"
    assert not (tmp_path / "run").exists()
    writer.close("finished", {})
    assert told[-1] == f"{tmp_path / 'run'}: 2 of 2 steps were lost: the run directory was gone"


def test_a_buffer_that_nobody_flushes_flushes_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "BUFFERED_ROWS", 10)
    writer, _ = began(tmp_path / "run")
    for flush in range(10):
        add_steps(writer, range(flush * 4, flush * 4 + 4))
    assert len(numbers(tmp_path / "run")) >= 30
    assert writer.health.lost_rows["steps"] == 0


def test_a_warning_raises_nothing_even_where_warnings_are_errors(small_disk, caplog):
    disk = small_disk()
    writer = start(disk.path / "run")
    disk.fill()
    add_steps(writer, range(2))
    writer.flush()  # pytest makes every warning an error
    assert "not on disk yet" in caplog.text


def test_what_is_no_plain_file_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no plain file"), replacing(pipe) as file:
        file.write(b"x")
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]
